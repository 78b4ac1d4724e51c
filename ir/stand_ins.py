"""Stand-ins for primitives, for nodes that do not come from an equation of a jaxpr."""

from __future__ import annotations

from typing import Any

from .placements import ASKED


class CapturedArray:
    """Replaces a primitive: binds to an array captured inside an inlined call."""

    name = "constant"
    multiple_results = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def bind(self, **_: Any) -> Any:
        return self.value


class AskedPlace:
    """Replaces a primitive: a placement that a jitted function requests for a value."""

    name = ASKED
    multiple_results = False

    def bind(self, x: Any, **_: Any) -> Any:
        return x
