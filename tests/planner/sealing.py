# pyright: basic
"""Files with the seal of what they say now, so that it is looked at what they say."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from planner import PlanError
from planner.files.plan_file import PlanFile
from planner.files.seal import sealed


def with_program(raw: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A plan of one program with fields of that program changed."""
    (program,) = raw["programs"]
    return raw | {"programs": [program | keys]}


def resealed(raw: Any) -> Any:
    """A changed plan, sealed; as it is where that is none."""
    if not isinstance(raw, dict):
        return raw
    plain = {key: value for key, value in raw.items() if key != "seal"}
    try:
        file = msgspec.json.decode(json.dumps(plain).encode(), type=PlanFile)
        return json.loads(sealed(file, "here"))
    except (ValueError, TypeError, RecursionError, PlanError):
        return raw
