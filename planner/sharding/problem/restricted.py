"""A problem with only some of the options: pins, and the rules of hand-written plans.

Rows and columns of the built arrays are selected, so that a program is built once per mesh.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ir import FactorSpec, Strategy

from ...solver.problem import Edge, Floats, Hidden, IntraProblem, IntraSolution, Work
from ...solver.tables import Table, some
from .axis_classes import AxisClasses
from .facts import Facts
from .records import Built, Limits

Ints = NDArray[np.intp]


@dataclass
class Cuts:
    """Selections of arrays, memoised: solvers compare equal arrays by identity."""

    _arrays: dict[Hashable, Floats] = field(default_factory=dict[Hashable, Floats])
    _kept: dict[bytes, Ints] = field(default_factory=dict[bytes, Ints])
    _some: dict[int, bool] = field(default_factory=dict[int, bool])
    _held: list[Table] = field(default_factory=list[Table])  # keeps their ids unique

    def kept(self, options: Sequence[int]) -> Ints:
        """Indices of options, one object for equal ones."""
        array = np.array(options, dtype=np.intp)
        return self._kept.setdefault(array.tobytes(), array)

    def part(self, array: Table, *kept: Ints | None) -> Floats:
        """Rows (and columns) of a table; None keeps all."""
        key = (id(array), *map(id, kept))
        if key not in self._arrays:
            self._arrays[key] = some(array, *kept)
            self._held.append(array)
        return self._arrays[key]

    def numbered(self, classes: Ints, kept: Ints) -> Ints:
        """Classes of the options kept, numbered anew without gaps; one object for equal ones."""
        _, found = np.unique(classes[kept], return_inverse=True)
        return self._kept.setdefault(found.tobytes(), found)

    def costs(self, array: Floats) -> bool:
        """Whether an array has an entry that is not zero."""
        if id(array) not in self._some:
            self._some[id(array)] = bool(array.any())
            self._held.append(array)
        return self._some[id(array)]


@dataclass(frozen=True)
class Within:
    """A built problem with the options that each of its nodes may take; None: all.

    aside: moment -> bytes reserved then.
    """

    built: Built
    kept: tuple[Ints | None, ...]
    cuts: Cuts
    aside: tuple[tuple[int, float], ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for problems with the same options, of one built problem and the same `cuts`."""
        return tuple(map(id, self.kept))

    @property
    def possible(self) -> bool:
        """Whether every node has an option."""
        return all(k is None or len(k) for k in self.kept)

    def watching_also(self, moments: Iterable[int]) -> Within:
        """The problem with memory watched at these moments too."""
        return replace(self, built=self.built.watching_also(moments))

    def beside(self, aside: Mapping[int, float]) -> Within:
        """The problem with bytes reserved at some moments."""
        return replace(self.watching_also(aside), aside=tuple(sorted(aside.items())))

    def problem(self, limit: float) -> IntraProblem:
        """The restricted problem under a limit; reserved bytes are nodes with one option."""
        found = self._cut(limit)
        if not self.aside:
            return found
        watched, one = self.built.moments, (np.zeros(1),) * len(self.aside)
        at = [t if watched is None else watched.index(t) for t, _ in self.aside]
        return replace(
            found,
            node_cost=(*found.node_cost, *one),
            usage=(*found.usage, *(np.array([size]) for _, size in self.aside)),
            intervals=(*found.intervals, *((t, t + 1) for t in at)),
        )

    def _cut(self, limit: float) -> IntraProblem:
        whole, part = self.built.problem, self.cuts.part
        kept = (*self.kept, *(self.kept[n] for n in self.built.followed))
        if all(k is None for k in kept):
            return replace(whole, limit=limit)
        return IntraProblem(
            tuple(part(c, k) for c, k in zip(whole.node_cost, kept, strict=True)),
            tuple(self._edges(kept)),
            tuple(part(u, k) for u, k in zip(whole.usage, kept, strict=True)),
            whole.intervals, limit,
            tuple(Work(x.node, x.window, part(x.seconds, kept[x.node])) for x in whole.work),
        )  # fmt: skip

    def _edges(self, kept: Sequence[Ints | None]) -> Iterator[Edge]:
        """The edges that cost anything."""
        for e in self.built.problem.edges:
            cost, hidden = self.cuts.part(e.table, kept[e.u], kept[e.v]), e.hidden
            if self.cuts.costs(cost):
                if hidden is not None:
                    seconds = self.cuts.part(hidden.table, kept[e.u], kept[e.v])
                    hidden = Hidden(hidden.window, seconds)
                yield Edge(e.u, e.v, cost, hidden)

    def lifted(self, found: IntraSolution) -> IntraSolution:
        """A solution of the restricted problem as one of the whole."""
        if not found.choice:
            return found
        kept = (*self.kept, *(self.kept[n] for n in self.built.followed))
        mine = found.choice[: len(kept)]
        choice = tuple(c if k is None else int(k[c]) for c, k in zip(mine, kept, strict=True))
        return replace(found, choice=choice)

    def lowered(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice of the whole problem as one of the restricted; empty if not allowed."""
        found: list[int] = []
        for c, k in zip(choice[: len(self.kept)], self.kept, strict=True):  # followers follow
            at = c if k is None else int(np.searchsorted(k, c))
            if k is not None and (at == len(k) or k[at] != c):
                return ()
            found.append(at)
        return self.followed(found)

    def followed(self, found: Sequence[int]) -> tuple[int, ...]:
        """A restricted choice with that of followers and reserved bytes; empty if the choice is."""
        own, reserved = found[: len(self.kept)], (0,) * len(self.aside)
        return (*own, *(own[n] for n in self.built.followed), *reserved) if len(own) else ()

    def classes(self, axes: AxisClasses) -> tuple[Ints, ...]:
        """Class of every option of each node of the restricted problem, numbered without gaps."""
        own = [
            each if k is None else self.cuts.numbered(each, k)
            for each, k in zip(map(axes.of, self.built.refs), self.kept, strict=True)
        ]
        reserved = (self.cuts.kept([0]),) * len(self.aside)
        return (*own, *(own[n] for n in self.built.followed), *reserved)

    def least_peak(self) -> float:
        """The peak when every node takes the allowed option that uses least memory."""
        live_intervals = self.built.live_intervals
        usage = tuple(
            self.cuts.part(u, k) for u, k in zip(live_intervals.usage, self.kept, strict=True)
        )
        held = tuple(
            (n, a, b, self.cuts.part(u, self.kept[n])) for n, a, b, u in live_intervals.held
        )
        return replace(live_intervals, usage=usage, held=held).least_peak()


def within(built: Built, facts: Facts, limits: Limits, cuts: Cuts) -> Within:
    """Restricts a problem by limits, which must treat all members of a class alike."""
    kept: list[Ints | None] = [None] * len(built.refs)
    if limits.op is not None:
        places: dict[tuple[int, int], Ints | None] = {}
        held: list[tuple[Strategy, ...]] = []  # keeps their ids unique
        for n, ref in enumerate(built.refs):
            if ref.op < 0:
                continue
            menu = limits.op(ref.op, facts.spec(facts.flat.ops[ref.op]), ref.menu)
            key = (id(ref.menu), id(menu))
            if key not in places:
                held.append(menu)
                place = {id(s): k for k, s in enumerate(ref.menu)}
                options = [place[id(s)] for s in menu]
                places[key] = None if len(options) == len(place) else cuts.kept(options)
            kept[n] = places[key]
    if limits.state is not None:
        for n, v in _places(built, facts, limits.values):
            states = built.refs[n].states
            options = [k for k, s in enumerate(states) if limits.state(v, s)]
            kept[n] = None if len(options) == len(states) else cuts.kept(options)
    return Within(built, tuple(kept), cuts)


def like(built: Built, choice: Sequence[int], limits: Limits) -> Limits:
    """Limits that fix the strategy of every op to a choice's, with `limits` on values."""

    def allowed(i: int, _spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        node = built.op_node[i]
        roles = built.refs[node].menu[choice[node]].roles
        return tuple(s for s in menu if s.roles == roles)

    return replace(limits, op=allowed)


def _places(built: Built, facts: Facts, values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(node, its value in `Limits.state`) of arguments, ports, results and `values`."""
    flat = facts.flat
    ports = (
        v for v, value in enumerate(flat.values) if value.kind == "port" and v not in flat.stacked
    )
    seen: set[int] = set()
    for v in (*flat.inputs, *ports, *(v for v in values if v in built.value_node)):
        node = built.value_node[v]
        if node not in seen:
            seen.add(node)
            yield node, v
    for position, node in built.out_node.items():
        if position not in facts.tied_in and node not in seen:
            seen.add(node)
            yield node, -1 - position
