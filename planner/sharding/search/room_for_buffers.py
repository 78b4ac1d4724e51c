"""Plans that fit with their transient buffers, which are not in the objective of the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from ...solver.problem import IntraSolution
from ...solver.solve import SolveOptions
from ..problem.build import Builder
from ..problem.records import Built, Limits
from ..problem.restricted import Within, like
from .context import Candidate

# How often the limit is lowered, bytes are reserved, and transient buffers capped.
TIGHTENINGS, ASIDES, NARROWINGS = 3, 4, 4
WATCHED = 3  # moments added at a time, in programs that watch only some
SMALL_EXCESS, SHARE_OF_EXCESS, STEEPEST, LEAST_STEP = 0.1, 0.5, 0.7, 3e-3
# Largest slow-down of a plan that fits, against one that does not, which ends the search.
NEAR = 5e-3


class OnMesh(Protocol):
    """What `RoomForBuffers` calls of the search on one mesh."""

    def with_room(self, room_bytes: float) -> Builder: ...
    def build(self, limits: Limits, builder: Builder | None = None) -> Within: ...
    def solve(self, left: Within, limit: float, options: SolveOptions) -> IntraSolution: ...
    def of(
        self, name: str, built: Built, solution: IntraSolution, builder: Builder | None = None
    ) -> Candidate: ...


class _Fitting(NamedTuple):
    """A plan that fits with its buffers, the problem it solves and the limit there [bytes]."""

    plan: Candidate
    left: Within
    limit: float


class RoomForBuffers:
    """Plans on one mesh within the memory limit of a device.

    Args:
        search: the search on the mesh.
        limit: memory limit of a device [bytes].
    """

    def __init__(self, search: OnMesh, limit: float) -> None:
        self.search, self.limit = search, limit

    def fitting(
        self, name: str, limits: Limits, left: Within, first: Candidate, options: SolveOptions,
        further: SolveOptions | None = None,
    ) -> Candidate | None:  # fmt: skip
        """A plan that fits, if transient buffers of the first plan exceed the limit.

        They are not in the objective. First reshards take paths without buffers larger than their
        ends, and excess bytes are reserved; then, for a small excess, the limit is lowered by it;
        else reshards may not pass a buffer as large as the largest excessive one, until a plan
        fits; at last the limit is lowered by the whole excess.

        Args:
            name: of the plan.
            limits: on ops and values.
            left: the problem of the first plan.
            first: a plan that does not fit.
            options: of the solves that look for one that does.
            further: of a last solve of the problem whose plan is the fastest, where it is not as
                fast as the first plan; None for no such solve.
        """
        fitting = self._found(name, limits, left, first, options)
        found = min(fitting, key=lambda f: f.plan.account.step_s, default=None)
        if found is None or further is None or self._near(found, first):
            return found and found.plan
        further = replace(further, start=found.left.lowered(found.plan.solution.choice))
        plan = self._solved(name, found.left, found.limit, further, found.plan.builder)
        if plan is None or plan.account.peak_bytes > self.limit * (1 + 1e-9):
            return found.plan
        return min(found.plan, plan, key=lambda c: c.account.step_s)

    def _near(self, found: _Fitting, first: Candidate) -> bool:
        return found.plan.account.step_s <= first.account.step_s * (1 + NEAR)

    def _found(
        self, name: str, limits: Limits, left: Within, first: Candidate, options: SolveOptions
    ) -> list[_Fitting]:
        """Plans that fit, as many as are needed until one is near the first plan."""
        limit, sums = self.limit, first.account
        excess, near = sums.peak_bytes - limit, (left, first)
        if sums.passing_bytes > sums.ends_bytes:
            near = self._narrowed(name, limits, float(sums.ends_bytes), options) or near
        beside = self._beside(name, limits, *near, options)
        if beside is not None and self._near(beside, first):
            return [beside]
        fitting = [beside] if beside is not None else []
        if excess <= limit * SMALL_EXCESS:
            under = self._under(name, left, limit - self._step(excess), options)
            if under is not None:
                return [*fitting, under]
        fitting.extend(self._narrower(name, limits, first, options))
        if not fitting and excess > limit * SMALL_EXCESS:  # partial results wait
            under = self._under(name, left, limit - self._step(excess), options)
            return [under] if under is not None else []
        return fitting

    def _narrower(
        self, name: str, limits: Limits, first: Candidate, options: SolveOptions
    ) -> Iterator[_Fitting]:
        """Plans that fit, under caps on transient buffers."""
        limit, widest = self.limit, first.account.passing_bytes
        over = first.account.peak_bytes - limit
        for _ in range(NARROWINGS):
            if widest < SHARE_OF_EXCESS * over:
                return  # the excess does not come from transient buffers
            narrowed = self._narrowed(name, limits, widest - 1.0, options)
            if narrowed is None:
                return
            narrow, found = narrowed
            over = found.account.peak_bytes - limit
            if over <= limit * 1e-9:
                yield _Fitting(found, narrow, limit)
                return
            if over <= limit * SMALL_EXCESS:
                given = limit - self._step(over)
                tight = self._under(name, narrow, given, options, found.builder)
                if tight is not None:
                    yield tight
            widest = min(found.account.passing_bytes, widest - 1)

    def _narrowed(
        self, name: str, limits: Limits, room_bytes: float, options: SolveOptions
    ) -> tuple[Within, Candidate] | None:
        """A plan under a cap on transient buffers [bytes], and its problem."""
        builder = self.search.with_room(room_bytes)
        left = self.search.build(limits, builder)
        found = self._solved(name, left, self.limit, options, builder)
        return None if found is None else (left, found)

    def _solved(
        self, name: str, left: Within, limit: float, options: SolveOptions,
        builder: Builder | None = None,
    ) -> Candidate | None:  # fmt: skip
        """The plan of a problem under a limit [bytes]; None if none is found."""
        solution = self.search.solve(left, limit, options)
        return self.search.of(name, left.built, solution, builder) if solution.choice else None

    def _beside(
        self, name: str, limits: Limits, left: Within, found: Candidate, options: SolveOptions
    ) -> _Fitting | None:
        """A plan that fits with its transient buffers: with the same strategies, else with any."""
        near = self.search.build(like(found.built, found.solution.choice, limits), found.builder)
        proving = replace(options, budget=replace(options.budget, exact=True))

        def with_the_same(below_s: float) -> _Fitting | None:
            same = self._aside(name, near, found, proving, below_s)
            return same and same._replace(left=left.beside(dict(same.left.aside)))

        near_s = found.account.step_s * (1 + NEAR)
        same = with_the_same(near_s)
        if same is not None and same.plan.account.step_s <= near_s:
            return same
        other = self._aside(name, left, found, options)
        same = same or with_the_same(other.plan.account.step_s if other else float("inf"))
        both = (f for f in (same, other) if f is not None)
        return min(both, key=lambda f: f.plan.account.step_s, default=None)

    def _aside(
        self, name: str, left: Within, found: Candidate, options: SolveOptions,
        below_s: float = float("inf"),
    ) -> _Fitting | None:  # fmt: skip
        """A plan that fits, with bytes reserved at the moments that exceeded the limit.

        None if there is none, or none is below `below_s`.
        """
        options = replace(options, cutoff=min(options.cutoff, below_s))
        aside: dict[int, float] = {}
        given = left
        for _ in range(ASIDES):
            memory = found.account.memory
            worst = np.argsort(-memory, kind="stable")
            over = worst[memory[worst] > self.limit * (1 + 1e-9)]
            if not len(over):
                return _Fitting(found, given, self.limit)
            passing = memory - left.built.live_intervals.memory(found.solution.choice)
            for t in over.tolist() if left.built.moments is None else over[:WATCHED].tolist():
                aside[t] = max(aside.get(t, 0.0), float(passing[t]))
            given = left.beside(aside)
            other = self._solved(name, given, self.limit, options, found.builder)
            if other is None or other.solution.bound >= below_s:
                return None
            found = other
        fits = found.account.peak_bytes <= self.limit * (1 + 1e-9)
        return _Fitting(found, given, self.limit) if fits else None

    def _step(self, over: float) -> float:
        """Reduction of the limit for a plan that exceeds it by `over` [bytes]."""
        return max(over * 1.05, over + LEAST_STEP * self.limit)

    def _under(
        self, name: str, left: Within, given: float, options: SolveOptions,
        builder: Builder | None = None,
    ) -> _Fitting | None:  # fmt: skip
        """A plan that fits, found under a limit that is tightened step by step."""
        for _ in range(TIGHTENINGS):
            found = self._solved(name, left, given, options, builder)
            if found is None:
                break
            over = found.account.peak_bytes - self.limit
            if over <= self.limit * 1e-9:
                return _Fitting(found, left, given)
            given = max(given - self._step(over), given * STEEPEST)
        return None
