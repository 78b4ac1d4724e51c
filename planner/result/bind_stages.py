# pyright: basic
"""A plan in stages joined with its loss and optimizer, and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir import digest

from .. import emit, pipeline
from ..common.errors import PlanError
from ..files.plan_file import PlanFile
from ..inspect.analysed_plan import analyse_plan
from ..sharding.written_attention import as_attended
from ..training.step_call import params_and_batch
from .bind import check_settings, form_of


def bound_stages(
    file: PlanFile, where: str, fn: Any, args: tuple[Any, ...], settings: dict[str, Any]
) -> pipeline.BoundStages:
    """The loss of a training step, cut into the stages of a plan.

    Args:
        file: the plan.
        where: the plan is, for errors.
        fn: the loss function.
        args: its parameters and batch.
        settings: `optimizer=`, `has_aux=` and `batch_axis=`.

    Raises:
        PlanError: if they differ from the plan's; it says in which stage.
    """
    check_settings(settings)
    params, batch = params_and_batch(args)
    remedy, joined = "plan this function anew", file.joined
    rows, machine = file.programs[0].attention, analyse_plan(file.programs[0], where).cluster
    loss = pipeline.opened(
        as_attended(fn, rows, machine), params, batch, microbatches=joined.microbatches,
        loss_reduction=joined.loss_reduction, **settings,
    )  # fmt: skip
    if file.cuts[-1] != len(loss.layers.slots):
        raise PlanError(
            f"the plan is of a program of {file.cuts[-1]} slots, this one has "
            f"{len(loss.layers.slots)}", kind="differs", where=where, remedy=remedy,
        )  # fmt: skip
    cut = pipeline.cut_of(loss, file.cuts, file.recompute)
    rows = tuple(program.substitutions for program in file.members)
    edits = tuple(pipeline.StageEdits.of(program) for program in file.members)
    bound = pipeline.BoundStages(
        loss, cut, settings["optimizer"], rows if any(rows) else (), edits if any(edits) else ()
    )
    for s, (stage, program) in enumerate(zip(bound.stages, file.members, strict=True)):
        if digest(stage.traced.graph) != program.graph_digest:
            raise PlanError(
                f"stage {s} of this program is not the one that was planned", kind="differs",
                where=where, remedy=remedy,
            )  # fmt: skip
    return bound


def compiled_stages(
    file: PlanFile, bound: pipeline.BoundStages, devices: Sequence[Any], where: str, runtime: str
) -> emit.Pipeline | emit.ScannedPipeline:
    """The step: (params, opt_state, batch) -> (params, opt_state, loss).

    Args:
        file: the plan.
        bound: its loss.
        devices: at least as many as the plan needs.
        where: the plan is, for errors.
        runtime: `dispatch` or `scan`.

    Raises:
        PlanError: if the stages cannot run as one program, with what stands in the way.
    """
    joined = file.joined
    schedule = pipeline.table_of(
        joined.schedule, joined.microbatches, file.recompute, joined.chunks
    )
    members = [analyse_plan(program, where) for program in file.members]
    solved = [
        (stage.program, pipeline.solved_of(stage, member.decisions, member.reshard))
        for stage, member in zip(bound.stages, members, strict=True)
    ]
    options = [member.compiler_options for member in file.members]
    if runtime == "scan":
        first, *others = options
        common = dict(item for item in first.items() if all(item in o.items() for o in others))
        return emit.scanned_pipeline(
            bound.loss, file.cuts, schedule, devices, file.recompute, solved, common
        )
    groups = emit.split_devices(list(devices), file.groups)
    return emit.build_pipeline(
        bound.loss, file.cuts, schedule, groups, file.recompute, solved, options
    )


def argument_like(
    bound: pipeline.BoundStages, tree: Any, what: str, argnum: int | None, where: str
) -> int:
    """Number of the argument that has the structure and shapes of a tree.

    0 are the parameters, 1 is the state of the optimizer; the batch is placed as a step is called.

    Args:
        bound: the loss of the plan.
        tree: one whole argument.
        what: the tree is, for errors.
        argnum: its number; found by its form if None.
        where: the plan is, for errors.

    Raises:
        PlanError: if neither, or both, have this form.
    """
    if argnum not in (None, 0, 1):
        raise PlanError(
            f"must be 0 or 1, got {argnum!r}", kind="bad-option", where="argnum",
            remedy="the batch is placed as a step is called",
        )  # fmt: skip
    forms = [form_of(each) for each in (bound.loss.params, bound.loss.built.opt_state_structs)]
    own = form_of(tree)
    found = [k for k, form in enumerate(forms) if form == own and argnum in (None, k)]
    if not found:
        wanted = "neither parameters nor optimizer state"
        raise PlanError(
            f"{what} has {len(own[1])} arrays in {own[0]}, which is "
            + (wanted if argnum is None else f"not argument {argnum}"),
            kind="differs", where=where, remedy="pass all parameters, or all of the state",
        )  # fmt: skip
    if len(found) > 1:
        raise PlanError(
            f"{what} has the form of both parameters and optimizer state", kind="ambiguous",
            where=where, remedy="say which one with argnum=",
        )  # fmt: skip
    return found[0]
