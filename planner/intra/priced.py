"""One Lagrangian step: memory at chosen moments has a price, the rest is unconstrained.

    L(p) = min_k  cost(k) + sum_t p_t * (memory_t(k) - limit)

is a lower bound on the constrained optimum for every p >= 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .eliminate import Elimination, Tables
from .fold import fold
from .messages import EdgeMessages, Swept, sweep_until
from .neighbourhood import Neighbourhoods, seeds
from .problem import Edge, Floats, IntraProblem

# Tables of nodes with at most two neighbours: never larger than a pair of menus.
PAIR_ENTRIES = 1_000_000
# Cores larger than this are folded first, if that leaves at most this share of the nodes.
FOLD_ABOVE, FOLD_SHARE = 300, 0.7
# After folding, the whole core needs only so small a share of the sweeps.
UNFOLDED_SHARE = 3
MOST_SEEDS = 80  # the most doubtful nodes, whose surroundings are re-solved
PART_SIZES = (12, 40)  # nodes that are re-solved together after message passing


@dataclass(frozen=True, slots=True)
class PricedAnswer:
    """A choice and the bound L(p) it belongs to."""

    choice: tuple[int, ...]
    bound: float
    exact: bool


class PricedSolver:
    """Solves one problem under many prices; tables and messages are kept between calls."""

    def __init__(self, problem: IntraProblem, tables: Tables | None = None) -> None:
        self.problem = problem
        self.tables = tables or Tables()
        self.messages: dict[tuple[int, int], tuple[Floats, Floats] | None] = {}
        self._cache: dict[tuple[int, int, float], Floats] = {}

    def _node_costs(self, prices: Mapping[int, float]) -> list[Floats]:
        problem = self.problem
        if not prices:
            return list(problem.node_cost)
        moments = np.array(sorted(prices))
        rising = np.concatenate(([0.0], np.cumsum([prices[int(t)] for t in moments])))
        costs: list[Floats] = []
        for cost, use, (start, end) in zip(
            problem.node_cost, problem.usage, problem.intervals, strict=True
        ):
            low, high = np.searchsorted(moments, (start, end))
            price = float(rising[high] - rising[low]) if end > start else 0.0
            if price <= 0.0:
                costs.append(cost)
                continue
            key = (id(cost), id(use), price)
            if key not in self._cache:
                self._cache[key] = cost + price * use
            costs.append(self._cache[key])
        return costs

    def solve(
        self, prices: Mapping[int, float], *, sweeps: int, deadline: float, tolerance: float
    ) -> PricedAnswer:
        """Minimises cost plus priced memory.

        Args:
            prices: moment -> seconds per byte.
            sweeps: at most so many message-passing sweeps.
            deadline: of `time.monotonic()`.
            tolerance: relative gap at which to stop.
        """
        costs = self._node_costs(prices)
        paid = sum(price * self.problem.limit for price in prices.values())
        state = Elimination(costs, self.problem.edges, self.tables)
        state.run(PAIR_ENTRIES, max_neighbours=2)
        settled = state.constant()
        if state.alive:
            nodes, core_costs, core_edges = state.core()
            core = _Core(nodes, core_costs, core_edges)
            swept = self._sweep(core, sweeps, deadline, tolerance)
            best = _improved(core_costs, core_edges, swept, tolerance, deadline)
            chosen = dict(zip(nodes, best, strict=True))
            return PricedAnswer(state.read_back(chosen), settled + swept.bound - paid, False)
        return PricedAnswer(state.read_back(), settled - paid, True)

    def _sweep(self, core: _Core, sweeps: int, deadline: float, tolerance: float) -> Swept:
        """Message passing on the core, started from the last call or from the folded core."""
        start, known = self._resumed(core), None
        if start is None and len(core.nodes) > FOLD_ABOVE:
            folded = fold(core.costs, core.edges)
            if len(folded.node_cost) < FOLD_SHARE * len(core.nodes):
                small = sweep_until(
                    folded.node_cost, folded.edges, sweeps=sweeps, deadline=deadline,
                    tolerance=tolerance / 4,
                )  # fmt: skip
                start = folded.lift_messages(small.messages)
                better = _improved(folded.node_cost, folded.edges, small, tolerance, deadline)
                known = folded.lift(better)
                sweeps = min(sweeps, max(4, sweeps // UNFOLDED_SHARE))
        swept = sweep_until(
            core.costs, core.edges, sweeps=sweeps, deadline=deadline, tolerance=tolerance,
            start=start, known=known,
        )  # fmt: skip
        ends = [(core.nodes[e.u], core.nodes[e.v]) for e in core.edges]
        self.messages = dict(zip(ends, swept.messages, strict=True))
        return swept

    def _resumed(self, core: _Core) -> EdgeMessages | None:
        if not self.messages:
            return None
        return [self.messages.get((core.nodes[e.u], core.nodes[e.v])) for e in core.edges]


@dataclass(frozen=True, slots=True)
class _Core:
    nodes: tuple[int, ...]
    costs: list[Floats]
    edges: list[Edge]


def _improved(
    costs: Sequence[Floats], edges: Sequence[Edge], swept: Swept, tolerance: float, deadline: float
) -> tuple[int, ...]:
    """The choice of some sweeps after neighbourhoods, where a gap is left."""
    best = swept.choice
    if swept.cost - swept.bound <= tolerance * abs(swept.cost):
        return best
    part = Neighbourhoods(costs, edges)
    order = seeds(swept.slack, best)[:MOST_SEEDS]
    for size in PART_SIZES:
        best = part.improve(best, order, size=size, deadline=deadline)
    return best
