"""Prices of the hand-written plans, on one mesh and over all.

A plan that exceeds the memory limit is made to fit only once all meshes are known: its step without
a limit is a lower bound, which often is above the step of the same plan on another mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ir import Sharding

from ...solver.options import COMBINED, ROUGH
from ...solver.solve import SolveOptions
from ..problem.records import Limits
from ..problem.restricted import Within
from .baselines import Baseline, Recipes
from .context import Candidate
from .on_mesh import MeshSearch
from .pinned import wished


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """A hand-written plan on a mesh, without a memory limit.

    search: on that mesh.
    names: of the recipes that allow the same.
    limits, left: its limits, and the problem within them.
    found: the best plan within them.
    """

    search: MeshSearch
    names: tuple[str, ...]
    limits: Limits
    left: Within
    found: Candidate

    @property
    def bound_s(self) -> float:
        """Lower bound of the step [s]."""
        return self.found.solution.bound


@dataclass
class HandWritten:
    """The hand-written plans of a search over meshes.

    table: the best mesh of each, by name.
    excessive: those that exceed the memory limit so far.
    """

    table: dict[str, Baseline] = field(default_factory=dict[str, Baseline])
    excessive: list[_Priced] = field(default_factory=list[_Priced])

    def on(self, search: MeshSearch) -> Iterator[Candidate]:
        """Prices those of one mesh, without a memory limit.

        Once the time limit is over, no more are priced, unless one of them is asked for.

        Yields:
            Plans that fit.
        """
        for one in [*self._all_on(search)]:
            if not _fits(search, one.found):
                if one.found.builder is search.builder:
                    self.excessive.append(one)
                continue
            found = self._searched_further(one)
            yield from (replace(found, name=name) for name in one.names)

    def _all_on(self, search: MeshSearch) -> Iterator[_Priced]:
        """Prices the plans of a mesh, each once."""
        scope = search.scope
        machine, options = scope.request.machine, scope.request.options
        one_island = machine.num_devices <= machine.island
        if len(search.mesh.axes) > 2 and one_island:
            return
        maker = Recipes(search.builder, scope.program.kinds, scope.program.roles)
        alike: dict[tuple[int, ...], tuple[Limits, Within, list[str]]] = {}
        for recipe in maker.recipes(every=options.mesh is not None, apart=not one_island):
            limits = _pinned(search, maker.limits(recipe))
            left = search.build(limits)
            alike.setdefault(left.key, (limits, left, []))[2].append(recipe.name)
        for limits, left, each in alike.values():
            names = tuple(each)
            scope.say(f"baseline {', '.join(names)} on {search.mesh}")
            if scope.out_of_time and options.baseline is None:
                scope.late = True
                continue
            one = _priced(search, names, limits, left)
            if one is not None:
                self._note(one, one.found)
                yield one

    def _searched_further(self, one: _Priced) -> Candidate:
        """The plan, searched further if it may be the best hand-written one."""
        if not self._may_be_best(one.bound_s) or one.search.scope.out_of_time:
            return one.found
        again = _solved(one, float("inf"), COMBINED)
        if again is None or not _fits(one.search, again):
            return one.found
        if again.account.step_s >= one.found.account.step_s:
            return one.found
        self._note(one, again)
        return again

    def made_to_fit(self) -> Iterator[Candidate]:
        """Plans that fit of those that exceed the memory limit, where that may pay.

        A plan is left out once its bound is above the step of the same plan on another mesh.
        """
        for one in sorted(self.excessive, key=lambda e: e.bound_s):
            scope = one.search.scope
            if not self._wanted(one.names, one.bound_s):
                continue
            scope.say(f"baseline {', '.join(one.names)} on {one.search.mesh}")
            if scope.out_of_time and scope.request.options.baseline is None:
                scope.late = True
                self._forget(one.names)
                continue
            found = self.made_to_fit_one(one)
            if found is not None:
                self._note(one, found)
                yield from (replace(found, name=name) for name in one.names)

    def leave_unknown(self) -> None:
        """Leaves out of the table those that might be made to fit, once that is not tried."""
        for one in self.excessive:
            self._forget(one.names)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:  # whether they fit is not known
            if name in self.table and not self.table[name].fits:
                del self.table[name]

    def made_to_fit_one(self, one: _Priced) -> Candidate | None:
        """A plan that fits with its transient buffers; None if there is none, or none is wanted.

        Args:
            one: a plan that exceeds the memory limit.
        """
        search, name, limit = one.search, one.names[0], one.search.scope.limit
        if one.left.least_peak() > limit:
            return None
        held = _solved(one, limit, ROUGH)
        if held is not None and not self._wanted(one.names, held.solution.bound):
            return None
        first = held or one.found
        more = self._may_be_best(first.solution.bound) and not search.scope.out_of_time
        further = COMBINED if more else ROUGH
        if not _fits(search, first):
            return search.room.fitting(name, one.limits, one.left, first, further)
        again = _solved(one, limit, COMBINED) if further is COMBINED else None
        both = (first, again) if again is not None and _fits(search, again) else (first,)
        return min(both, key=lambda c: c.account.step_s)

    def _note(self, one: _Priced, found: Candidate) -> None:
        """Keeps the price of a plan, if it is the best of its names."""
        sums, fits = found.account, _fits(one.search, found)
        row = Baseline(sums.step_s, sums.peak_bytes, fits, str(one.search.mesh))
        for name in one.names:
            held = self.table.get(name)
            if held is None or (not row.fits, row.step_s) < (not held.fits, held.step_s):
                self.table[name] = row

    def _wanted(self, names: Iterable[str], bound_s: float) -> bool:
        """Whether a plan that fits may be the best of one of its names."""
        rows = (self.table.get(name) for name in names)
        return any(row is None or not row.fits or bound_s < row.step_s for row in rows)

    def _may_be_best(self, bound_s: float) -> bool:
        """Whether a plan may be the best of all hand-written ones."""
        best_s = min((row.step_s for row in self.table.values() if row.fits), default=0.0)
        return bound_s < best_s * (1 - COMBINED.tolerance)


def best_within(search: MeshSearch, name: str, limits: Limits) -> tuple[Candidate, bool] | None:
    """The best plan within limits on a mesh, and whether it fits in memory; None if there is none.

    Args:
        search: on the mesh.
        name: of the plan.
        limits: on ops and values.
    """
    one = _priced(search, (name,), limits, search.build(limits))
    if one is None or _fits(search, one.found):
        return one and (one.found, True)
    made = HandWritten().made_to_fit_one(one) if one.found.builder is search.builder else None
    return (one.found, False) if made is None else (made, True)


def _fits(search: MeshSearch, found: Candidate) -> bool:
    return found.account.peak_bytes <= search.scope.limit


def _priced(
    search: MeshSearch, names: tuple[str, ...], limits: Limits, left: Within
) -> _Priced | None:
    """The best plan within limits, without a memory limit.

    Buffers may be as large as the memory, and larger where there is no such plan.

    left: the problem within the limits.
    """
    for builder in (search.builder, None):
        if builder is None:
            builder = search.with_room(float("inf"))
            left = search.build(limits, builder)
        if not left.possible:
            return None
        solution = search.solve(left, float("inf"), ROUGH)
        if solution.choice:
            found = search.of(names[0], left.built, solution, builder)
            return _Priced(search, names, limits, left, found)
    return None


def _solved(one: _Priced, limit: float, options: SolveOptions) -> Candidate | None:
    """The best plan under a memory limit [bytes]; None if none is found."""
    search, builder = one.search, one.found.builder
    solution = search.solve(one.left, limit, options)
    if not solution.choice:
        return None
    return search.of(one.names[0], one.left.built, solution, builder)


def _pinned(search: MeshSearch, limits: Limits) -> Limits:
    """The user's pins, instead of the recipe's shardings of the same values."""
    wishes, given = search.scope.program.wishes, limits.state
    asked = wished(wishes, search.builder.flat, search.mesh, limits)

    def state(v: int, sharding: Sharding) -> bool:
        if wishes.speaks_of(v):
            return asked.state is None or asked.state(v, sharding)
        return given is None or given(v, sharding)

    return replace(asked, state=state)
