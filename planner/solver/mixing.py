"""Problems with windows of overlap as problems without, at multipliers of the windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .problem import Edge, IntraProblem
from .tables import Deferred, Mixed, Table, whole

# A mixed table, and those that it was mixed of, whose identities are its name.
_Mixed = tuple[Table, Table, Table]


@dataclass
class Mixing:
    """Problems without windows, at given multipliers.

    Arrays that were mixed alike the last time are the same objects again: so a problem that is
    solved twice, first for a quick bound, is reduced once.
    """

    _last: dict[tuple[int, int, float], _Mixed] = field(
        default_factory=dict[tuple[int, int, float], _Mixed]
    )

    def at(self, problem: IntraProblem, multipliers: Mapping[int, float]) -> IntraProblem:
        """The problem A + sum of multipliers times (H - C).

        Args:
            problem: with windows.
            multipliers: of windows; 0 for those that are absent.
        """
        made: dict[tuple[int, int, float], _Mixed] = {}

        def mixed(cost: Table, seconds: Table, share: float) -> Table:
            if share == 0.0:
                return cost
            key = id(cost), id(seconds), share
            if key not in made:
                made[key] = self._last.get(key) or (_sum(cost, share, seconds), cost, seconds)
            return made[key][0]

        costs, given = list(problem.node_cost), multipliers
        for x in problem.work:
            costs[x.node] = whole(mixed(costs[x.node], x.seconds, -given.get(x.window, 0.0)))
        edges = [
            e if (h := e.hidden) is None
            else Edge(e.u, e.v, mixed(e.table, h.table, given.get(h.window, 0.0)))
            for e in problem.edges
        ]  # fmt: skip
        self._last = made
        return replace(problem, node_cost=tuple(costs), edges=tuple(edges), work=())


def _sum(table: Table, share: float, other: Table) -> Table:
    """A table and a share of another."""
    if isinstance(table, Deferred) and isinstance(other, Deferred):
        return Mixed(table, share, other)
    return whole(table) + share * whole(other)
