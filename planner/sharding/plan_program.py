# pyright: basic
"""Plans one program: trace, choice of its variant, rewrites."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from costmodel import Cluster
from ir import IRError, TraceError, check, digest
from ir.trace import Traced, trace

from ..common.errors import PlanError
from ..common.options import Options
from ..common.request import Request
from ..common.stop import Stop
from ..common.store.keys import Memory, memory_of
from ..files.program_plan import ProgramPlan
from .check_effects import check_effects
from .edited import bounded
from .held import check_held
from .host_limit import host_limit_of, naming_the_host
from .nested_maps import check_maps
from .ordering.plan import with_order
from .ordering.rows import as_ordered
from .padding.plan import with_padding
from .padding.rows import as_padded
from .plan_rewritten import with_rewrites
from .plan_traced import One, program_for, ties_of
from .planned_program import PlannedProgram
from .recompute.choose import SPARE, Chosen, choose
from .recompute.host_states import State, Waiting, parameters_of, states_of, within_hosts
from .recompute.node_seconds import host_copy_seconds
from .recompute.variants import as_planned, kept_variant
from .rewrite.replay import replayed
from .rewrite.search import MOST_SAVED
from .search.asked import may_offload
from .search.over_meshes import limit_of
from .search.stored_plans import plan_key, store_plan, stored_plan
from .searched import Searched
from .sorted_rows.plan import with_blocks
from .sorted_rows.rows import as_blocked
from .variant_plans import VariantPlans
from .wished import with_asked


def plan_one(
    one: One, request: Request, cutoff_s: float = float("inf"), waiting: Waiting = Waiting.NOTHING
) -> PlannedProgram:
    """Traces one step and plans it.

    Args:
        one: the step.
        request: cluster, options and progress.
        cutoff_s: upper limit of the step; slower plans are an error [s].
        waiting: what waits on the host from step to step; an error if there is nothing of the kind.

    Raises:
        PlanError: if nothing fits or is below the cutoff, or there is nothing to plan.
        TraceError: if it cannot be traced.
    """
    request.say("trace")
    begun = time.monotonic()
    traced = _traced(one, request)
    machine, interruption = request.machine, request.interruption
    options, notes = with_asked(request.options, traced, machine)
    request = replace(request, options=options)
    traced = replace(traced, warnings=(*traced.warnings, *notes))
    states, more = _movable(one, traced, waiting, options, machine)
    movable = (*states, *more)
    moved = within_hosts(movable, host_limit_of(machine) * machine.num_devices)
    moved_bytes, movable_bytes = (sum(s.nbytes for s in some) for some in (moved, movable))
    memory, key = memory_of(options), ""
    if memory.store:
        key = key_of_one(one, traced, machine, options, cutoff_s, *waiting.words)
        stored = _stored(memory, key, traced)
        if stored is not None:
            spent = {"trace": time.monotonic() - begun, "total": time.monotonic() - request.start}
            return replace(stored, seconds=stored.seconds | spent)
    plans = VariantPlans(one, traced, request, memory, begun)
    held = program_for(traced, options, machine, plans.programs).facts.held_bytes()
    with naming_the_host(movable_bytes - moved_bytes):
        check_held(held - moved_bytes, limit_of(options, machine), machine, "its arguments")
        chosen = choose(
            traced, request, plans.search, plans.seconds_of,
            lambda found: plans.rough(found.outcome.best), cutoff_s,
            host_copy_seconds(machine) if may_offload(options, machine) else None,
            early=plans if options.baseline is None else None,
            states=moved if waiting else None,
            always=len({*states}.intersection(moved)) if more else 0,
        )  # fmt: skip
    search, pricer = plans.search, plans.pricer
    known = Searched(_as_chosen(chosen.found.plan, chosen), chosen.found.outcome)
    known, whole = with_padding(known, chosen.variant.traced, request, search, pricer)
    known, whole = with_blocks(known, whole, request, search, pricer)
    known, whole = with_order(known, whole, request, search, pricer)
    plan, best = known.plan, known.outcome.best
    near = plan.step_s * (1 - MOST_SAVED) < cutoff_s
    if options.substitutions and options.baseline is None and near and not request.over:
        try:
            short = plan.program.peak_bytes > SPARE * limit_of(options, machine)
            may = short and options.recompute in ("auto", "search")
            plan = with_rewrites(
                one, plan, best, whole,
                lambda: kept_variant(traced, chosen.variant) if may else None,
                request, memory, plans.menus,
            )  # fmt: skip
        except KeyboardInterrupt:
            if not interruption.kept(found=True):
                raise
    if request.over:
        stop = (Stop.INTERRUPTED if interruption.happened else Stop.TIME_LIMIT).name
        plan = replace(plan, program=msgspec.structs.replace(plan.program, stop=stop))
    store_plan(memory, key, plan.program)
    return plan


def _movable(
    one: One, traced: Traced, waiting: Waiting, options: Options, machine: Cluster
) -> tuple[tuple[State, ...], tuple[State, ...]]:
    """States and parameters that may wait on the host, in the order in which they go there.

    Raises:
        PlanError: if there is nothing of the kind that is to wait there.
    """
    if not waiting:
        return (), ()
    allowed = may_offload(options, machine)
    states = states_of(traced) if allowed else ()
    more = parameters_of(traced) if allowed and waiting is Waiting.PARAMETERS else ()
    if not (more if waiting is Waiting.PARAMETERS else states):
        raise PlanError(
            f"there are no {waiting.value} that the host could hold", kind="does-not-fit",
            where=one.name, remedy="use more devices or more memory",
        )  # fmt: skip
    return states, more


def _traced(one: One, request: Request) -> Traced:
    """A step as it is traced, which the planner can read."""
    traced = trace(
        one.call.watched, *one.call.args, donate_argnums=one.donate, roles=one.roles,
        pinned=request.options.shardings == "pin",
        offload=may_offload(request.options, request.machine),
    )  # fmt: skip
    try:
        check(traced.graph, after="trace")
    except IRError as error:
        raise TraceError(
            f"the traced program is not well-formed: {error}", where=f"function '{one.name}'",
            remedy="report it with the function, it is a defect",
        ) from error  # fmt: skip
    check_maps(traced.graph, request.options.emission)
    check_effects(traced.graph, one.microbatches)
    if not traced.graph.inputs and not traced.graph.nodes:
        raise PlanError(
            f"'{one.name}' has no arguments and computes nothing", kind="bad-argument",
            where="plan", remedy="pass the arguments after the function: plan(fn, *args, ...)",
        )  # fmt: skip
    return traced


def _as_chosen(plan: PlannedProgram, chosen: Chosen[Searched]) -> PlannedProgram:
    """A plan that says what is computed again, with a bound for all variants that were planned."""
    program = plan.program
    return replace(plan, program=msgspec.structs.replace(
        bounded(program, chosen.bound_s), recomputed=chosen.variant.rows,
        hosted=chosen.variant.hosted, host_states=chosen.variant.states,
        warnings=(*program.warnings, *chosen.notes),
    ))  # fmt: skip


def _stored(memory: Memory, key: str, traced: Traced) -> PlannedProgram | None:
    """The plan in the plan store, if there is one of this program."""
    known = memory.get("plan", key, ProgramPlan)
    if known is None:
        return None
    traced = as_planned(traced, known.recomputed, known.hosted, known.host_states)
    traced = as_padded(traced, known.padded, "plan store")
    traced = as_blocked(traced, known.sorted_blocks, "plan store")
    traced = as_ordered(traced, known.ordered, "plan store")
    program = stored_plan(memory, key, traced.text, digest(traced.graph))
    if program is None:
        return None
    if program.substitutions:
        traced = replayed(traced, program.substitutions, "plan store")
    passes: tuple[str, ...] = ("trace", "substitute", "build", "solve", "inter")
    return PlannedProgram(program, traced, dict.fromkeys(passes, 0.0), cached=True)


def key_of_one(one: One, traced: Traced, machine: Cluster, options: Options, *more: object) -> str:
    """Key of a step's plan in the plan store; `more`: further parts of the key."""
    parts = (
        traced.text, one.microbatches, one.call.reduction, one.call.warnings,
        traced.warnings, traced.donated, ties_of(traced), [i.role for i in traced.graph.inputs],
        [repr(each) for each in more],
    )  # fmt: skip
    return plan_key(one.name, parts, machine, options)
