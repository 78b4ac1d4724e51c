# pyright: basic
"""A plan in stages joined with its loss and optimizer, and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir import digest

from ..common.errors import PlanError
from ..emit.pipeline.build import build_pipeline
from ..emit.pipeline.runtime import Pipeline
from ..emit.pipeline.scan import ScannedPipeline, scanned_pipeline
from ..emit.pipeline.transfer import split_devices
from ..files.plan_file import PlanFile
from ..inspect.analysed_plan import analyse_plan
from ..pipeline.cut.opened_loss import cut_of, opened
from ..pipeline.cut.solved_stage import solved_of
from ..pipeline.divide.simulated import table_of
from ..pipeline.stage_planner import BoundStages
from ..sharding.written_attention import as_attended
from ..training.step_call import params_and_batch
from .bind import check_settings

RUNTIMES = ("dispatch", "scan")


def bound_stages(
    file: PlanFile, where: str, fn: Any, args: tuple[Any, ...], settings: dict[str, Any]
) -> BoundStages:
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
    loss = opened(
        as_attended(fn, rows, machine), params, batch, microbatches=joined.microbatches,
        loss_reduction=joined.loss_reduction, **settings,
    )  # fmt: skip
    if file.cuts[-1] != len(loss.layers.slots):
        raise PlanError(
            f"the plan is of a program of {file.cuts[-1]} slots, this one has "
            f"{len(loss.layers.slots)}", kind="differs", where=where, remedy=remedy,
        )  # fmt: skip
    cut = cut_of(loss, file.cuts, file.recompute)
    rows = tuple(program.substitutions for program in file.members)
    pads = tuple(program.padded for program in file.members)
    bound = BoundStages(
        loss, cut, settings["optimizer"], rows if any(rows) else (), pads if any(pads) else ()
    )
    for s, (stage, program) in enumerate(zip(bound.stages, file.members, strict=True)):
        if digest(stage.traced.graph) != program.graph_digest:
            raise PlanError(
                f"stage {s} of this program is not the one that was planned", kind="differs",
                where=where, remedy=remedy,
            )  # fmt: skip
    return bound


def compiled_stages(
    file: PlanFile, bound: BoundStages, devices: Sequence[Any], where: str, runtime: str
) -> Pipeline | ScannedPipeline:
    """The step: (params, opt_state, batch) -> (params, opt_state, loss).

    Args:
        file: the plan.
        bound: its loss.
        devices: at least as many as the plan needs.
        where: the plan is, for errors.
        runtime: one of `RUNTIMES`.

    Raises:
        PlanError: if the stages cannot run as one program, with what stands in the way.
    """
    joined = file.joined
    schedule = table_of(joined.schedule, joined.microbatches, file.recompute, joined.chunks)
    members = [analyse_plan(program, where) for program in file.members]
    solved = [
        (stage.program, solved_of(stage, member.decisions, member.reshard))
        for stage, member in zip(bound.stages, members, strict=True)
    ]
    options = [member.compiler_options for member in file.members]
    if runtime == "scan":
        first, *others = options
        common = dict(item for item in first.items() if all(item in o.items() for o in others))
        return scanned_pipeline(
            bound.loss, file.cuts, schedule, devices, file.recompute, solved, common
        )
    groups = split_devices(list(devices), file.groups)
    return build_pipeline(bound.loss, file.cuts, schedule, groups, file.recompute, solved, options)
