"""Exports a plan, of one program or in stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...files.plan_file import PlanFile
from ..analysed_plan import AnalysedPlan
from .stages import export_stages
from .write import Written, export_files


def export_plan(
    file: PlanFile,
    programs: Sequence[AnalysedPlan],
    to: str,
    path: Path,
    where: str,
    serialize: Callable[[], tuple[str, bytes]],
) -> Written:
    """Writes a plan for another runtime, all files or none.

    Args:
        file: the plan.
        programs: the search space around each of `file.programs`.
        to: name of the format.
        path: the file to write; some formats write others beside it.
        where: the plan is, for errors.
        serialize: the compiled program as (StableHLO text, bytes of `jax.export`).

    Raises:
        PlanError: if the format is unknown, cannot express the plan, or cannot be written.
    """
    if not file.in_stages:
        return export_files(programs[0], to, path, serialize)
    return export_stages(file, programs, to, path, where)
