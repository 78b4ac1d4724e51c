"""Plans of the variants of one traced step, which share what is known of programs and menus."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ir.trace import Traced

from ..common.request import Request
from ..common.store.keys import Memory
from .plan_traced import One, donated_of, plan_traced, program_for, ties_of
from .problem.program import Programs
from .problem.records import Menus
from .recompute.frontier import SecondsOf
from .recompute.keep_more import Quick
from .recompute.node_seconds import node_seconds
from .recompute.rough_plans import RoughPlans, quick_plan
from .recompute.variants import Variant
from .rewrite.price import Pricer
from .search.context import Candidate
from .search.over_meshes import Search, limit_of
from .searched import Searched


@dataclass(frozen=True)
class VariantPlans:
    """Full, rough and quick plans.

    one: the step.
    traced: it as it was written.
    request: cluster, options and progress.
    memory: the plan store.
    begun: time at which tracing began [s].
    """

    one: One
    traced: Traced
    request: Request
    memory: Memory
    begun: float
    programs: Programs = field(default_factory=Programs)
    menus: Menus = field(default_factory=Menus)

    def search(self, variant: Variant, cutoff_s: float, wished: Request | None = None) -> Searched:
        """The plan of a variant; `wished`: with another request.

        Raises:
            PlanError: if nothing fits or is below the cutoff.
        """
        since = self.begun if variant.traced is self.traced else time.monotonic()
        found = plan_traced(
            self.one, variant.traced, wished or self.request, since, self.memory, cutoff_s,
            menus=self.menus, programs=self.programs,
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

    def quick(self) -> Quick | None:
        """A rough plan of the step as it was written, if one fits and no baseline is asked for."""
        options, machine = self.request.options, self.request.machine
        if options.baseline is not None:
            return None
        program = program_for(self.traced, options, machine, self.programs)
        search = Search(program, self.request, self.memory, menus=self.menus)
        return quick_plan(search, self.rough)

    def seconds_of(self, traced: Traced) -> SecondsOf:
        """Seconds of the nodes of a program, each split evenly over all devices."""
        machine = self.request.machine
        program = program_for(traced, self.request.options, machine, self.programs)
        return node_seconds(program.facts, machine)
