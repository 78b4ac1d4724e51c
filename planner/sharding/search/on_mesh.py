"""The search on one mesh shape: builds and solves the problem."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel import ReshardModel
from ir import Mesh

from ...common.stop import Stop
from ...solver.cached import solved
from ...solver.exact.bucket_elimination import Tables
from ...solver.options import FURTHER, GLIMPSE, MOMENTS, REFINED, ROUGH, ROUGH_AGAIN
from ...solver.problem import IntraSolution
from ...solver.reduce.reduction_cache import ReductionCache
from ...solver.solve import SolveOptions, solve
from ..lower import Decided
from ..problem.axis_classes import AxisClasses
from ..problem.build import Builder
from ..problem.in_flight import with_in_flight
from ..problem.records import Built, Limits, MenuCache
from ..problem.reshard_seconds import Reshards
from ..problem.restricted import Cuts, Within, within
from .context import Candidate, Scope
from .mesh_refinement import coarsened, joined, refined
from .pinned import blocked, wished
from .room_for_buffers import WATCHED, RoomForBuffers


class MeshSearch:
    """The search on one mesh."""

    def __init__(self, scope: Scope, mesh: Mesh, cache: MenuCache | None = None) -> None:
        self.scope, self.mesh = scope, mesh
        # no buffer may be larger than the memory limit
        reshard = ReshardModel(scope.request.machine, mesh, scope.collectives, scope.limit)
        self.builder = self._builder(cache or scope.menus.on(reshard, scope.compute))
        self.axes = AxisClasses(self.builder.cache)
        self.others: dict[float, Builder] = {}
        self.built: dict[float, Built] = {}
        self.cuts, self.tables, self.reductions = Cuts(), Tables(), ReductionCache()

    @property
    def room(self) -> RoomForBuffers:
        """The search for plans that fit with their transient buffers."""
        return RoomForBuffers(self, self.scope.limit)

    def _builder(self, cache: MenuCache) -> Builder:
        program, options = self.scope.program, self.scope.request.options
        return Builder(
            program.facts, cache, self.scope.limit, program.outline,
            overlap=options.overlap, in_parts=options.in_parts,
        )  # fmt: skip

    def with_room(self, room_bytes: float) -> Builder:
        """A builder with a cap on transient buffers [bytes]; menus and states are shared."""
        if room_bytes == self.room_bytes:
            return self.builder
        if room_bytes not in self.others:
            cache = self.builder.cache
            reshard = cache.reshard.with_room(room_bytes)
            self.others[room_bytes] = self._builder(
                replace(cache, reshard=reshard, edges=dict[object, Reshards]())
            )
        return self.others[room_bytes]

    def build(self, limits: Limits, builder: Builder | None = None) -> Within:
        """The problem within limits; the problem itself is built once."""
        start = time.monotonic()
        builder = builder or self.builder
        room_bytes = builder.cache.reshard.room_bytes
        if room_bytes not in self.built:
            built, buffers = builder.build(), self.scope.program.in_flight_buffers
            self.built[room_bytes] = with_in_flight(builder, built, buffers) if buffers else built
        built = self.built[room_bytes] = self.built[room_bytes].watching_also(self.scope.moments)
        left = within(built, builder.facts, limits, self.cuts)
        self.scope.seconds["build"] += time.monotonic() - start
        return left

    def solve(self, left: Within, limit: float, options: SolveOptions) -> IntraSolution:
        """Solves under a memory limit; moments that exceed it are watched from then on.

        Quick solves find more of these moments, once there are some.
        """
        start, bound = time.monotonic(), 0.0
        some = left.built.moments is not None and np.isfinite(limit)
        quick = False
        while True:
            left_s = max(self.scope.deadline - time.monotonic(), 1.0)
            budget = MOMENTS if quick else options.budget
            options = replace(options, time_limit_s=left_s, work=self.scope.work)
            answer = left.lifted(self._answer(left, limit, replace(options, budget=budget)))
            bound = max(bound, answer.bound)  # fewer moments allow more plans
            over = self._over(left.built, answer, limit) if some else set[int]()
            if answer.stop is Stop.INTERRUPTED or not (over or quick):
                break
            quick = bool(over)
            self.scope.moments |= over
            left = left.watching_also(over)
            known = answer.multipliers or options.multipliers
            options = replace(options, start=left.followed(options.start), multipliers=known)
        self.scope.seconds["solve"] += time.monotonic() - start
        if answer.stop is Stop.INTERRUPTED:
            self.scope.note(answer.stop)
        return replace(answer, bound=min(bound, answer.cost))

    def _over(self, built: Built, answer: IntraSolution, limit: float) -> set[int]:
        """The worst moments at which a choice exceeds the limit, of those that are not watched.

        One of each stretch of such moments.
        """
        if not answer.choice:
            return set()
        memory = built.live_intervals.memory(answer.choice)
        over = np.flatnonzero(memory > limit * (1 + 1e-9))
        stretches = np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []
        worst = sorted((int(t[np.argmax(memory[t])]) for t in stretches), key=lambda t: -memory[t])
        return {*worst[:WATCHED]} - {*(built.moments or ())}

    def _answer(self, left: Within, limit: float, options: SolveOptions) -> IntraSolution:
        problem = left.problem(limit)
        watch = self.scope.watch(self.mesh, problem)
        classes = left.classes(self.axes) if self.axes.some else None
        return solved(
            self.scope.memory, problem, options, self.scope.request.options.time_limit_s,
            lambda: solve(problem, options, self.tables, watch, self.reductions, classes),
        )  # fmt: skip

    def _wished(self, limits: Limits | None = None) -> Limits:
        """The pins and forbidden dimensions, with further limits on ops."""
        return wished(self.scope.program.wishes, self.builder.flat, self.mesh, limits)

    def _note_blocked(self, left: Within) -> None:
        for name in blocked(self.scope.program.wishes, self.builder.flat, left):
            self.scope.blocked.setdefault(name, str(self.mesh))

    def of(
        self, name: str, built: Built, solution: IntraSolution, builder: Builder | None = None
    ) -> Candidate:
        builder = builder or self.builder
        return Candidate(name, Decided(builder, built, solution.choice), solution)

    def best(
        self, known: Sequence[Candidate] = (), cutoff: float = float("inf"), gap: float = 0.0
    ) -> tuple[list[Candidate], float]:
        """The best plan on this mesh, if one fits, and a bound for all of them.

        The bound is that of the first solve, under the whole limit; later solves only make room for
        transient buffers. Where they find none that fits, the fastest known plan is taken.

        known: plans that fit, also of coarser meshes.
        cutoff: step above which the mesh is given up as soon as its bound shows it [s].
        gap: sufficient gap, where it is above that of the effort.
        """
        wished = self._wished()
        left = self.build(wished)
        if not left.possible:
            self._note_blocked(left)
            return [], float("inf")
        given = self._given(left, known)
        start = left.lowered(given) if given else ()
        first = self.scope.first
        tolerance = max(first.tolerance, gap)
        begin = self.scope.multipliers
        if gap:  # choices between windows, and proofs, are left to the finest meshes
            budget = replace(first.budget, combined_columns=0.0, exact_if_memory_binds=False)
            first = replace(first, budget=budget)
        first = replace(first, cutoff=cutoff, start=start, tolerance=tolerance, multipliers=begin)
        solution = self.solve(left, self.scope.limit, first)
        self.scope.multipliers = multipliers = solution.multipliers or begin
        self.reductions.forget()
        self.scope.note(solution.stop)
        if float("inf") > cutoff <= solution.bound:
            self.scope.beaten = True
            return [], solution.bound
        if not solution.choice:
            self.scope.least.append(left.least_peak())
            return self._as_given(left, given, solution, cutoff), solution.bound
        found = self.of("search", left.built, solution)
        if found.account.peak_bytes > self.scope.limit:
            self.scope.least.append(left.least_peak())
            if solution.stop is Stop.INTERRUPTED:
                return self._as_given(left, given, solution, cutoff), solution.bound
            options = replace(REFINED, cutoff=cutoff, multipliers=multipliers)
            further = replace(options, budget=FURTHER, interruptible=first.interruptible)
            fitting = self.room.fitting(
                "search", wished, left, found, options,
                further if not gap and first.budget.exact else None,
            )  # fmt: skip
            some = self._as_given(left, given, solution, cutoff)
            some += [] if fitting is None else [fitting]
            return sorted(some, key=lambda one: one.account.step_s)[:1], solution.bound
        return [found], solution.bound

    def _as_given(
        self, left: Within, given: Sequence[int], solution: IntraSolution, cutoff: float
    ) -> list[Candidate]:
        """The plan of a choice on this mesh, if there is one that fits and is below a step [s].

        A known plan of a coarser mesh may fit where none of those does that the solver finds in a
        finer one, whose transient buffers it does not know.
        """
        if not given:
            return []
        found = self.of("search", left.built, replace(solution, choice=tuple(given)))
        account = found.account
        fits = account.peak_bytes <= self.scope.limit * (1 + 1e-9)
        return [found] if fits and account.step_s < cutoff else []

    def glimpse(self) -> float:
        """A quick lower bound for all plans on this mesh [s], by which meshes are sorted.

        Once the time limit is over it is 0.
        """
        if self.scope.out_of_time:
            return 0.0
        left = self.build(self._wished())
        if not left.possible:
            return float("inf")
        start = time.monotonic()
        options = replace(GLIMPSE, multipliers=self.scope.multipliers, work=self.scope.work)
        bound = self._answer(left, self.scope.limit, options).bound
        self.scope.seconds["solve"] += time.monotonic() - start
        return bound

    def _given(self, left: Within, known: Sequence[Candidate]) -> tuple[int, ...]:
        """The choice of the fastest of the plans that this mesh can represent, if any is left."""
        for other in sorted(known, key=lambda c: c.account.step_s):
            places = joined(self.mesh.sizes, other.mesh.sizes)
            if places is not None and other.builder.cache.reshard.room_bytes == self.room_bytes:
                groups = tuple(tuple(self.mesh.names[a] for a in group) for group in places)
                names, choice = other.mesh.names, other.solution.choice
                choice = refined(other.built, choice, left.built, names, groups)
                if choice is not None and left.lowered(choice):
                    return choice
        return ()

    def rough(
        self,
        limits: Limits | None = None,
        cutoff_s: float = float("inf"),
        multipliers: tuple[tuple[int, float], ...] = (),
    ) -> Candidate | None:
        """A good plan within limits on ops and the user's wishes, without a proof; None if none.

        Args:
            limits: on ops.
            cutoff_s: step below which plans are wanted; the search ends when there are none [s].
            multipliers: of windows, of the plan of a similar program on this mesh.
        """
        left = self.build(self._wished(limits))
        if not left.possible:
            return None
        options = ROUGH_AGAIN if multipliers else ROUGH
        options = replace(options, multipliers=multipliers, cutoff=cutoff_s)
        solution = self.solve(left, self.scope.limit, options)
        return self.of("search", left.built, solution) if solution.choice else None

    def re_expressed(self, other: Candidate) -> Candidate | None:
        """A plan of a finer mesh re-expressed on this one; None if this mesh cannot represent it.

        It must cost the same: its account is computed on this mesh.
        """
        places = joined(other.mesh.sizes, self.mesh.sizes)
        if places is None or other.builder.cache.reshard.room_bytes != self.room_bytes:
            return None
        groups = tuple(tuple(other.mesh.names[a] for a in group) for group in places)
        built = self.build(Limits()).built
        choice = coarsened(other.built, other.solution.choice, built, self.mesh.names, groups)
        if choice is None:
            return None
        found = self.of(other.name, built, replace(other.solution, choice=choice))
        return found if found.account.step_s <= other.account.step_s * (1 + 1e-9) else None

    @property
    def room_bytes(self) -> float:
        """Largest transient buffer of a reshard [bytes], if no bytes are reserved."""
        return self.builder.cache.reshard.room_bytes
