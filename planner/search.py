"""The search over mesh shapes: each is built and solved, baselines are priced, the best is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from costmodel import Cluster, CollectiveModel, ComputeModel, ReshardModel
from ir import Mesh, Sharding

from .account import Account, account
from .baselines import Baseline, Recipes, Roles
from .classes import Classes, Kinds
from .decisions import Decisions
from .errors import PlanError
from .flatten import FlatProgram
from .intra.build import Builder
from .intra.decide import decide
from .intra.eliminate import Tables
from .intra.facts import Facts
from .intra.problem import IntraSolution
from .intra.records import Built, Limits, MenuCache
from .intra.solve import SolveOptions, solve
from .meshes import mesh_of, mesh_shapes
from .options import Options, Wishes
from .repeats import LEAST_OPS, Repeats, repeats_of, worth_folding
from .show import bytes_text
from .stop import Stop

# The limit given to the solver leaves room for buffers that exist only while a collective runs;
# if they break the real limit it is tightened, at most so often.
TIGHTENINGS = 4
# Share of a device's memory that a plan may count on: the rest is for the allocator, collective
# buffers and what the compiler keeps longer than the program's order asks for.
USABLE = 0.9
THOROUGH = SolveOptions()
# Under a tightened limit the bound is known already.
REFINED = SolveOptions(tolerance=1e-3, price_steps=8, ilp=False)
# Baselines need a fair price, not a proof.
ROUGH = SolveOptions(tolerance=1e-3, sweeps=72, price_steps=6, ilp=False)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Program:
    """What is searched: the flat program, and what its arguments are."""

    facts: Facts
    roles: Roles
    wishes: Wishes

    @property
    def flat(self) -> FlatProgram:
        return self.facts.flat

    @cached_property
    def kinds(self) -> Kinds:
        """What the dimensions of the program are."""
        specs = [self.facts.spec(op) for op in self.flat.ops]
        return Kinds(Classes(self.flat, specs), specs, self.roles.batch, self.roles.parameters)

    @cached_property
    def repeats(self) -> Repeats | None:
        """Repeated blocks, if there are enough of them to plan them as one."""
        if len(self.flat.ops) < LEAST_OPS:
            return None
        role = {v: name for name, members in self.roles.named() for v in members}
        asked = {v: self.wishes.asked(v) for v in self.flat.inputs}
        found = repeats_of(self.facts, self.kinds, lambda v: (role.get(v), asked.get(v)))
        return found if worth_folding(found) else None


@dataclass(frozen=True)
class Candidate:
    """A solved mesh shape (or baseline on it)."""

    name: str
    mesh: Mesh
    builder: Builder
    built: Built
    solution: IntraSolution
    decisions: Decisions
    account: Account


@dataclass
class Found:
    """Outcome of the search."""

    best: Candidate
    candidates: list[Candidate]
    baselines: dict[str, Baseline]
    lower_bound_s: float
    stop: Stop
    seconds: dict[str, float] = field(default_factory=dict[str, float])


class Search:
    """One search; menus, tables and prices are shared by everything on one mesh."""

    def __init__(
        self, program: Program, cluster: Cluster, options: Options, progress: Progress
    ) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        self.progress = progress
        self.limit = float(options.memory_bytes or USABLE * cluster.memory_bytes)
        self.collectives, self.compute = CollectiveModel(cluster), ComputeModel(cluster)
        self.deadline = time.monotonic() + options.time_limit_s
        self.seconds = {"build": 0.0, "solve": 0.0}
        self.late = False  # some search was cut short
        self.least: list[float] = []
        self.blocked: dict[str, str] = {}  # argument -> mesh on which its pins leave no sharding

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes to search.

        Raises:
            PlanError: if the user's shape has another number of devices.
        """
        if self.options.mesh is None:
            return mesh_shapes(self.cluster)
        mesh = mesh_of(self.options.mesh)
        if mesh.num_devices != self.cluster.num_devices or len(mesh.axes) != len(self.options.mesh):
            raise PlanError(
                f"mesh {self.options.mesh} has {mesh.num_devices} devices in at most 4 axes, the "
                f"cluster {self.cluster.num_devices}", kind="bad-option", where="Options.mesh",
                remedy=f"use one of {', '.join(map(str, mesh_shapes(self.cluster)))}",
            )  # fmt: skip
        return (self.options.mesh,)

    def run(self) -> Found:
        """Solves every shape and baseline.

        Raises:
            PlanError: if nothing fits in memory, or pins leave no choice.
        """
        found: list[Candidate] = []
        bounds: list[float] = []
        baselines: dict[str, Baseline] = {}
        searchers: list[MeshSearch] = []
        for shape in self.shapes():
            if searchers and time.monotonic() > self.deadline:
                bounds.append(0.0)  # nothing is known of a shape that was not looked at
                self.late = True
                continue
            self.progress(f"mesh {'x'.join(map(str, shape))}")
            searchers.append(MeshSearch(self, mesh_of(shape)))
            best, bound = searchers[-1].best()
            bounds.append(bound)
            found.extend(best)
        for searcher in searchers if self.options.baselines else ():
            if len(searcher.mesh.axes) <= 2 or time.monotonic() < self.deadline:
                found.extend(searcher.baselines(baselines))
        fitting = [c for c in found if c.account.peak_bytes <= self.limit * (1 + 1e-9)]
        if not fitting:
            self._refuse()
        best_one = min(
            fitting,
            key=lambda c: (c.account.step_s, c.name != "search", len(c.mesh.axes), c.name),
        )
        bound = min(bounds) if bounds else 0.0
        bound = min(bound, best_one.account.step_s)
        close = best_one.account.step_s - bound <= 1e-3 * best_one.account.step_s
        stop = Stop.TIME_LIMIT if self.late else Stop.OPTIMAL if close else Stop.GAP
        return Found(best_one, found, baselines, bound, stop, self.seconds)

    def _refuse(self) -> None:
        if not self.least and self.blocked:
            name, mesh = next(iter(self.blocked.items()))
            asked = [f"'{p.pattern}={','.join(p.dims)}'" for p in self.program.wishes.about(name)]
            raise PlanError(
                f"no sharding of '{name}' satisfies {' and '.join(asked)} on any mesh tried, "
                f"for instance {mesh}", kind="bad-pin", where="pins",
                remedy="drop or loosen one of them, or check that the sizes divide",
            )  # fmt: skip
        least = min(self.least, default=float("inf"))
        if least <= self.limit:
            raise PlanError(
                "no plan within the memory limit was found, though one may exist",
                kind="does-not-fit", where=self.cluster.name,
                remedy="raise the time limit or the memory limit, or loosen the pins",
            )  # fmt: skip
        over = least - self.limit
        raise PlanError(
            f"does not fit: the leanest plan needs {bytes_text(least)} on each device, "
            f"{bytes_text(over)} more than the limit of {bytes_text(self.limit)}",
            kind="does-not-fit", where=self.cluster.name,
            remedy=f"use about {max(2, round(least / self.limit + 0.5))} times the devices, a "
            f"smaller batch or more micro-batches, jax.checkpoint around layers, or at least "
            f"{bytes_text(least)} of memory",
        )  # fmt: skip


