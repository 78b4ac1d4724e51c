# pyright: basic
"""A pipeline that runs: programs of the stages on their devices, started in a schedule's order.

One process starts every task as soon as the schedule lets it; JAX runs them asynchronously, each
group of devices in the order of its own tasks. Arrays go from group to group by device copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ...common.surface import public
from ...pipeline.cut.stage import Use
from ...pipeline.schedule import Kind, Schedule, Task
from ..context import unmeshed
from ..given import leaves_like, refuse_used
from .feed import Feed, Whole
from .holdings import Pieces, copied, placed
from .places import Stack, Where
from .processes import started
from .programs import ChunkPrograms
from .transfer import Devices, sent, whole
from .update import Update

Array = Any


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A training step in stages: (params, opt_state, batch) -> (params, opt_state, loss).

    chunks: programs of every chunk of the schedule.
    order: tasks in the order of their starts.
    where: places of the parameters; state_where of the leaves of the optimizer's state.
    seeds: by chunk, gradient of what is minimised with respect to the loss of a micro-batch.
    """

    schedule: Schedule
    groups: tuple[Devices, ...]
    chunks: tuple[ChunkPrograms, ...]
    order: tuple[Task, ...]
    where: tuple[Where, ...]
    state_where: tuple[Where, ...]
    moves: tuple[bool, ...]
    feeds: dict[tuple[int, int], Feed]  # (chunk, batch leaf)
    update: Update
    finish: tuple[tuple[int, Any, Any], ...]  # (stage, key, joiner) of loss and aux
    types: tuple[Any, Any, Any]  # of params, state and batch: pytrees of structs
    aux: Any  # structure of aux; None without aux
    seeds: dict[int, Array]
    route: tuple[tuple[int, ...], ...]  # micro-batch -> chunk of every stage
    unread: dict[int, Any]  # parameter that no stage reads -> makes its gradient, zero
    goals: dict[tuple[Any, ...], Any]  # (chunk, takes or sender, value) -> sharding on arrival
    stored: tuple[dict[tuple[int, int], Any], ...]  # of params and state: (leaf, piece) -> sharding
    whole: Whole | None = None  # values computed from the whole batch

    @public
    @unmeshed
    def __call__(self, params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
        held = self.flat(params, 0, self.where)
        state = self.flat(opt_state, 1, self.state_where)
        sums = self.first_sums(held, batch)
        run = Run(self, held, self.cut(batch, sums))
        for task in self.order:
            run.start(task)
        results = self.finished(run.results(), batch)
        sums = run.sums()
        del run
        moving = [held[k] for k, moves in enumerate(self.moves) if moves]
        stays = [None if moves else x for x, moves in zip(held, self.moves, strict=True)]
        del held
        loss = results[0]
        new = self.update([*map(_parts, moving), *sums, *map(_parts, state), [loss]])
        fresh = iter(new)
        leaves = [
            _whole(next(fresh), where) if moves else kept
            for kept, moves, where in zip(stays, self.moves, self.where, strict=True)
        ]
        state = [_whole(next(fresh), where) for where in self.state_where]
        found = loss
        if self.aux is not None:
            found = (loss, jax.tree.unflatten(self.aux, results[1:]))
        params = jax.tree.unflatten(jax.tree.structure(self.types[0]), leaves)
        return params, jax.tree.unflatten(jax.tree.structure(self.types[1]), state), found

    @public
    @unmeshed
    def place(self, tree: Any, argument: int) -> Any:
        """Copies of parameters (0) or optimizer state (1) in their places.

        A step reuses the memory of what it is given, so that nothing here is shared with `tree`.
        """
        where = self.where if argument == 0 else self.state_where
        return jax.tree.unflatten(
            jax.tree.structure(self.types[argument]), self.flat(tree, argument, where, copied)
        )

    def flat(
        self,
        tree: Any,
        argument: int,
        where: Sequence[Where],
        taken: Callable[[Any], Any] = lambda x: x,
    ) -> list[Any]:
        """Leaves of an argument in their places.

        Args:
            tree: the argument.
            argument: 0 for parameters, 1 for optimizer state.
            where: places of its leaves.
            taken: what each leaf is passed through first.

        Raises:
            ArgumentError: if it has another structure or other types, or was used by a step.
        """
        name = ("params", "opt_state")[argument]
        leaves = leaves_like(tree, name, self.types[argument])
        refuse_used(leaves, name, self.types[argument])
        goals = self.stored[argument]
        return [
            placed(taken(x), place, self.groups, lambda n, k=k: goals.get((k, n)))
            for k, (x, place) in enumerate(zip(leaves, where, strict=True))
        ]

    def first_sums(self, held: Sequence[Any], batch: Any) -> list[Array]:
        """Sums over all micro-batches that their gradients wait for, if they do.

        A first round runs the forward programs alone, and keeps nothing of them.
        """
        if self.whole is None or not self.whole.twice:
            return []
        run = Run(self, held, self.cut(batch))
        for task in self.order:
            if task.kind is Kind.FORWARD:
                run.start(task)
                run.drop(task)
        return self.whole.sums(run.results())

    def cut(self, batch: Any, sums: Sequence[Array] = ()) -> dict[tuple[int, int], Sequence[Array]]:
        """Micro-batches of every leaf for every chunk that reads it.

        Args:
            batch: whole.
            sums: over all micro-batches, if they wait for them.

        Raises:
            ArgumentError: if the batch has another structure or other types.
        """
        leaves = leaves_like(batch, "batch", self.types[2])
        if self.whole is None:
            return {at: feed(leaves[at[1]]) for at, feed in self.feeds.items()}
        groups = dict.fromkeys(feed.devices for feed in self.feeds.values())
        found = {devices: self.whole.extended(leaves, devices, sums) for devices in groups}
        return {at: feed(found[feed.devices][at[1]]) for at, feed in self.feeds.items()}

    def finished(self, results: Sequence[Array], batch: Any) -> Sequence[Array]:
        """The loss and the leaves of aux, from what all micro-batches gave."""
        if self.whole is None:
            return results
        last = self.schedule.placement.device[self.route[0][self.finish[0][0]]]
        return self.whole.finished(jax.tree.leaves(batch), results, self.groups[last])


def _parts(x: Any) -> list[Array]:
    return list(x.parts) if isinstance(x, Pieces) else [x]


def _whole(parts: Sequence[Array], where: Where) -> Any:
    return Pieces(parts) if isinstance(where, Stack) else parts[0]


class Run:
    """One step as it runs: what has been computed and is still needed."""

    def __init__(
        self, pipeline: Pipeline, held: Sequence[Any], rows: dict[tuple[int, int], Any]
    ) -> None:
        self.pipeline, self.rows = pipeline, rows
        self.home = pipeline.schedule.placement.device
        self.stage = pipeline.schedule.placement.stage
        self.params = [self._params(c, held) for c in range(len(pipeline.chunks))]
        self.ends = [
            [(p, chunk.stage.gives.index(key)) for p, (s, key, _) in enumerate(pipeline.finish)
             if s == self.stage[c]]
            for c, chunk in enumerate(pipeline.chunks)
        ]  # fmt: skip
        self.acc = [chunk.zeros() for chunk in pipeline.chunks]
        self.boxes: dict[tuple[Any, ...], Array] = {}  # (stage, micro-batch, key, sender)
        self.saved: dict[tuple[int, int], Any] = {}
        self.taken: dict[tuple[int, int], list[Array]] = {}
        self.between: dict[tuple[int, int], Any] = {}
        self.outputs: dict[tuple[int, int], Array] = {}  # (position, micro-batch)

    def _params(self, c: int, held: Sequence[Any]) -> list[Array]:
        """A chunk's parameters as its programs want them; copies of what it does not own."""
        chunk = self.pipeline.chunks[c]
        return [
            sent(_held(held[use.leaf], use, self.pipeline.where[use.leaf]), self._devices(c), goal)
            for use, goal in zip(chunk.stage.params, chunk.goals("params"), strict=True)
        ]

    def _devices(self, c: int) -> Devices:
        return self.pipeline.groups[self.home[c]]

    def _batch(self, c: int, m: int) -> list[Array]:
        leaves = self.pipeline.chunks[c].stage.batch
        return [self.rows[c, leaf][m] for leaf in leaves]

    def start(self, task: Task) -> None:
        _TASKS[task.kind](self, task.chunk, task.microbatch)

    def _forward(self, c: int, m: int) -> None:
        chunk, s = self.pipeline.chunks[c], self.stage[c]
        takes = [self.boxes.pop((s, m, key)) for key in chunk.stage.takes]
        gives, self.saved[c, m] = chunk.forward(self.params[c], self._batch(c, m), takes)
        self.taken[c, m] = takes
        for key, x in zip(chunk.stage.gives, gives, strict=True):
            for reader in chunk.readers[key]:
                target = self.pipeline.route[m][reader]
                goal = self.pipeline.goals[target, "takes", key]
                self.boxes[reader, m, key] = sent(x, self._devices(target), goal)
        for position, at in self.ends[c]:
            self.outputs[position, m] = gives[at]

    def drop(self, task: Task) -> None:
        """Keeps nothing of a forward program for its backward program."""
        del self.saved[task.chunk, task.microbatch], self.taken[task.chunk, task.microbatch]

    def _again(self, c: int, m: int) -> None:
        chunk = self.pipeline.chunks[c]
        if self.saved[c, m] is None:
            self.saved[c, m] = chunk.again(self.params[c], self._batch(c, m), self.taken[c, m])

    def _slopes(self, c: int, m: int) -> list[Array]:
        chunk, s = self.pipeline.chunks[c], self.stage[c]
        found = [self.boxes.pop((s, m, slope.key, slope.source)) for slope in chunk.incoming]
        if s == self.pipeline.finish[0][0]:
            found.append(self.pipeline.seeds[c])
        return found

    def _back(self, c: int, m: int, slopes: Sequence[Array]) -> None:
        chunk = self.pipeline.chunks[c]
        for slope, x in zip(chunk.outgoing, slopes, strict=True):
            target = self.pipeline.route[m][slope.target]
            goal = self.pipeline.goals[target, slope.source, slope.key]
            moved = sent(x, self._devices(target), goal)
            self.boxes[slope.target, m, slope.key, slope.source] = moved

    def _inputs(self, c: int, m: int) -> tuple[list[Array], list[Array], list[Array], Any]:
        self._again(c, m)
        return self.params[c], self._batch(c, m), self.taken[c, m], self.saved[c, m]

    def _backward(self, c: int, m: int) -> None:
        chunk = self.pipeline.chunks[c]
        slopes = self._slopes(c, m)
        sent_back, self.acc[c] = chunk.backward(*self._inputs(c, m), slopes, self.acc[c])
        del self.saved[c, m], self.taken[c, m]
        self._back(c, m, sent_back)

    def _input_gradient(self, c: int, m: int) -> None:
        chunk = self.pipeline.chunks[c]
        slopes = self._slopes(c, m)
        sent_back, between = chunk.input_gradient(*self._inputs(c, m), slopes)
        self.between[c, m] = (slopes, between)
        self._back(c, m, sent_back)

    def _weight_gradient(self, c: int, m: int) -> None:
        slopes, between = self.between.pop((c, m))
        chunk = self.pipeline.chunks[c]
        self.acc[c] = chunk.weight_gradient(*self._inputs(c, m), slopes, between, self.acc[c])
        del self.saved[c, m], self.taken[c, m]

    def results(self) -> list[Array]:
        """The loss and the leaves of aux."""
        found: list[Array] = []
        for position, (stage, _, join) in enumerate(self.pipeline.finish):
            count = self.pipeline.schedule.microbatches
            target = self._devices(self.pipeline.route[0][stage])
            parts = [sent(self.outputs[position, m], target) for m in range(count)]
            found.append(self._started(join, parts, target))
        self.outputs.clear()
        return found

    def sums(self) -> list[list[Array]]:
        """For every parameter with a gradient and every piece of it: sums of all its readers."""
        terms: dict[tuple[int, int], list[Array]] = {}
        for c, chunk in enumerate(self.pipeline.chunks):
            uses = [u for u, moves in zip(chunk.stage.params, chunk.moves, strict=True) if moves]
            for use, x in zip(uses, chunk.finish(self.acc[c]), strict=True):
                n = _number(use, self.pipeline.where[use.leaf])
                terms.setdefault((use.leaf, n), []).append(x)
        self.acc.clear()
        found: list[list[Array]] = []
        for leaf, (where, moves) in enumerate(
            zip(self.pipeline.where, self.pipeline.moves, strict=True)
        ):
            if moves:
                found.append([])
                for n, group in enumerate(_groups(where)):
                    found[-1].append(self._sum(terms.get((leaf, n), []), group, leaf))
        return found

    def _sum(self, terms: list[Array], group: int, leaf: int) -> Array:
        devices = self.pipeline.groups[group]
        if not terms:
            return self._started(self.pipeline.unread[leaf], (), devices)
        total = sent(terms[0], devices)
        for x in terms[1:]:
            x = sent(sent(x, devices), devices, total.sharding)  # only its owner knows how it lies
            total = self._started(_add, (total, x), devices)
        return total

    def _started(self, call: Any, args: Sequence[Array], devices: Devices) -> Any:
        """A small program, where its devices are; results elsewhere depend on their operands."""
        return started(call, args, devices, lambda rank: whole(devices, rank), {})


_TASKS: Mapping[Kind, Callable[[Run, int, int], None]] = {
    Kind.FORWARD: Run._forward, Kind.RECOMPUTE: Run._again, Kind.BACKWARD: Run._backward,
    Kind.INPUT_GRADIENT: Run._input_gradient, Kind.WEIGHT_GRADIENT: Run._weight_gradient,
}  # fmt: skip
_add = jax.jit(jnp.add, donate_argnums=0)


def _groups(where: Where) -> list[int]:
    return [g for g, _, _ in where.pieces] if isinstance(where, Stack) else [where.group]


def _number(use: Use, where: Where) -> int:
    if isinstance(where, Stack):
        spans = [(low, high) for _, low, high in where.pieces]
        return spans.index((use.low, use.high))
    return 0


def _held(x: Any, use: Use, where: Where) -> Array:
    return x.parts[_number(use, where)] if isinstance(where, Stack) else x
