"""What runs nodes that no equation of a jaxpr made: they are bound as primitives are."""

from __future__ import annotations

from typing import Any

from .placements import ASKED


class CapturedArray:
    """Stands for a primitive: binds to an array captured inside an inlined call."""

    name = "constant"
    multiple_results = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def bind(self, **_: Any) -> Any:
        return self.value


class AskedPlace:
    """Stands for a primitive: a value that a jitted function asks to have somewhere."""

    name = ASKED
    multiple_results = False

    def bind(self, x: Any, **_: Any) -> Any:
        return x
