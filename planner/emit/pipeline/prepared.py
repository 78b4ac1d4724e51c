# pyright: basic
"""The tasks of a step as a list of calls, written once: what each reads and where its results go.

Every array of a step has a number. A start takes arrays by their numbers, stores its results under
others, sends some of them to other groups, and drops what nothing reads afterwards. With several
processes each has the starts of its own devices only, and the transfers that it takes part in;
arrays elsewhere have no data, and stay the same from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from ...pipeline.schedule import Task
from .processes import alone, away, is_here
from .transfer import Devices, refuse_keys, way_to, whole

Array = Any
Env = list[Any]
NOTHING = slice(0, 0)


class Port:
    """Sends values of one kind to other devices; the way is looked up once.

    devices: where they go; goal: how they shall lie there, see `transfer.sent`.
    """

    __slots__ = ("_lies", "_way", "devices", "goal")

    def __init__(self, devices: Devices, goal: Any) -> None:
        self.devices, self.goal = devices, goal
        self._lies: Any = None
        self._way: Callable[[Array], Array] = _same

    def __call__(self, x: Array) -> Array:
        if x.sharding is not self._lies:
            self._way = way_to(x.sharding, x.shape, x.dtype, self.devices, self.goal)
            self._lies = x.sharding
        return self._way(x)


@dataclass(frozen=True, slots=True)
class Start:
    """A program to start, and what becomes of its results.

    task: of the schedule; devices: that run it.
    call: the program; take: the arrays of a step -> its arguments.
    reads: numbers of these; outs: of its results.
    sends: (array, its copy, way to the copy).
    dead: arrays that nothing reads afterwards, in runs, each with as many Nones.
    """

    task: Task
    devices: Devices
    call: Callable[..., Sequence[Array]]
    take: Callable[[Env], Sequence[Array]]
    reads: tuple[int, ...]
    outs: slice
    sends: tuple[tuple[int, int, Port], ...]
    dead: tuple[tuple[slice, list[None]], ...] = ()


def start_each(starts: Iterable[Start], env: Env) -> None:
    """Starts programs one after the other, on the arrays of a step.

    Raises:
        RuntimeError: if a program has more or fewer results than were numbered.
    """
    count = len(env)
    for start in starts:
        env[start.outs] = start.call(*start.take(env))
        for source, target, port in start.sends:
            env[target] = port(env[source])
        for part, nones in start.dead:
            env[part] = nones
    check_count(env, count)


def check_count(env: Env, count: int) -> None:
    """Refuses arrays that are not as many as were numbered: all later ones would be others."""
    if len(env) != count:
        raise RuntimeError(
            f"{len(env)} arrays in a step of a pipeline, {count} were numbered: "
            "a program took or returned others than it was compiled for; please report this"
        )


@dataclass(frozen=True)
class Prepared:
    """A step's starts, with the numbers of the arrays that it begins with and ends with.

    count: arrays.
    params, sums, zeros: by chunk; sums of gradients at the end, and zeros at the beginning.
    rows: (chunk, leaf of the batch) -> its micro-batches.
    seeds: chunk -> gradient of what is minimised.
    results: (position, micro-batch) -> loss or leaf of aux.
    known: what is not on the devices of this process, once it was looked up.
    """

    starts: tuple[Start, ...]
    count: int
    params: tuple[slice, ...]
    zeros: tuple[slice, ...]
    sums: tuple[slice, ...]
    rows: Mapping[tuple[int, int], slice]
    seeds: Mapping[int, int]
    results: Mapping[tuple[int, int], int]
    known: list[tuple[tuple[Start, ...], Env]] = field(default_factory=list)

    def here(self, env: Env) -> tuple[Start, ...]:
        """Starts of this process; arrays that other processes make are filled in.

        Args:
            env: the arrays that the step begins with.
        """
        if jax.process_count() == 1:
            return self.starts
        if not self.known:
            self.known.append(_elsewhere(self.starts, env))
        starts, others = self.known[0]
        for number, x in enumerate(others):
            if x is not None:
                env[number] = x
        return starts


def _elsewhere(starts: Sequence[Start], env: Env) -> tuple[tuple[Start, ...], Env]:
    """Starts of this process, and arrays that others make, which have no data here."""
    structs: Env = [None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in env]
    others: Env = [None] * len(env)
    made: dict[int, Sequence[Any]] = {}
    own: list[Start] = []
    for start in starts:
        if id(start.call) not in made:
            made[id(start.call)] = jax.eval_shape(start.call, *start.take(structs))
        structs[start.outs] = list(made[id(start.call)])
        here = is_here(start.devices)
        if not here:
            for number in range(*start.outs.indices(len(env))):
                others[number] = _without_data(structs[number], Port(start.devices, None))
        for source, target, port in start.sends:
            structs[target] = structs[source]
            refuse_keys(structs[source].dtype, start.devices, port.devices)
            if not is_here(port.devices):
                others[target] = _without_data(structs[target], port)
        if here:
            own.append(replace(start, call=alone(start.call, start.devices)))
            continue
        comes = tuple(send for send in start.sends if is_here(send[2].devices))
        if comes:
            nothing = replace(start, call=_none, take=_no_arguments, outs=NOTHING, sends=comes)
            own.append(replace(nothing, dead=()))
    return tuple(own), others


def _without_data(struct: Any, port: Port) -> Array:
    goal = port.goal or whole(port.devices, len(struct.shape))
    return away(struct.shape, struct.dtype, goal)


def _same(x: Array) -> Array:
    return x


def _none() -> tuple[()]:
    return ()


def _no_arguments(env: Env) -> tuple[()]:
    return ()
