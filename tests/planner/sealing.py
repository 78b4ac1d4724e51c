# pyright: basic
"""Files with the seal of what they say now, so that it is looked at what they say."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from planner import PlanError
from planner.files.plan_file import PlanFile
from planner.files.seal import sealed
from planner.pipeline.pipeline_file import PipelineFile


def resealed(raw: Any) -> Any:
    """A changed plan or pipeline, sealed; as it is where that is none."""
    if not isinstance(raw, dict):
        return raw
    kind = PipelineFile if "plans" in raw else PlanFile
    plain = {key: value for key, value in raw.items() if key != "seal"}
    try:
        file = msgspec.json.decode(json.dumps(plain).encode(), type=kind)
        return json.loads(sealed(file, "here"))
    except (ValueError, TypeError, RecursionError, PlanError):
        return raw
