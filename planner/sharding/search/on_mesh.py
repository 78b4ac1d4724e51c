"""The search on one mesh shape: builds and solves the problem, prices the baselines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel import ReshardModel
from ir import Mesh, Sharding

from ...common.stop import Stop
from ...solver.cached import solved
from ...solver.exact.bucket_elimination import Tables
from ...solver.options import COMBINED, FURTHER, GLIMPSE, REFINED, ROUGH, ROUGH_AGAIN
from ...solver.problem import Floats, IntraSolution
from ...solver.reduce.reduction_cache import ReductionCache
from ...solver.solve import SolveOptions, solve
from ..lower import Decided
from ..problem.axis_classes import AxisClasses
from ..problem.build import Builder
from ..problem.in_flight import with_in_flight
from ..problem.records import Built, Limits, MenuCache
from ..problem.restricted import Cuts, Within, within
from .baselines import Baseline, Recipe, Recipes
from .context import Candidate, Scope
from .mesh_refinement import coarsened, joined, refined
from .pinned import blocked, wished
from .room_for_buffers import RoomForBuffers


class MeshSearch:
    """The search on one mesh."""

    def __init__(self, scope: Scope, mesh: Mesh, cache: MenuCache | None = None) -> None:
        self.scope, self.mesh = scope, mesh
        # no buffer may be larger than the memory limit
        reshard = ReshardModel(scope.request.machine, mesh, scope.collectives, scope.limit)
        self.builder = self._builder(cache or scope.menus.on(reshard, scope.compute))
        self.axes = AxisClasses(self.builder.cache)
        self.room = RoomForBuffers(self, scope.limit)
        self.others: dict[float, Builder] = {}
        self.built: dict[float, Built] = {}
        self.cuts, self.tables, self.reductions = Cuts(), Tables(), ReductionCache()

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
                replace(cache, reshard=reshard, edges=dict[object, Floats]())
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
        """Solves under a memory limit; moments that exceed it are watched from then on."""
        start, bound = time.monotonic(), 0.0
        while True:
            left_s, built = max(self.scope.deadline - time.monotonic(), 1.0), left.built
            options = replace(options, time_limit_s=left_s, work=self.scope.work)
            answer = left.lifted(self._answer(left, limit, options))
            bound = max(bound, answer.bound)  # fewer moments allow more plans
            if built.moments is None or not answer.choice or answer.stop is Stop.INTERRUPTED:
                break
            memory = built.live_intervals.memory(answer.choice)
            worst = int(np.argmax(memory))
            if memory[worst] <= limit * (1 + 1e-9) or worst in built.moments:
                break
            self.scope.moments.add(worst)
            left = left.watching_also({worst})
            known = answer.multipliers or options.multipliers
            options = replace(options, start=left.followed(options.start), multipliers=known)
        self.scope.seconds["solve"] += time.monotonic() - start
        if answer.stop is Stop.INTERRUPTED:
            self.scope.note(answer.stop)
        return replace(answer, bound=min(bound, answer.cost))

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
        transient buffers.

        known: plans that fit, also of coarser meshes.
        cutoff: step above which the mesh is given up as soon as its bound shows it [s].
        gap: sufficient gap, where it is above that of the effort.
        """
        wished = self._wished()
        left = self.build(wished)
        if not left.possible:
            self._note_blocked(left)
            return [], float("inf")
        start = self._start(left, known)
        first = self.scope.first
        tolerance = max(first.tolerance, gap)
        begin = self.scope.multipliers
        if gap:  # the finest meshes look for choices between windows
            first = replace(first, budget=replace(first.budget, combined_columns=0.0))
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
            return [], solution.bound
        found = self.of("search", left.built, solution)
        if found.account.peak_bytes > self.scope.limit:
            self.scope.least.append(left.least_peak())
            if solution.stop is Stop.INTERRUPTED:
                return [], solution.bound
            options = replace(REFINED, cutoff=cutoff, multipliers=multipliers)
            further = replace(options, budget=FURTHER, interruptible=first.interruptible)
            fitting = self.room.fitting(
                "search", wished, left, found, options,
                further if not gap and first.budget.exact else None,
            )  # fmt: skip
            return ([fitting] if fitting is not None else []), solution.bound
        return [found], solution.bound

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

    def _start(self, left: Within, known: Sequence[Candidate]) -> tuple[int, ...]:
        """The fastest of the plans that this mesh can represent, as a choice of the nodes left."""
        for other in sorted(known, key=lambda c: c.account.step_s):
            places = joined(self.mesh.sizes, other.mesh.sizes)
            if places is not None and other.builder.cache.reshard.room_bytes == self.room_bytes:
                groups = tuple(tuple(self.mesh.names[a] for a in group) for group in places)
                names, choice = other.mesh.names, other.solution.choice
                choice = refined(other.built, choice, left.built, names, groups)
                if choice is not None and (start := left.lowered(choice)):
                    return start
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

    def baselines(self, table: dict[str, Baseline]) -> list[Candidate]:
        """Prices the hand-written plans here; the best mesh of each stays in the table.

        Once the time limit is over, no more are priced, unless one of them is asked for.
        """
        program, request = self.scope.program, self.scope.request
        one_island = request.machine.num_devices <= request.machine.island
        if len(self.mesh.axes) > 2 and one_island:
            return []
        maker = Recipes(self.builder, program.kinds, program.roles)
        done: dict[tuple[object, ...], tuple[Candidate, bool] | None] = {}
        every = request.options.mesh is not None
        recipes = [*maker.recipes(every=every, apart=not one_island)]
        for recipe in recipes:
            self.scope.say(f"baseline {recipe.name} on {self.mesh}")
            if recipe.key in done:
                continue
            if self.scope.out_of_time and request.options.baseline is None:
                done[recipe.key], self.scope.late = None, True
                continue
            done[recipe.key] = self.by_hand(recipe.name, self._pinned(maker.limits(recipe)))
        if not self.scope.out_of_time:
            self._search_further(maker, recipes, done, [row for row in table.values() if row.fits])
        found: list[Candidate] = []
        for recipe in recipes:
            priced = done[recipe.key]
            if priced is None:
                continue
            candidate, fits = priced
            sums = candidate.account
            row = Baseline(sums.step_s, sums.peak_bytes, fits, str(self.mesh))
            held = table.get(recipe.name)
            if held is None or (not row.fits, row.step_s) < (not held.fits, held.step_s):
                table[recipe.name] = row
            if fits:
                found.append(replace(candidate, name=recipe.name))
        return found

    def _search_further(
        self,
        maker: Recipes,
        recipes: Sequence[Recipe],
        done: dict[tuple[object, ...], tuple[Candidate, bool] | None],
        known: Sequence[Baseline],
    ) -> None:
        """Searches the hand-written plans further that may be the best of all so far.

        Args:
            maker: of their limits.
            recipes: all of this mesh.
            done: their prices, of which better ones take the place.
            known: those of other meshes that fit.
        """
        steps = [row.step_s for row in known]
        steps += [priced[0].account.step_s for priced in done.values() if priced and priced[1]]
        best_s = min(steps, default=0.0) * (1 - COMBINED.tolerance)
        for recipe in {recipe.key: recipe for recipe in recipes}.values():
            priced = done[recipe.key]
            if priced is None or priced[0].solution.bound >= best_s:
                continue
            further = self.by_hand(recipe.name, self._pinned(maker.limits(recipe)), COMBINED)
            if further is not None:
                least = min(priced, further, key=lambda p: (not p[1], p[0].account.step_s))
                done[recipe.key] = least

    def _pinned(self, limits: Limits) -> Limits:
        """The user's pins, instead of the recipe's shardings of the same values."""
        wishes, given, asked = self.scope.program.wishes, limits.state, self._wished(limits)

        def state(v: int, sharding: Sharding) -> bool:
            if wishes.speaks_of(v):
                return asked.state is None or asked.state(v, sharding)
            return given is None or given(v, sharding)

        return replace(asked, state=state)

    def by_hand(
        self, name: str, limits: Limits, options: SolveOptions = ROUGH
    ) -> tuple[Candidate, bool] | None:
        """The best plan within a hand-written one's limits, and whether it fits in memory."""
        builder, left = self.builder, self.build(limits)
        if not left.possible:
            return None
        loose = self.solve(left, float("inf"), options)
        if not loose.choice:  # no plan without buffers larger than the memory
            builder = self.with_room(float("inf"))
            left = self.build(limits, builder)
            loose = self.solve(left, float("inf"), options)
            if not loose.choice:
                return None
        found = self.of(name, left.built, loose, builder)
        if found.account.peak_bytes <= self.scope.limit:
            return found, True
        if builder is self.builder and left.least_peak() <= self.scope.limit:
            held = self._held(name, left) or found
            if held.account.peak_bytes <= self.scope.limit:
                return held, True
            fitting = self.room.fitting(name, limits, left, held, options)
            if fitting is not None:
                return fitting, True
        return found, False

    def _held(self, name: str, left: Within) -> Candidate | None:
        """A hand-written plan under the memory limit."""
        solution = self.solve(left, self.scope.limit, ROUGH)
        return self.of(name, left.built, solution) if solution.choice else None
