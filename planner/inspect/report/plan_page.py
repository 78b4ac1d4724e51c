"""A plan as one HTML file: the page of one program, or of stages."""

from __future__ import annotations

from collections.abc import Sequence

from ...files.plan_file import PlanFile
from ..analysed_plan import AnalysedPlan
from .page import program_html
from .pipeline_page import pipeline_html


def report_html(file: PlanFile, programs: Sequence[AnalysedPlan]) -> str:
    """The report of a plan.

    Args:
        file: the plan.
        programs: the search space around each of `file.programs`.

    Raises:
        PlanError: if the plan does not fit this version's search space.
    """
    if file.pipeline is None:
        return program_html(file, programs[0])
    return pipeline_html(file, file.pipeline, programs)
