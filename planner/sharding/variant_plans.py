"""Plans of the variants of one traced step, which share what is known of programs and menus."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ir.trace import Traced

from ..common.request import Request, logged
from ..common.store.keys import Memory
from .plan_traced import One, donated_of, plan_traced, program_for, ties_of
from .problem.program import Program, Programs
from .problem.records import Menus
from .recompute.choose import SLOWED
from .recompute.frontier import SecondsOf
from .recompute.node_seconds import node_seconds
from .recompute.rough_plans import RoughPlans
from .recompute.variants import Variant
from .rewrite.price import Pricer
from .search.context import BESIDE, THOROUGH, Candidate, Effort
from .search.over_meshes import Search, limit_of
from .searched import Searched

# Share of the memory limit above which the least peak of a program leaves no room for a plan on
# several devices: those of Llama-3 8B and 70B on 64 H100 need 1.2 to 2.2 times as much.
ROOM = 0.9
SHARE = 0.75  # of the time that is left, for the first plans; not measured


@dataclass(frozen=True)
class VariantPlans:
    """Full, rough and quick plans.

    one: the step.
    traced: it as it was written.
    request: cluster, options and progress.
    memory: the plan store.
    begun: time at which tracing began [s].
    bounds: what `bound_s` returns, once `roughly` knows it.
    """

    one: One
    traced: Traced
    request: Request
    memory: Memory
    begun: float
    programs: Programs = field(default_factory=Programs)
    menus: Menus = field(default_factory=Menus)
    bounds: list[float] = field(default_factory=list[float])

    def search(self, variant: Variant, cutoff_s: float, wished: Request | None = None) -> Searched:
        """The plan of a variant; `wished`: with another request.

        Raises:
            PlanError: if nothing fits or is below the cutoff.
        """
        return self._planned(variant, cutoff_s, wished or self.request, THOROUGH)

    def _planned(
        self, variant: Variant, cutoff_s: float, request: Request, effort: Effort
    ) -> Searched:
        since = self.begun if variant.traced is self.traced else time.monotonic()
        found = plan_traced(
            self.one, variant.traced, request, since, self.memory, cutoff_s,
            menus=self.menus, programs=self.programs, effort=effort,
        )  # fmt: skip
        return Searched(*found)

    def pricer(self, traced: Traced, best: Candidate) -> Pricer:
        """Plans edited programs on the mesh of a plan."""
        return Pricer(
            self.request.machine, self.request.options, best, ties_of(traced), donated_of(traced),
            self.programs,
        )  # fmt: skip

    def rough(self, best: Candidate) -> RoughPlans:
        """Rough plans of variants on the mesh of a plan."""
        limit = limit_of(self.request.options, self.request.machine)
        return RoughPlans(self.traced, lambda t: self.pricer(t, best), limit)

    def bound_s(self) -> float:
        """Quick lower bound of the plans of the step as it was written, on all meshes [s]."""
        return self.bounds[0] if self.bounds else self._as_written().lower_bound_s()

    def roughly(self) -> RoughPlans | None:
        """Rough plans on the mesh with the least quick bound, one of the step as it was written.

        None if memory has room for its plans, or no such plan is found.
        """
        program, search = self._written_program(), self._as_written(logged)
        if program.facts.least_peak(self.request.machine.num_devices) <= SLOWED * search.limit:
            return None
        self.request.say("rough plans")
        bound_s, found = search.quick()
        self.bounds[:] = [bound_s]
        if found is None:
            return None
        return replace(self.rough(found), limit_bytes=float("inf"))  # as that plan: it may not fit

    def _as_written(self, say: Callable[[str], None] | None = None) -> Search:
        """The search of the step as it was written.

        say: other receiver of its progress, as steps of plans that are not kept are no news.
        """
        request = replace(self.request, say=say or self.request.say)
        return Search(self._written_program(), request, self.memory, menus=self.menus)

    def _written_program(self) -> Program:
        options, machine = self.request.options, self.request.machine
        program = program_for(self.traced, options, machine, self.programs)
        return program.holding(self.one.in_flight)

    def beside(self, variant: Variant, cutoff_s: float) -> Searched:
        """As `search`, with less effort where memory binds, in a share of the time left."""
        options, left_s = self.request.options, self.request.left_s
        limit_s = options.time_limit_s - (1 - SHARE) * left_s if left_s < float("inf") else left_s
        request = replace(self.request, options=replace(options, time_limit_s=limit_s))
        return self._planned(variant, cutoff_s, request, BESIDE)

    def excess_bytes(self, traced: Traced) -> float:
        """Bytes of all devices by which plans of a program exceed the memory that they may need."""
        options, machine = self.request.options, self.request.machine
        facts = program_for(traced, options, machine, self.programs).facts
        count = machine.num_devices
        room = ROOM if count > 1 else 1.0
        return (facts.least_peak(count) - room * limit_of(options, machine)) * count

    def memory_s(self, nbytes: float) -> float:
        """Seconds of moving an amount of all devices through their memories [byte]."""
        machine = self.request.machine
        return nbytes / (machine.device.memory_bandwidth_bytes_per_s * machine.num_devices)

    def seconds_of(self, traced: Traced) -> SecondsOf:
        """Seconds of the nodes of a program, each split evenly over all devices."""
        machine = self.request.machine
        program = program_for(traced, self.request.options, machine, self.programs)
        return node_seconds(program.facts, machine)