class MeshSearch:
    """The search on one mesh."""

    def __init__(self, search: Search, mesh: Mesh) -> None:
        self.search, self.mesh = search, mesh
        program = search.program
        reshard = ReshardModel(search.cluster, mesh, search.collectives)
        cache = MenuCache(mesh, reshard, search.compute)
        self.builder = Builder(program.facts, cache, search.limit, program.repeats)
        self.tables = Tables()

    def _build(self, limits: Limits) -> Built:
        start = time.monotonic()
        built = self.builder.build(limits)
        self.search.seconds["build"] += time.monotonic() - start
        return built

    def _solve(self, built: Built, limit: float, options: SolveOptions = THOROUGH) -> IntraSolution:
        """Solves under a limit; moments that break it unwatched are watched from then on."""
        start = time.monotonic()
        while True:
            left = max(self.search.deadline - time.monotonic(), 1.0)
            problem = replace(built.problem, limit=limit)
            answer = solve(problem, replace(options, time_limit_s=left), self.tables)
            if built.moments is None or not answer.choice:
                break
            memory = built.lives.memory(answer.choice)
            worst = int(np.argmax(memory))
            if memory[worst] <= limit * (1 + 1e-9) or worst in built.moments:
                break
            built = built.watching(tuple(sorted((*built.moments, worst))))
        self.search.seconds["solve"] += time.monotonic() - start
        return answer

    def _wished(self) -> Limits:
        wishes, mesh = self.search.program.wishes, self.mesh
        return Limits(None, lambda v, sharding: wishes.allows(v, sharding, mesh))

    def _fits_state(self, built: Built) -> bool:
        """Whether every node has an option; pins on this mesh may leave none."""
        return all(len(cost) for cost in built.problem.node_cost)

    def _note_blocked(self, built: Built) -> None:
        for ref, cost in zip(built.refs, built.problem.node_cost, strict=True):
            name = self.search.program.wishes.names.get(ref.value)
            if not len(cost) and name is not None:
                self.search.blocked.setdefault(name, str(self.mesh))

    def _candidate(
        self, name: str, built: Built, limit: float, options: SolveOptions, over: float = 0.0
    ) -> Candidate | None:
        """Solves, and tightens the limit while short-lived buffers break the real one.

        `over` is by how much a solution under the whole limit broke it.
        """
        given = limit - over * 1.05
        for _ in range(TIGHTENINGS):
            solution = self._solve(built, given, options)
            if not solution.choice:
                return None
            found = self._of(name, built, solution)
            over = found.account.peak_bytes - limit
            if over <= limit * 1e-9:
                return found
            given -= over * 1.05
        return None

    def _of(self, name: str, built: Built, solution: IntraSolution) -> Candidate:
        decisions = decide(built, self.search.program.flat, solution.choice, self.mesh)
        sums = account(self.builder, built, solution.choice)
        return Candidate(name, self.mesh, self.builder, built, solution, decisions, sums)

    def best(self) -> tuple[list[Candidate], float]:
        """The best plan on this mesh, if one fits, and a bound for all of them.

        The bound is that of the first solve, under the whole limit: tightening only serves the
        buffers that the objective does not see.
        """
        built = self._build(self._wished())
        if not self._fits_state(built):
            self._note_blocked(built)
            return [], float("inf")
        first = self._solve(built, self.search.limit)
        self.search.late |= first.stop is Stop.TIME_LIMIT
        if not first.choice:
            self.search.least.append(built.lives.least_peak())
            return [], first.bound
        found = self._of("search", built, first)
        if found.account.peak_bytes > self.search.limit:
            self.search.least.append(built.lives.least_peak())
            over = found.account.peak_bytes - self.search.limit
            tighter = self._candidate("search", built, self.search.limit, REFINED, over)
            return ([tighter] if tighter is not None else []), first.bound
        return [found], first.bound

    def baselines(self, table: dict[str, Baseline]) -> list[Candidate]:
        """Prices the hand-written plans here; the best mesh of each stays in the table."""
        program = self.search.program
        one_island = self.search.cluster.num_devices <= self.search.cluster.island
        if len(self.mesh.axes) > 2 and one_island:
            return []
        maker = Recipes(self.builder, program.kinds, program.roles)
        found: list[Candidate] = []
        done: dict[tuple[object, ...], tuple[Candidate, bool] | None] = {}
        for recipe in maker.recipes(every=self.search.options.mesh is not None):
            self.search.progress(f"baseline {recipe.name} on {self.mesh}")
            key = (recipe.axis, id(recipe.state))
            if key not in done:
                done[key] = self._baseline(recipe.name, self._pinned(maker.limits(recipe)))
            priced = done[key]
            if priced is None:
                continue
            candidate, fits = priced
            row = Baseline(
                candidate.account.step_s, candidate.account.peak_bytes, fits, str(self.mesh)
            )
            held = table.get(recipe.name)
            if held is None or (not row.fits, row.step_s) < (not held.fits, held.step_s):
                table[recipe.name] = row
            if fits:
                found.append(candidate)
        return found

    def _pinned(self, limits: Limits) -> Limits:
        """The user's pins in place of the recipe's own wish for the same arguments."""
        wishes, mesh, given = self.search.program.wishes, self.mesh, limits.state

        def state(v: int, sharding: Sharding) -> bool:
            if wishes.speaks_of(v):
                return wishes.allows(v, sharding, mesh)
            return given is None or given(v, sharding)

        return Limits(limits.op, state)

    def _baseline(self, name: str, limits: Limits) -> tuple[Candidate, bool] | None:
        built = self._build(limits)
        if not self._fits_state(built):
            return None
        loose = self._solve(built, float("inf"), ROUGH)
        if not loose.choice:
            return None
        found = self._of(name, built, loose)
        if found.account.peak_bytes <= self.search.limit:
            return found, True
        if built.lives.least_peak() <= self.search.limit:
            held = self._candidate(name, built, self.search.limit, ROUGH)
            if held is not None:
                return held, True
        return found, False


def roles_of(names: Sequence[str], flat: FlatProgram) -> Roles:
    """Flat values of the arguments by role."""
    by_role: dict[str, list[int]] = {}
    for role, v in zip(names, flat.inputs, strict=True):
        by_role.setdefault(role, []).append(v)
    return Roles(
        tuple(by_role.get("batch", ())), tuple(by_role.get("parameter", ())),
        tuple(by_role.get("optimizer-state", ())),
    )  # fmt: skip
