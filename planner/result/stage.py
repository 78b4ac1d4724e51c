"""A stage of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.surface import public_methods


@public_methods
@dataclass(frozen=True)
class Stage:
    """Consecutive layers on one mesh of devices; plans of one program have one stage."""

    layers: tuple[int, int]
    devices: tuple[int, int]
    mesh: dict[str, int]
    step_s: float
    peak_bytes: float
    recompute: str
