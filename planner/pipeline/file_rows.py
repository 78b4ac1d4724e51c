"""Rows of the plan file of a pipeline: its stages, and pipelines as they are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from ..files.plan_file import StageCost, StageRow
from ..files.program_plan import BaselineRow, ProgramPlan
from .divide.simulated import Ranked
from .trials import PlannedPipeline


def stage_rows(
    found: PlannedPipeline, programs: Sequence[ProgramPlan], names: Sequence[tuple[str, ...]]
) -> tuple[StageRow, ...]:
    """Rows of the plan file, one for each stage.

    Args:
        found: the pipeline.
        programs: the distinct programs of its stages.
        names: of the parameters of each stage.
    """
    shape, best = found.ranked.shape, found.ranked
    starts = (*accumulate(shape.groups, initial=0),)
    rows: list[StageRow] = []
    for s, (plan, p, sent) in enumerate(
        zip(found.plans, found.prices, (*found.across, 0.0), strict=True)
    ):
        first = starts[shape.group[s]]
        cost = StageCost(*(float(x) for x in (
            p.forward_s, p.input_gradient_s, p.weight_gradient_s, p.once_s, p.held_bytes,
            p.activation_bytes, p.boundary_bytes, sent, p.static_bytes,
        )))  # fmt: skip
        rows.append(
            StageRow(
                (shape.cuts[s], shape.cuts[s + 1]), (first, first + shape.sizes[s]),
                best.stage_s[s], best.peak_bytes[s], shape.recompute[s],
                next(k for k, program in enumerate(programs) if program is plan.program),
                names[s], cost,
            )
        )  # fmt: skip
    return tuple(rows)


def by_hand_rows(found: Mapping[str, Ranked]) -> dict[str, BaselineRow]:
    """Rows of hand-written pipelines.

    Args:
        found: those that were priced, by name.
    """
    rows: dict[str, BaselineRow] = {}
    for name, r in found.items():
        devices = "+".join(map(str, r.shape.sizes))
        form = f"{devices} devices, {r.shape.microbatches} micro-batches, {r.schedule}"
        rows[name] = BaselineRow(r.step_s, r.worst_bytes, True, form)
    return rows
