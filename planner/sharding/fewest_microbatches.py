"""The plan of a training step with the fewest micro-batches that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..common.errors import HeldError, IndivisibleError, PlanError, ShortError
from ..common.request import Request
from ..training.training import Training
from .edited import bounded
from .host_limit import HOST
from .plan_program import plan_one
from .plan_traced import One
from .planned_program import PlannedProgram
from .recompute.choose import SPARE
from .recompute.host_states import Waiting
from .search.asked import may_offload
from .search.over_meshes import OR_PARTS, limit_of

# Micro-batch counts that are tried in turn when a step does not fit.
MICROBATCHES = range(1, 65)
TRAINING_ROLES = ("parameter", "optimizer-state", "batch")
ROUNDED = 1e-2  # share of the peak: padding does not shrink with the micro-batch


def plan_step(one: One, request: Request) -> PlannedProgram:
    """The plan of one step; where none fits, with state or parameters in the memory of the host.

    Raises:
        PlanError: as `plan_one`, of the step with all state on the devices.
    """
    try:
        return plan_one(one, request)
    except PlanError as error:
        return _or_waiting(error, request, lambda waiting: plan_one(one, request, waiting=waiting))


def fewest_or_states(
    training: Training, request: Request, cutoff_s: float = float("inf")
) -> PlannedProgram:
    """As `fewest_or_faster`; where nothing fits, with state or parameters on the host.

    Raises:
        PlanError: as `fewest`, of the step with all state on the devices.
    """
    try:
        return fewest_or_faster(training, request, cutoff_s)
    except PlanError as error:
        return _or_waiting(
            error, request, lambda waiting: fewest(training, request, cutoff_s, waiting)
        )


def fewest_or_faster(
    training: Training, request: Request, cutoff_s: float = float("inf")
) -> PlannedProgram:
    """As `fewest`; or, where that takes micro-batches, a faster plan with state on the host.

    Raises:
        PlanError: as `fewest`, of the step with all state on the devices.
    """
    found = fewest(training, request, cutoff_s)
    over = request.over or not may_offload(request.options, request.machine)
    if found.program.microbatches == 1 or over:
        return found
    try:
        return fewest(training, request, min(found.step_s, cutoff_s), Waiting.STATES)
    except PlanError as error:
        if error.kind not in ("does-not-fit", "not-faster"):
            raise
        return found


def with_more(
    training: Training, request: Request, found: PlannedProgram, below_s: float = float("inf")
) -> PlannedProgram:
    """A plan, or one of more micro-batches that is faster as it computes less again.

    The next number is planned as long as memory makes the last one compute again, and the last one
    was faster than those before. The bound is the least of the bounds of all that were kept.

    Args:
        training: the step.
        request: cluster, options and progress.
        found: the plan with the fewest micro-batches.
        below_s: step from which on others are of no use [s].
    """
    options, limit = request.options, limit_of(request.options, request.machine)
    for count in range(found.program.microbatches + 1, MICROBATCHES.stop):
        file = found.program
        if options.microbatches or request.over or not file.recomputed:
            break
        if file.peak_bytes <= SPARE * limit:
            break
        asked = replace(request, options=replace(options, microbatches=count))
        # rewrites may pay there as well, which a plan without them cannot show
        cutoff_s = math.inf if file.substitutions else min(found.step_s, below_s)
        try:
            other = fewest(training, asked, cutoff_s)
        except IndivisibleError:
            continue
        except PlanError:  # none is faster, or the loss has no parts
            break
        except KeyboardInterrupt:
            if not request.interruption.kept(found=True):
                raise
            break
        if other.step_s >= found.step_s:  # the cutoff is one of estimates too
            break
        both = bounded(other.program, other.lower_bound_s, file.lower_bound_s)
        found = replace(other, program=both)
    return found


def waiting_on_host(plan: Callable[[Waiting], PlannedProgram]) -> PlannedProgram:
    """A plan with state on the host, or else with parameters too.

    Raises:
        PlanError: of the first that the memory of the host forbids, else of the last.
    """
    refused: list[PlanError] = []
    for waiting in (Waiting.STATES, Waiting.PARAMETERS):
        try:
            return plan(waiting)
        except PlanError as error:
            if error.kind != "does-not-fit":
                raise
            refused.append(error)
    raise next((error for error in refused if error.where == HOST), refused[-1])


def _or_waiting(
    error: PlanError, request: Request, plan: Callable[[Waiting], PlannedProgram]
) -> PlannedProgram:
    """As `waiting_on_host`, after a plan with everything on the devices did not fit."""
    if error.kind != "does-not-fit" or not may_offload(request.options, request.machine):
        raise error
    try:
        return waiting_on_host(plan)
    except PlanError as other:
        if other.kind != "does-not-fit":
            raise
        raise _also_on_hosts(error, other) from other


def _also_on_hosts(error: PlanError, other: PlanError) -> PlanError:
    """The error of a step, with what forbids state on the host if that is the host's memory."""
    if other.where != HOST:
        return error
    return PlanError(
        f"{error.message}; with state on the host: {other.message}", kind=error.kind,
        where=error.where, needs_bytes=error.needs_bytes,
        remedy=f"{error.remedy}; {other.remedy}",
    )  # fmt: skip


