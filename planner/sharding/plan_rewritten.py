# pyright: basic
"""The plan of a program with rewrites, where that is faster than the plan without."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from costmodel import CollectiveModel, ComputeModel
from ir import check, digest
from ir.trace import Traced
from substitutions import draft_of

from ..common.errors import PlanError
from ..common.request import Request
from ..common.stop import REWRITTEN
from ..common.store.keys import Memory
from ..files.program_plan import ProgramPlan, SubstitutionRow
from .plan_traced import One, donated_of, plan_traced, ties_of
from .planned_program import PlannedProgram
from .problem.records import Menus
from .recompute.rough_plans import NO_LIMIT
from .recompute.variants import Variant
from .rewrite.estimate import Estimator
from .rewrite.joint_extraction import searched
from .rewrite.left_out import LeftOut
from .rewrite.price import Pricer, wall_s
from .rewrite.retrace import retraced
from .rewrite.search import WORTH, RewriteSearch
from .rewrite.searched_rules import rules_for
from .search.context import Candidate
from .search.over_meshes import limit_of


def with_rewrites(
    one: One,
    plan: PlannedProgram,
    best: Candidate,
    traced: Traced,
    kept: Callable[[], Variant | None],
    request: Request,
    memory: Memory,
    menus: Menus,
) -> PlannedProgram:
    """The plan of the rewritten program where that is faster; else the given plan.

    Rewrites are searched on the mesh of the plan, and the result is planned in full. The whole step
    is rewritten, not the loss before it is differentiated: a traced loss no longer has the custom
    derivatives of its parts. Where rewrites pay, they may also save the memory for which values are
    computed again; so the program that keeps all of them is then rewritten too.

    Args:
        one: the step.
        plan: of the program.
        best: the decisions of that plan.
        traced: the program.
        kept: the program that keeps all values; None if it is the same.
        request: machine, options and progress.
        memory: the plan store.
        menus: of other searches on the same cluster.
    """
    request.say("substitute")
    begun = time.monotonic()
    programs = _Programs(one, request, memory, menus, begun)
    pricer = Pricer(request.machine, request.options, best, ties_of(traced), donated_of(traced))
    known = _Known(plan, wall_s(best.account, request.machine))
    found = programs.rewritten(known, plan.program, traced, pricer)
    if found is not known and not request.over and (more := kept()):
        found = programs.keeping_all(found, plan.program, more, pricer)
    now = time.monotonic()
    seconds = plan.seconds | {"substitute": now - begun, "total": now - request.start}
    warnings = (*found.plan.program.warnings, *dict.fromkeys(programs.warnings))
    noted = msgspec.structs.replace(found.plan.program, warnings=warnings)
    return replace(found.plan, program=noted, seconds=seconds)


@dataclass(frozen=True)
class _Known:
    """A plan, and the seconds of its step as `wall_s` has them."""

    plan: PlannedProgram
    wall_s: float


@dataclass
class _Programs:
    """Rewritten programs of one step, and their plans.

    Attributes:
        warnings: of rewrites that were tried.
    """

    one: One
    request: Request
    memory: Memory
    menus: Menus
    begun: float
    warnings: list[str] = field(default_factory=list[str])

    def rewritten(
        self, known: _Known, edited: ProgramPlan, traced: Traced, pricer: Pricer
    ) -> _Known:
        """The plan of a rewritten program where it is faster than the known one.

        Args:
            known: the best plan so far.
            edited: a plan that says how the program was edited before.
            traced: that program.
            pricer: plans programs on the mesh of a plan of that program.
        """
        request, machine, best = self.request, self.request.machine, pricer.best
        estimator = Estimator(machine, ComputeModel(machine), CollectiveModel(machine))
        rewrite_search = RewriteSearch(
            pricer.step_s, estimator, wall_s(best.account, machine),
            rules=rules_for(pricer.options.substitutions), left_out=LeftOut(best, estimator),
        )  # fmt: skip
        found = searched(rewrite_search, draft_of(traced.graph), pricer.on_one_axis)
        self.warnings += rewrite_search.trial.warnings()
        if found is None:
            return known
        check(found.draft.graph, after="rewriting")
        request.say(f"rewritten by {', '.join(dict.fromkeys(step.rule for step in found.steps))}")
        again = replace(request, options=replace(request.options, baselines=False))
        limit = limit_of(request.options, machine)
        fitting = [one for one in pricer.known(found.draft) if one.account.peak_bytes <= limit]
        try:
            other, made = plan_traced(
                self.one, retraced(traced, found.draft), again, self.begun, self.memory,
                known.plan.step_s * (1 - WORTH), fitting, self.menus,
            )  # fmt: skip
        except PlanError:
            return known  # none below the cutoff: the quick plan knew less of memory
        found_s = wall_s(made.best.account, machine)
        if found_s >= known.wall_s * (1 - WORTH):
            return known
        rows = tuple(SubstitutionRow(s.rule, s.place, s.count) for s in found.steps)
        # the baselines stay those of the original program
        whole = msgspec.structs.replace(
            other.program, baselines=edited.baselines, substitutions=rows,
            traced_digest=digest(traced.graph), recomputed=edited.recomputed,
            padded=edited.padded, ordered=edited.ordered, hosted=edited.hosted,
            sorted_blocks=edited.sorted_blocks, host_states=edited.host_states,
            warnings=(*other.program.warnings, REWRITTEN),
        )  # fmt: skip
        return _Known(replace(other, program=whole), found_s)

    def keeping_all(
        self, known: _Known, edited: ProgramPlan, more: Variant, pricer: Pricer
    ) -> _Known:
        """As `rewritten`, of the program that keeps all values.

        It may not fit before it is rewritten, so that its rewrites are priced without a limit of
        memory.

        Args:
            known: the best plan so far.
            edited: the plan of the program that computes some again.
            more: the program that keeps all.
            pricer: plans programs on the mesh of that plan.
        """
        free = replace(pricer, options=replace(pricer.options, memory_bytes=NO_LIMIT), plans={})
        start = free.anew(more.traced.graph)
        if start is None:
            return known
        none = msgspec.structs.replace(
            edited, recomputed=more.rows, hosted=(), padded=(), ordered=(), sorted_blocks=0
        )
        return self.rewritten(known, none, more.traced, replace(free, best=start))
