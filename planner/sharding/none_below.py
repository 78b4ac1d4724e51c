"""Whether bounds show that no plan of a training step is below a step that there is already.

A step has the fewest micro-batches that fit, and the next number if that is faster. So each number
is looked at in turn: every choice of recomputation of which a plan might fit is bounded on the
finest meshes, and has a rough plan. Where one of these fits, the number after it is the last.
"""

from __future__ import annotations

from dataclasses import replace

from ir import ATTENTION, GROUPED
from ir.trace import Traced

from ..common.errors import IndivisibleError
from ..common.request import Request, logged
from ..common.store.keys import memory_of
from ..training.training import Training
from .fewest_microbatches import MICROBATCHES, TRAINING_ROLES
from .padding.classified import Classified
from .padding.places import places_to_pad
from .plan_program import traced_step
from .plan_traced import One, program_for
from .problem.program import Program
from .recompute.choose import every_variant
from .rewrite.search import MOST_SAVED
from .search.asked import may_offload
from .search.over_meshes import Search, limit_of
from .variant_plans import VariantPlans
from .wished import with_asked

# Ops of which an edit of the program may save more than rewrites do (`MOST_SAVED`): rows in blocks
# 37 % (`python -m benchmarks experts`), padded convolutions 72 %.
FAR_EDITED = frozenset((GROUPED, *ATTENTION, "conv_general_dilated"))


def is_short_of_memory(training: Training, request: Request) -> bool:
    """Whether a step as it is written cannot fit, and `none_below` may tell what plans take.

    It may not where values may wait on the host, or where edits of the program may save much.
    """
    options, machine = request.options, request.machine
    if may_offload(options, machine) or options.time_limit_s < float("inf"):
        return False
    one = _one(training, request, options.microbatches or 1)
    facts = program_for(traced_step(one, request), options, machine).facts
    if any(op.node.op in FAR_EDITED for op in facts.flat.ops):
        return False
    return facts.least_peak(machine.num_devices) > limit_of(options, machine)


def none_below(training: Training, request: Request, step_s: float) -> bool:
    """Whether bounds show that no plan of one program is below a step.

    A bound counts less what rewrites of the program may save, and without the ops that padding may
    change.

    Args:
        training: a step that `is_short_of_memory`.
        request: cluster, options and progress.
        step_s: the step [s].
    """
    asked, is_last = request.options.microbatches, False
    for count in (asked,) if asked else MICROBATCHES:
        try:
            one = _one(training, request, count)
        except IndivisibleError:
            continue
        request.say(f"bounds of one program, {count} micro-batches")
        searches = _searches(one, request, step_s / (1 - MOST_SAVED))
        if searches is None:
            return False
        if is_last:
            break
        is_last = any(search.fits_roughly() for search in searches)
    return True


def _one(training: Training, request: Request, count: int) -> One:
    call = training.step(count, request.options.loss_reduction)
    return One(call, count, (0, 1), TRAINING_ROLES, training.name)


def _searches(one: One, request: Request, step_s: float) -> list[Search] | None:
    """Searches of the choices that may fit; None if the bound of one is below a step [s]."""
    traced, machine = traced_step(one, request), request.machine
    options, _ = with_asked(request.options, traced, machine)
    quiet = replace(request, options=options, say=logged)
    plans = VariantPlans(one, traced, quiet, memory_of(options), request.start)
    variants = every_variant(traced, options.recompute, plans.seconds_of)
    if variants is None:
        return None
    found = list[Search]()
    for variant in variants:
        program = program_for(variant.traced, options, machine, plans.programs)
        if program.facts.least_peak(machine.num_devices) > limit_of(options, machine):
            continue
        search = _search(plans, program)
        if search.lower_bound_s() < step_s or _padded_s(plans, variant.traced, program) < step_s:
            return None
        found.append(search)
    return found


def _search(plans: VariantPlans, program: Program) -> Search:
    return Search(program, plans.request, plans.memory, menus=plans.menus)


def _padded_s(plans: VariantPlans, traced: Traced, program: Program) -> float:
    """Lower bound of a program in which what padding may change takes no time [s]."""
    options, machine = plans.request.options, plans.request.machine
    places = places_to_pad(Classified(traced.graph), machine.num_devices)
    if not options.padding or not places:
        return float("inf")
    return _search(plans, program.where(lambda place: place not in places)).lower_bound_s()
