"""Exact extraction along a tree decomposition: classes are settled one by one.

A table over a few classes (its scope) has an entry for every state of theirs: which are needed,
which of these have their node already, and who needs whom, directly or through settled classes.
To settle a class, the tables that mention it are joined, the nodes that mention it are offered,
and then every needed class that is settled must have its node. Time and memory grow with the
number of states, which is exponential in the width of the decomposition and not in the size of
the e-graph. The order is greedy: the smallest new scope first.

Source: Goharshady, Lam, Parreaux, Fast and Optimal Extraction for Sparse Equality Graphs,
OOPSLA 2024 (states of classes along a tree decomposition).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .egraph import NOTHING, EGraph, Extraction, components, extraction

UNUSED, NEEDED, BUILT = 0, 1, 2
MOST_STATES = 200_000  # entries of one table

# The states of the scope's classes in order, and pairs (c, d) where c needs d in the end.
State = tuple[tuple[int, ...], frozenset[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Least cost of a state, and how it came about: two entries joined, or a node chosen."""

    cost: float
    node: int = -1
    left: _Entry | None = None
    right: _Entry | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    scope: tuple[int, ...]
    entries: Mapping[State, _Entry]


class _TooWideError(Exception):
    """A table would have more than `MOST_STATES` entries."""


def solve_by_decomposition(graph: EGraph, most_states: int = MOST_STATES) -> Extraction | None:
    """The best extraction, or None if a table would exceed `MOST_STATES`."""
    try:
        found = _Solver(graph, most_states).run()
    except _TooWideError:
        return None
    if found is None:
        return NOTHING
    choice = {graph.nodes[i].owner: i for i in _nodes_of(found)}
    return extraction(graph, choice, found.cost, "optimal")


def _nodes_of(entry: _Entry) -> Iterator[int]:
    work: list[_Entry | None] = [entry]
    while work:
        found = work.pop()
        if found is None:
            continue
        if found.node >= 0:
            yield found.node
        work += [found.left, found.right]


