"""Sequential message passing: a lower bound, a good choice, and options that cannot be optimal.

Messages M_uv re-parametrise the problem without changing it,

    c'_v(k) = c_v(k) + sum_u M_uv(k)        e'_uv(i, j) = e_uv(i, j) - M_uv(j) - M_vu(i)

and for any messages  sum_v min c'_v + sum_uv min e'_uv  bounds every choice from below: it is a
dual solution of the linear relaxation. Every step of a sweep can only raise it.

Source: Kolmogorov, A new look at reweighted message passing, IEEE TPAMI 37(5), 2015 (SRMP).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .problem import Edge, Floats

Sides = list[list[tuple[int, int]]]
EdgeMessages = Sequence[tuple[Floats, Floats] | None]  # per edge: into its ends u and v


@dataclass(frozen=True, slots=True)
class Swept:
    """Result: bound, a choice and its cost, and the slack of every option above the bound."""

    bound: float
    choice: tuple[int, ...]
    cost: float
    slack: tuple[Floats, ...]
    messages: EdgeMessages


class Sweeps:
    """TRW-S on one pairwise problem."""

    def __init__(
        self,
        node_cost: Sequence[Floats],
        edges: Sequence[Edge],
        start: EdgeMessages | None = None,
    ) -> None:
        scale = _forbidden(node_cost, edges)
        self.costs = [np.minimum(c, scale) for c in node_cost]
        self.pairs = [(e.u, e.v) for e in edges]
        self.tables = [np.minimum(e.cost, scale) for e in edges]
        self.exact_costs, self.exact_edges = node_cost, edges
        # ahead[v]: (edge, is v its first end) towards later nodes; behind[v]: earlier ones
        self.ahead: list[list[tuple[int, int]]] = [[] for _ in node_cost]
        self.behind: list[list[tuple[int, int]]] = [[] for _ in node_cost]
        for n, (u, v) in enumerate(self.pairs):
            self.ahead[min(u, v)].append((n, 0 if u < v else 1))
            self.behind[max(u, v)].append((n, 1 if u < v else 0))
        # message[side][n] is the message of edge n into its end `side`
        self.message = [
            [np.zeros(t.shape[0]) for t in self.tables],
            [np.zeros(t.shape[1]) for t in self.tables],
        ]
        # mass[v] is c'_v: the node's cost and all messages into it
        self.mass = [c.copy() for c in self.costs]
        if start is not None:
            self._resume(start)
        self.share = [
            1.0 / max(len(a), len(b), 1) for a, b in zip(self.ahead, self.behind, strict=True)
        ]

    def _resume(self, start: EdgeMessages) -> None:
        """Continues from known messages; those of another size are left out."""
        for n, known in enumerate(start):
            u, v = self.pairs[n]
            if known is None or (len(known[0]), len(known[1])) != self.tables[n].shape:
                continue
            self.message[0][n], self.message[1][n] = known[0].copy(), known[1].copy()
            self.mass[u] += known[0]
            self.mass[v] += known[1]

    def messages(self) -> EdgeMessages:
        """Messages by edge, to resume from."""
        return list(zip(self.message[0], self.message[1], strict=True))

    def _pass(self, order: Sequence[int], inward: Sides, outward: Sides) -> None:
        """At each node: draw in what the edges behind can give, hand it to the edges ahead."""
        for v in order:
            mass = self.mass[v]
            for n, side in inward[v]:
                table = self.tables[n] if side == 1 else self.tables[n].T
                drawn = (table - self.message[1 - side][n][:, None]).min(axis=0)
                mass += drawn - self.message[side][n]
                self.message[side][n] = drawn
            if not outward[v]:
                continue
            handed = mass * self.share[v]
            for n, side in outward[v]:
                self.message[side][n] = self.message[side][n] - handed
            mass -= handed * len(outward[v])

    def sweep(self) -> None:
        """One pass over the nodes and back."""
        order = range(len(self.costs))
        self._pass(order, self.behind, self.ahead)
        self._pass(order[::-1], self.ahead, self.behind)

    def bound(self) -> tuple[float, tuple[Floats, ...]]:
        """Lower bound and, for every option, a bound on how far above it any choice with it is."""
        total = 0.0
        slack: list[Floats] = []
        for v in range(len(self.costs)):
            here = self.mass[v]
            low = float(here.min())
            total += low
            slack.append(here - low)
        for n, (u, v) in enumerate(self.pairs):
            left = self.tables[n] - self.message[0][n][:, None] - self.message[1][n][None, :]
            low = float(left.min())
            total += low
            slack[u] += left.min(axis=1) - low
            slack[v] += left.min(axis=0) - low
        return total, tuple(slack)

    def round(self) -> tuple[tuple[int, ...], float]:
        """A choice: nodes in order, each the best given the earlier ones and the messages."""
        choice = [0] * len(self.costs)
        for v in range(len(self.costs)):
            total = self.mass[v].copy()
            for n, side in self.behind[v]:
                u = self.pairs[n][1 - side]
                table = self.tables[n] if side == 0 else self.tables[n].T
                total += table[:, choice[u]] - self.message[side][n]
            choice[v] = int(np.argmin(total))
        return tuple(choice), self.price(choice)

    def price(self, choice: Sequence[int]) -> float:
        """Exact cost of a choice."""
        total = sum(float(c[k]) for c, k in zip(self.exact_costs, choice, strict=True))
        return total + sum(float(e.cost[choice[e.u], choice[e.v]]) for e in self.exact_edges)


def _forbidden(node_cost: Sequence[Floats], edges: Sequence[Edge]) -> float:
    """Stands for infinity inside sweeps: above any sum of finite costs, or nearly.

    Infinities would subtract to nothing; a number that is too large would drown small costs.
    """
    finite: list[float] = [0.0]
    for array in {id(a): a for a in (*node_cost, *(e.cost for e in edges))}.values():
        good = array[np.isfinite(array)]
        if good.size:
            finite.append(float(np.abs(good).max()))
    return max(finite) * (len(node_cost) + 1) if len(node_cost) < 1000 else max(finite) * 1000


def sweep_until(
    node_cost: Sequence[Floats],
    edges: Sequence[Edge],
    *,
    sweeps: int,
    deadline: float,
    tolerance: float = 1e-6,
    start: EdgeMessages | None = None,
    known: Sequence[int] | None = None,
) -> Swept:
    """Sweeps until bound and choice meet, progress ends, or a limit is reached.

    Args:
        node_cost: per node.
        edges: pair costs.
        sweeps: at most so many.
        deadline: of `time.monotonic()`.
        tolerance: relative gap at which to stop.
        start: messages to resume from.
        known: a choice to beat.
    """
    state = Sweeps(node_cost, edges, start)
    best, best_cost = state.round()
    if known is not None and (cost := state.price(known)) <= best_cost:
        best, best_cost = tuple(known), cost
    bound, slack = state.bound()
    stale = 0
    for n in range(sweeps):
        if best_cost - bound <= tolerance * abs(best_cost) or stale >= 12:
            break
        if time.monotonic() > deadline:
            break
        state.sweep()
        if n % 3 == 2:
            choice, cost = state.round()
            now, now_slack = state.bound()
            grew = now > bound + 0.02 * max(best_cost - bound, 0.0)
            stale = 0 if grew or cost < best_cost else stale + 1
            if cost < best_cost:
                best, best_cost = choice, cost
            if now > bound:
                bound, slack = now, now_slack
    return Swept(bound, best, best_cost, slack, state.messages())
