# pyright: basic
"""A training step as one program or as a pipeline, whichever is faster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import jax
from msgspec import structs

from ir import IRError, Mesh
from ir.trace import trace

from ..common.errors import HeldError, PlanError
from ..common.interruption import ADVICE
from ..common.options import Options
from ..common.request import OutOfTimeError, Request
from ..common.stop import AS_MANY, ASKED, NO_STAGES, PART, PROVED, REWRITTEN, Stop
from ..files.plan_file import ONE_PROGRAM, Pipeline, file_of
from ..files.program_plan import BaselineRow, ProgramPlan, fits
from ..sharding.fewest_microbatches import (
    fewest,
    fewest_or_faster,
    fewest_or_states,
    waiting_on_host,
    with_more,
)
from ..sharding.planned_program import PlannedProgram
from ..sharding.wished import asks_for_shardings, with_asked
from ..training.step_call import params_and_batch
from ..training.training import Training
from .cut.stage_training_step import StageTrainingStep
from .divide.dynamic_programme import EXACT
from .edit_stages import edited_pipeline
from .file_rows import by_hand_rows, stage_rows
from .planned import Planned, in_one_program
from .rewrite_stages import rewritten_pipeline
from .search import PipelineSearch
from .stage_choices import CHOSEN
from .trials import PlannedPipeline

ROUNDING = 1e-9  # relative: the same seconds summed in another order


def one_or_stages(training: Training, request: Request) -> Planned:
    """Plans a training step as one program, or as a pipeline where it is faster or alone fits.

    Args:
        training: the loss and its optimizer.
        request: machine, options, and progress callback.

    Raises:
        PlanError: if neither fits, or the pipeline that was asked for is not possible.
    """
    options = request.options
    search = PipelineSearch(  # stages have no shardings of the program: it is one program then
        training, replace(request, options=replace(options, shardings="warn"))
    )
    if isinstance(options.pipeline, int):
        params_and_batch(training.args)
        if ignored := _ignored(options) or _pinned_inside(training, options):
            raise PlanError(
                f"{ignored} applies to a single program, and each stage of a pipeline has its own",
                kind="bad-option", where=f"Options.{ignored}",
                remedy=f"{_LEFT_OUT.get(ignored, f'leave {ignored} out')}, or plan with "
                "pipeline='off'",
            )  # fmt: skip
        found = _run(search, options.pipeline)
        if found is None:
            raise search.refusal()
        return _plan_of(found, search, _ASKED)
    if options.pipeline == "off" or _ignored(options):
        return _in_one_program(
            request, with_more(training, request, fewest_or_states(training, request))
        )
    if request.machine.num_devices <= request.machine.island:
        return _one_if_it_fits(search, request)
    if _pinned_inside(training, options):
        return _in_one_program(
            request, with_more(training, request, fewest_or_states(training, request))
        )
    return _faster(search)


_INTERRUPTED = "the search for pipelines was interrupted; some may be faster"
_KINDS = "pipelines are bounded with one kind of recomputation in each stage"
_OUT_OF_TIME = "the time limit ended the search for pipelines; some may be faster"
_OUT_OF_TIME_IN_STAGES = "the time limit ended the search: a better pipeline may exist"
_ASKED = "was not planned, as a pipeline is asked for; pipeline='auto' plans both"
_OF_PIPELINES = ("pipeline", "microbatches", "schedules", "recompute")  # settings of the search
_LEFT_OUT = {"shardings": "plan with shardings='warn'"}


def _in_one_program(request: Request, plan: PlannedProgram) -> Planned:
    """A plan of one program, which says that its bound is of its own number of micro-batches."""
    if request.options.microbatches is None:
        notes = (*plan.program.warnings, AS_MANY)
        plan = replace(plan, program=structs.replace(plan.program, warnings=notes))
    return in_one_program(plan)


def _ignored(options: Options) -> str:
    """Name of a given option that only applies to one program; empty if there is none."""
    given = {
        "pins": options.pins, "mesh": options.mesh, "forbidden": options.forbidden,
        "baseline": options.baseline,
        "recompute": options.recompute not in ("auto", "written"),
    }  # fmt: skip
    return next((name for name, value in given.items() if value), "")


def _pinned_inside(training: Training, options: Options) -> str:
    """The name of the option `shardings` if it makes pins of what the loss is written with."""
    if options.shardings != "pin":
        return ""
    traced = trace(training.loss_fn, *training.args)
    return "shardings" if asks_for_shardings(traced) else ""


def _one_if_it_fits(search: PipelineSearch, request: Request) -> Planned:
    """Plans one program, or a pipeline if it does not fit: all devices share a fast network."""
    single = request.machine.num_devices == 1  # of which no pipeline can be made
    try:
        plan = with_more(search.training, request, fewest_or_faster(search.training, request))
    except PlanError as error:
        if error.kind != "does-not-fit" or _pinned_inside(search.training, request.options):
            raise
        found, why = (None, "") if single else _tried(search)
        try:
            step_s = found.ranked.step_s if found else float("inf")
            return _in_one_program(
                request,
                waiting_on_host(lambda kind: fewest(search.training, request, step_s, kind)),
            )
        except PlanError as other:
            if other.kind not in ("does-not-fit", "not-faster"):
                raise
        if found is None:
            raise _and_no_pipeline(error, why) from error
        return _plan_of(found, search, error.message)
    if single:
        return _in_one_program(request, plan)
    notes = (*plan.program.warnings, NO_STAGES)
    return _in_one_program(
        request, replace(plan, program=structs.replace(plan.program, warnings=notes))
    )


def _and_no_pipeline(error: PlanError, why: str) -> PlanError:
    """The error of one program with the reason why no pipeline is possible, once if equal."""
    said = error.message.rpartition(": ")[2]
    if not why or said in why:
        return error
    return PlanError(
        f"{error.message}; no pipeline was looked at: {why}", kind=error.kind, where=error.where,
        remedy=error.remedy, needs_bytes=error.needs_bytes,
    )  # fmt: skip


def _faster(search: PipelineSearch) -> Planned:
    """Plans one program, then the pipelines below its step, and returns the faster."""
    request, refused = search.request, None
    try:
        plan = fewest_or_states(search.training, request)
    except PlanError as error:
        if error.kind != "does-not-fit":
            raise
        plan, refused = None, error
    if plan is not None:
        if request.interruption.happened:
            return _in_one_program(request, plan)
        if request.over:
            return _one(plan, search, "", 0.0)
        search.below_s = plan.step_s * (1 + 2 * EXACT)  # so that it does not limit their bound
    begun = time.monotonic()
    found, why = _tried(search)
    if plan is None:
        assert refused is not None
        if found is None:
            raise _and_no_pipeline(refused, why) from refused
        return _plan_of(found, search, refused.message)
    spent_s = time.monotonic() - begun
    stages_s = found.ranked.step_s if found else float("inf")
    plan = with_more(search.training, request, plan, stages_s)
    if found is None or plan.step_s <= stages_s:
        return _one(plan, search, why, spent_s)
    one = BaselineRow(
        plan.step_s, plan.program.peak_bytes, fits(plan.program), str(Mesh(plan.program.mesh))
    )
    return _plan_of(found, search, {**plan.program.baselines, ONE_PROGRAM: one})


def _one(plan: PlannedProgram, search: PipelineSearch, why: str, spent_s: float) -> Planned:
    """The plan of one program after the search for pipelines.

    Args:
        plan: the plan.
        search: for a pipeline below its step.
        why: there is none of this program; empty if they were looked at.
        spent_s: seconds of that search.
    """
    file, request = plan.program, search.request
    if why:
        notes = (*file.warnings, f"no pipeline was looked at: {why}")
        file = structs.replace(file, warnings=notes)
    elif (pipelines_s := _bound(search, plan.step_s)) is None:
        interrupted = request.interruption.happened
        notes = (*file.warnings, _INTERRUPTED if interrupted else _OUT_OF_TIME)
        stop = Stop.INTERRUPTED if interrupted else Stop.TIME_LIMIT
        file = structs.replace(file, warnings=notes, lower_bound_s=0.0, stop=stop.name)
    else:
        file = _among_pipelines(file, pipelines_s)
        if request.options.recompute == "auto":  # stages might choose value by value
            file = structs.replace(file, warnings=(*file.warnings, _KINDS))
    total = time.monotonic() - request.start
    seconds = {**plan.seconds, "inter": spent_s, "total": total}
    return _in_one_program(request, replace(plan, program=file, seconds=seconds))


def _bound(
    search: PipelineSearch, step_s: float, rewritten: Sequence[StageTrainingStep] = ()
) -> float | None:
    """As `PipelineSearch.lower_bound_s`; None if Ctrl-C or the time limit ended the search."""
    if search.request.over:
        return None
    try:
        return search.lower_bound_s(step_s, rewritten)
    except OutOfTimeError:
        return None


def _among_pipelines(program: ProgramPlan, pipelines_s: float) -> ProgramPlan:
    """A program's plan with a bound that holds for pipelines too.

    Args:
        program: the plan.
        pipelines_s: lower bound of the steps of pipelines [s].
    """
    least_s, notes, stop = min(program.lower_bound_s, pipelines_s), program.warnings, program.stop
    if stop == Stop.OPTIMAL.name and program.step_s - least_s > PROVED * program.step_s:
        stop = Stop.GAP.name
        notes = (*notes, "this is the best single program; pipelines may be faster by the gap")
    return structs.replace(program, lower_bound_s=least_s, stop=stop, warnings=notes)


def _tried(search: PipelineSearch) -> tuple[PlannedPipeline | None, str]:
    """The best pipeline, or the reason why this program has none."""
    try:
        return _run(search, None), ""
    except HeldError as error:
        return None, error.message
    except (PlanError, IRError) as error:
        return None, str(error)


def _run(search: PipelineSearch, asked: int | None) -> PlannedPipeline | None:
    """The fastest pipeline; of those planned before Ctrl-C or the time limit, if any is below."""
    try:
        return search.run(asked)
    except OutOfTimeError:
        return search.best
    except KeyboardInterrupt:
        some = search.best is not None or search.below_s < float("inf")
        if not search.request.interruption.kept(found=some):
            raise
        return search.best


def _plan_of(
    found: PlannedPipeline, search: PipelineSearch, single: dict[str, BaselineRow] | str
) -> Planned:
    """The pipeline as a plan.

    Args:
        found: the pipeline.
        search: the search that found it.
        single: the best plan without stages and hand-written ones, or why there is none.
    """
    no_single = single if isinstance(single, str) else ""
    rows = {**({} if isinstance(single, str) else single), **by_hand_rows(search.by_hand)}
    substitute_s, refused = 0.0, ()
    if not search.request.over:
        with suppress(OutOfTimeError):
            found = edited_pipeline(found, search)
            found, substitute_s, refused = rewritten_pipeline(found, search)
    best, loss = found.ranked, found.bound.loss
    others = any(replace(edits, recomputed=None, hosted=()) for edits in found.bound.edits)
    edited = found.bound.stages if found.bound.rows or others else ()
    bound = _bound(search, best.step_s, edited)
    stop = Stop.GAP
    if bound is None:
        interrupted = search.request.interruption.happened
        stop = Stop.INTERRUPTED if interrupted else Stop.TIME_LIMIT
        refused = (*refused, ADVICE if interrupted else _OUT_OF_TIME_IN_STAGES)
    if bound is None or bound > best.step_s * (1 + ROUNDING):
        bound = 0.0  # not known, or the plan is below it, so that it is no bound
    pipeline = Pipeline(
        name=search.training.name, cluster=search.machine.to_dict(), step_s=best.step_s,
        lower_bound_s=min(bound, best.step_s), bubble=max(best.bubble, 0.0),
        limit_bytes=search.limit, microbatches=best.shape.microbatches, schedule=best.schedule,
        chunks=best.shape.turns.chunks, loss_reduction=loss.built.reduction, baselines=rows,
        warnings=_warnings(
            search, (*loss.built.warnings, *_unbounded(found, search.request.options), *refused)
        ),
        stop=stop.name,
        no_single=no_single,
    )  # fmt: skip
    programs = tuple({id(plan.program): plan.program for plan in found.plans}.values())
    file = file_of(stage_rows(found, programs, _names(found)), programs, pipeline)
    total = time.monotonic() - search.request.start
    cached = all(plan.cached for plan in found.plans)
    spent = dict.fromkeys(("trace", "substitute", "build", "solve"), 0.0)  # included in `inter`
    spent |= {"substitute": substitute_s, "inter": total - substitute_s, "total": total}
    return Planned(file, found.bound, spent, cached=cached)


def _unbounded(found: PlannedPipeline, options: Options) -> tuple[str, ...]:
    """What the bound of a pipeline does not cover: settings that were given, and choices."""
    given = {name: getattr(options, name) for name in _OF_PIPELINES}
    asked = [
        f"{name}={', '.join(value) if isinstance(value, tuple) else value}"
        for name, value in given.items()
        if value != getattr(Options(), name)
    ]
    held = (
        (ASKED + "; ".join(asked), bool(asked)),
        (PART, CHOSEN in found.ranked.shape.recompute),
        (REWRITTEN, bool(found.bound.rows)),
    )
    return tuple(note for note, holds in held if holds)


def _warnings(search: PipelineSearch, built: Sequence[str]) -> tuple[str, ...]:
    """Warnings of the step's builder, and requests of the loss that the plan does not honour."""
    traced = trace(search.training.loss_fn, *search.training.args)
    _, notes = with_asked(search.options, traced, search.machine)
    return tuple(dict.fromkeys((*built, *traced.warnings, *notes)))


def _names(found: PlannedPipeline) -> tuple[tuple[str, ...], ...]:
    """Names of the parameters of every stage."""
    paths = jax.tree_util.tree_leaves_with_path(found.bound.loss.params)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    return tuple(
        tuple(
            names[use.leaf] + ("" if use.whole else f"[{use.low}:{use.high}]")
            for use in stage.params
        )
        for stage in found.bound.cut.stages
    )
