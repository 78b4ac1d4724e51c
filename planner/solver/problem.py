"""What a solver receives and returns: arrays only, no graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..common.stop import Stop
from .tables import Table, lowest, whole

Floats = NDArray[np.float64]
Point = tuple[float, float, float]  # seconds since the start, cost, bound
ROUNDING = 1e-9  # relative: costs may be summed in another order


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Seconds of pairs of choices besides their cost, which enough work of a window hides.

    table: finite, as the costs of the edge are ordered [s].
    """

    window: int
    table: Table

    @property
    def seconds(self) -> Floats:
        """The table as an array."""
        return whole(self.table)


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Cost [s] of a pair of choices: row = choice of `u`, column = choice of `v`."""

    u: int
    v: int
    table: Table
    hidden: Hidden | None = None

    @property
    def cost(self) -> Floats:
        """The table as an array."""
        return whole(self.table)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Seconds of each option of a node beside which the hidden seconds of a window may run."""

    node: int
    window: int
    seconds: Floats


@dataclass(frozen=True, eq=False)
class IntraProblem:
    """Node and edge costs, windows of overlap, memory over time, and a limit on it.

    min  sum_v node_cost[v][k_v]  +  sum_e e.cost[k_u, k_v]
         +  sum_w max(0, sum_{e in w} hidden_e[k_u, k_v] - sum_{x in w} x.seconds[k_v])
    over the choice k

    subject to, at every moment t:  sum over v with start_v <= t < end_v of usage[v][k_v] <= limit.

    A window w is a part of the step in which communication may run beside work: what is longer
    than all of its work costs the difference.

    Costs in seconds (or unit-less in contest instances), usage and limit in bytes. Equal arrays
    may be one object; solvers use that to do equal work once.
    """

    node_cost: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    usage: tuple[Floats, ...]
    intervals: tuple[tuple[int, int], ...]
    limit: float
    work: tuple[Work, ...] = ()

    @property
    def size(self) -> int:
        return len(self.node_cost)

    def with_arrays(
        self, part: Callable[..., Table], work: Callable[..., Floats] | None = None
    ) -> IntraProblem:
        """The problem with other options: every array is replaced.

        Args:
            part: from an array and the nodes of its dimensions to the array in its place.
            work: the same for seconds of work; `part` if None.
        """
        edges = tuple(
            Edge(
                e.u, e.v, part(e.table, e.u, e.v),
                None if (h := e.hidden) is None else Hidden(h.window, part(h.table, e.u, e.v)),
            )
            for e in self.edges
        )  # fmt: skip
        return replace(
            self,
            node_cost=tuple(part(c, v) for v, c in enumerate(self.node_cost)),
            edges=edges,
            usage=tuple(part(use, v) for v, use in enumerate(self.usage)),
            work=tuple(replace(x, seconds=(work or part)(x.seconds, x.node)) for x in self.work),
        )

    def cost(self, choice: Sequence[int], excess: Mapping[int, float] | None = None) -> float:
        """Objective of a choice.

        Args:
            choice: an option of each node.
            excess: `excess` of the choice, where it is known.
        """
        excess = self.excess(choice) if excess is None else excess
        nodes = sum([c.item(k) for c, k in zip(self.node_cost, choice, strict=True)])
        edges = sum([e.table.item(choice[e.u], choice[e.v]) for e in self.edges])
        return nodes + edges + sum(max(0.0, over) for over in excess.values())

    def excess(self, choice: Sequence[int]) -> dict[int, float]:
        """Window -> hidden seconds less the seconds of its work; windows without any are absent."""
        found: dict[int, float] = {}
        for e in self.edges:
            if e.hidden is not None:
                hidden = e.hidden.table.item(choice[e.u], choice[e.v])
                found[e.hidden.window] = found.get(e.hidden.window, 0.0) + hidden
        for x in self.work:
            if x.window in found:
                found[x.window] -= x.seconds.item(choice[x.node])
        return found

    def least_cost(self) -> float:
        """No choice costs less: every node and every edge at its least, less what rounding adds."""
        tables = [*self.node_cost, *(edge.table for edge in self.edges)]
        each = {id(table): table for table in tables}
        least = {key: lowest(table) for key, table in each.items()}
        parts = [least[id(table)] for table in tables]
        total = sum(parts) - ROUNDING * sum(map(abs, parts))
        return total if math.isfinite(total) else np.inf if np.inf in parts else -np.inf

    def memory(self, choice: Sequence[int]) -> Floats:
        """Bytes in use at every moment."""
        return self.memory_of([use[k] for use, k in zip(self.usage, choice, strict=True)])

    def memory_of(self, used: Sequence[float]) -> Floats:
        """Bytes in use at every moment, if every node uses so much while it lives."""
        horizon = max((end for _, end in self.intervals), default=0)
        change = np.zeros(horizon + 1)
        for use, (start, end) in zip(used, self.intervals, strict=True):
            if end > start:
                change[start] += use
                change[end] -= use
        return np.cumsum(change)[:horizon] if horizon else np.zeros(0)

    def peak(self, choice: Sequence[int]) -> float:
        """Largest usage over all moments."""
        memory = self.memory(choice)
        return float(memory.max()) if len(memory) else 0.0

    def is_feasible(self, choice: Sequence[int]) -> bool:
        return np.isfinite(self.cost(choice)) and self.peak(choice) <= self.limit * (1 + 1e-12)


@dataclass(frozen=True, slots=True)
class IntraSolution:
    """A choice with its cost, a proven lower bound and the reason to stop.

    `choice` is empty when nothing feasible was found; `bound` holds for every feasible choice.
    `trace` tells how cost and bound changed over time; it and `seconds` are not compared, nor are
    the `multipliers` of windows at the bound.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float
    stop: Stop
    trace: tuple[Point, ...] = field(default=(), compare=False)
    seconds: float = field(default=0.0, compare=False)
    multipliers: tuple[tuple[int, float], ...] = field(default=(), compare=False)

    @property
    def gap(self) -> float:
        """(cost - bound) / cost."""
        return 0.0 if self.cost <= 0 else max(0.0, (self.cost - self.bound) / self.cost)
