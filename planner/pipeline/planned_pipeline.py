"""What the search for a pipeline returns: a record, of which `planner.api` makes the result."""

from __future__ import annotations

from dataclasses import dataclass, field

from .pipeline_file import PipelineFile
from .stage_planner import BoundStages


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """A planned pipeline.

    file: the plans of its stages, its schedule and its predicted cost.
    bound: the loss, cut as the file says.
    seconds: spent, by pass.
    cached: the plans of all its stages were found in the plan store.
    """

    file: PipelineFile
    bound: BoundStages
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    cached: bool = False