class _Solver:
    def __init__(self, graph: EGraph, most_states: int) -> None:
        self.graph, self.most = graph, most_states
        self.part = components(graph)
        self.near: list[set[int]] = [set() for _ in range(graph.classes)]
        for node in graph.nodes:
            bag = {node.owner, *node.children}
            for c in bag:
                self.near[c] |= bag - {c}
        self.offered = [False] * len(graph.nodes)
        self.tables: list[_Table] = []

    def run(self) -> _Entry | None:
        mention: list[list[int]] = [[] for _ in range(self.graph.classes)]
        for i, node in enumerate(self.graph.nodes):
            for c in {node.owner, *node.children}:
                mention[c].append(i)
        left = set(range(self.graph.classes))
        while left:
            c = min(left, key=lambda c: (len(self.near[c]), c))
            left.discard(c)
            self._settle(c, [i for i in mention[c] if not self.offered[i]])
            for d in self.near[c]:
                self.near[d] |= self.near[c] - {d}
                self.near[d].discard(c)
        whole = _Table((), {((), frozenset()): _Entry(0.0)})
        for table in self.tables:
            whole = self._join(whole, table)
        return whole.entries.get(((), frozenset()))

    def _settle(self, c: int, nodes: Sequence[int]) -> None:
        mine = [table for table in self.tables if c in table.scope]
        self.tables = [table for table in self.tables if c not in table.scope]
        scope = (c, *sorted(self.near[c]))
        table = _Table((), {((), frozenset()): _Entry(0.0)})
        for other in sorted(mine, key=lambda t: len(t.entries)):
            table = self._join(table, other)
        table = self._widened(table, scope)
        for i in nodes:
            self.offered[i] = True
            table = self._offered(table, i)
        self.tables.append(_forgotten(table, c))

    def _widened(self, table: _Table, scope: tuple[int, ...]) -> _Table:
        """The table over a larger scope; each class that is new to it may be needed or not."""
        order = table.scope
        entries = dict(table.entries)
        for c in scope:
            if c in order:
                continue
            choices = (NEEDED,) if c in self.graph.roots else (UNUSED, NEEDED)
            order = (*order, c)
            entries = {
                ((*marks, choice), pairs): entry
                for (marks, pairs), entry in entries.items()
                for choice in choices
            }
            self._check(entries)
        return _Table(order, entries)

    def _offered(self, table: _Table, i: int) -> _Table:
        """Every state, and those in which a needed class is also built by node i."""
        node = self.graph.nodes[i]
        at = {c: k for k, c in enumerate(table.scope)}
        own, below = at[node.owner], [at[child] for child in node.children]
        if own in below:
            return table
        inside = [d for d in node.children if self.part[d] == self.part[node.owner]]
        entries = dict(table.entries)
        for (marks, pairs), entry in table.entries.items():
            if marks[own] != NEEDED or any(marks[k] == UNUSED for k in below):
                continue
            closed = _closed(pairs, [(node.owner, d) for d in inside])
            if closed is not None:
                fresh = (*marks[:own], BUILT, *marks[own + 1 :])
                _keep(entries, (fresh, closed), _Entry(entry.cost + node.cost, i, entry))
        self._check(entries)
        return _Table(table.scope, entries)

    def _join(self, a: _Table, b: _Table) -> _Table:
        shared = [c for c in a.scope if c in b.scope]
        from_a = [a.scope.index(c) for c in shared]
        from_b = [b.scope.index(c) for c in shared]
        extra = [k for k, c in enumerate(b.scope) if c not in shared]
        groups: dict[tuple[bool, ...], list[tuple[State, _Entry]]] = {}
        for state, entry in b.entries.items():
            key = tuple(state[0][k] != UNUSED for k in from_b)
            groups.setdefault(key, []).append((state, entry))
        entries: dict[State, _Entry] = {}
        for (marks, pairs), entry in a.entries.items():
            key = tuple(marks[k] != UNUSED for k in from_a)
            for (others, more), other in groups.get(key, ()):
                both = list(marks)
                for k, j in zip(from_a, from_b, strict=True):
                    if marks[k] == others[j] == BUILT:
                        break
                    both[k] = max(marks[k], others[j])
                else:
                    closed = _closed(pairs, sorted(more - pairs))
                    if closed is not None:
                        both += [others[k] for k in extra]
                        cost = entry.cost + other.cost
                        _keep(entries, (tuple(both), closed), _Entry(cost, -1, entry, other))
            self._check(entries)
        return _Table((*a.scope, *(b.scope[k] for k in extra)), entries)

    def _check(self, entries: Mapping[State, _Entry]) -> None:
        if len(entries) > self.most:
            raise _TooWideError


def _keep(entries: dict[State, _Entry], state: State, entry: _Entry) -> None:
    known = entries.get(state)
    if known is None or entry.cost < known.cost:
        entries[state] = entry


def _closed(
    pairs: frozenset[tuple[int, int]], more: Sequence[tuple[int, int]]
) -> frozenset[tuple[int, int]] | None:
    """The transitive closure of both, or None if it has a cycle."""
    if not more:
        return pairs
    found = set(pairs)
    for c, d in more:
        if (c, d) in found:
            continue
        above = [c, *(a for a, b in found if b == c)]
        below = [d, *(b for a, b in found if a == d)]
        found |= {(a, b) for a in above for b in below}
        if any((b, a) in found or a == b for a in above for b in below):
            return None
    return frozenset(found)


def _forgotten(table: _Table, c: int) -> _Table:
    """The table without class c, which must have its node if it is needed."""
    at = table.scope.index(c)
    entries: dict[State, _Entry] = {}
    for (marks, pairs), entry in table.entries.items():
        if marks[at] == NEEDED:
            continue
        rest = frozenset(pair for pair in pairs if c not in pair)
        _keep(entries, ((*marks[:at], *marks[at + 1 :]), rest), entry)
    return _Table((*table.scope[:at], *table.scope[at + 1 :]), entries)
