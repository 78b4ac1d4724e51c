# pyright: basic
"""A pipeline that runs: programs of the stages on their devices, started in a schedule's order.

One process starts every task as soon as the schedule lets it; JAX runs them asynchronously, each
group of devices in the order of its own tasks. Arrays go from group to group by device copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from ...common.surface import public
from ...pipeline.cut.uses import Use
from ...pipeline.schedule import Kind, Schedule, Task
from ..context import unmeshed
from ..given import leaves_like, refuse_used
from .feed import Feed, Whole
from .holdings import Pieces, copied, placed
from .initial import Kept
from .places import Stack, Where
from .prepare import StartWriter
from .prepared import Env, Prepared, check_count, start_each
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

    @cached_property
    def prepared(self) -> Prepared:
        """The starts of all tasks."""
        return self._prepared(self.order)

    @cached_property
    def _forwards(self) -> Prepared:
        """The starts of the forward programs alone."""
        return self._prepared([task for task in self.order if task.kind is Kind.FORWARD])

    def _prepared(self, order: Sequence[Task]) -> Prepared:
        rows = {at: feed.parts.count if feed.parts else 1 for at, feed in self.feeds.items()}
        finish = [(stage, key) for stage, key, _ in self.finish]
        writer = StartWriter(
            self.schedule, self.chunks, self.groups, self.route, self.goals, finish, rows
        )
        return writer.prepared(order)

    @public
    @unmeshed
    def __call__(self, params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
        held = self.flat(params, 0, self.where)
        state = self.flat(opt_state, 1, self.state_where)
        sums = self.first_sums(held, batch)
        run = Run(self, held, self.cut(batch, sums))
        run.start_all()
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

    @public
    @unmeshed
    def init(self, init_fn: Callable[..., Any], args: Sequence[Any], argument: int) -> Any:
        """Parameters (0) or optimizer state (1) made by `init_fn(*args)` in their places."""
        return self.kept(argument).made(init_fn, args)

    @public
    def shardings(self, argument: int) -> Any:
        """Shardings of parameters (0) or optimizer state (1) between steps."""
        return self.kept(argument).shardings(self.types[argument])

    def kept(self, argument: int) -> Kept:
        """Where the leaves of parameters (0) or optimizer state (1) are between steps."""
        where = self.where if argument == 0 else self.state_where
        return Kept(where, self.stored[argument], self.groups)

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
        run = Run(self, held, self.cut(batch), self._forwards)
        run.start_all()
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
    """One step as it runs: its arrays that are still needed.

    Args:
        pipeline: that takes the step.
        held: parameters in their places.
        rows: (chunk, leaf of the batch) -> micro-batches.
        starts: what is started; all tasks if None.
    """

    def __init__(
        self, pipeline: Pipeline, held: Sequence[Any], rows: dict[tuple[int, int], Any],
        starts: Prepared | None = None,
    ) -> None:  # fmt: skip
        self.pipeline, self.prepared = pipeline, starts or pipeline.prepared
        self.home = pipeline.schedule.placement.device
        made, env = self.prepared, [None] * self.prepared.count
        for c, chunk in enumerate(pipeline.chunks):
            env[made.params[c]] = self._params(c, held)
            env[made.zeros[c]] = chunk.zeros()
        for at, part in made.rows.items():
            env[part] = rows[at]
        for c, number in made.seeds.items():
            env[number] = pipeline.seeds[c]
        check_count(env, made.count)
        self.env: Env = env
        self.starts = made.here(env)

    def _params(self, c: int, held: Sequence[Any]) -> list[Array]:
        """A chunk's parameters as its programs want them; copies of what it does not own."""
        chunk = self.pipeline.chunks[c]
        return [
            sent(_held(held[use.leaf], use, self.pipeline.where[use.leaf]), self._devices(c), goal)
            for use, goal in zip(chunk.stage.params, chunk.goals("params"), strict=True)
        ]

    def _devices(self, c: int) -> Devices:
        return self.pipeline.groups[self.home[c]]

    def start_all(self) -> None:
        """Starts all tasks."""
        start_each(self.starts, self.env)

    def start(self, task: Task) -> None:
        """Starts one task; those before it in the order have been."""
        start_each([start for start in self.starts if start.task == task], self.env)

    def results(self) -> list[Array]:
        """The loss and the leaves of aux."""
        found: list[Array] = []
        for position, (stage, _, join) in enumerate(self.pipeline.finish):
            count = self.pipeline.schedule.microbatches
            target = self._devices(self.pipeline.route[0][stage])
            numbers = [self.prepared.results[position, m] for m in range(count)]
            parts = [sent(self.env[k], target) for k in numbers]
            found.append(self._started(join, parts, target))
        return found

    def sums(self) -> list[list[Array]]:
        """For every parameter with a gradient and every piece of it: sums of all its readers."""
        terms: dict[tuple[int, int], list[Array]] = {}
        for c, chunk in enumerate(self.pipeline.chunks):
            uses = [u for u, moves in zip(chunk.stage.params, chunk.moves, strict=True) if moves]
            for use, x in zip(uses, chunk.finish(self.env[self.prepared.sums[c]]), strict=True):
                n = _number(use, self.pipeline.where[use.leaf])
                terms.setdefault((use.leaf, n), []).append(x)
        self.env.clear()
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