def fewest(
    training: Training,
    request: Request,
    cutoff_s: float = float("inf"),
    waiting: Waiting = Waiting.NOTHING,
) -> PlannedProgram:
    """The plan with the fewest micro-batches that fits; its bound and gap are for that count.

    If no plan is below the cutoff, the error names the cutoff. Each further micro-batch launches
    every kernel once more and all-gathers every split parameter once more.

    Args:
        training: the step.
        request: cluster, options and progress.
        cutoff_s: upper limit of the step [s].
        waiting: what waits on the host from step to step.

    Raises:
        PlanError: if nothing fits or is below the cutoff.
    """
    refused: PlanError | None = None
    uncut: IndivisibleError | None = None
    planned: list[int] = []
    short: list[tuple[int, float]] = []
    options = request.options
    limit = limit_of(options, request.machine)
    for count in (options.microbatches,) if options.microbatches else MICROBATCHES:
        if least_needed(short, count) > limit:
            continue
        if count > 1:
            request.say(f"{count} micro-batches")
        try:
            call = training.step(count, options.loss_reduction)
        except PlanError as error:
            if refused is None:
                raise
            if isinstance(error, IndivisibleError):
                uncut = uncut or error
                continue  # the batch does not divide by this count
            raise _whole_only(refused, error) from error
        planned.append(count)
        try:
            one = One(call, count, (0, 1), TRAINING_ROLES, training.name)
            return plan_one(one, request, cutoff_s, waiting)
        except PlanError as error:
            if error.kind != "does-not-fit" or isinstance(error, HeldError):
                raise
            refused = refused or error
            if isinstance(error, ShortError) and count > 1:  # 1 has no gradient sums
                short.append((count, error.needs_bytes))
    assert refused is not None
    raise _whole_only(refused, uncut) if planned == [1] else refused


def _whole_only(refused: PlanError, why: PlanError | None) -> PlanError:
    """The error of a step that does not fit, with the reason why micro-batches do not help."""
    if why is None:
        return refused
    return PlanError(
        f"{refused.message}; micro-batches are of no help: {why.message}", kind=refused.kind,
        where=refused.where, needs_bytes=refused.needs_bytes,
        remedy=refused.remedy.replace(OR_PARTS, ""),
    )  # fmt: skip


def least_needed(short: Sequence[tuple[int, float]], count: int) -> float:
    """Lower bound of the bytes that a step needs, from the needs with fewer micro-batches.

    The memory at a moment is c + a / m with m micro-batches, so that the peak is convex in 1 / m
    and, beyond two points, above the line through them.

    Args:
        short: micro-batches and bytes that they need at least, of two or more smaller numbers.
        count: micro-batches.
    """
    if len(short) < 2:
        return 0.0
    (m, more), (n, less) = short[-2:]
    slope = (more - less) / (1 / m - 1 / n)
    return (less - slope * (1 / n - 1 / count)) * (1 - ROUNDED)
