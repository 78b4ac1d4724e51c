"""Every sort of step that random programs are made of."""

from __future__ import annotations

from collections.abc import Mapping

from ..program import Kind
from . import control, elementwise, index, layout, linalg, numbers, product, reduction, window

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for family in (
        control, elementwise, index, layout, linalg, numbers, product, reduction, window
    )
    for kind in family.KINDS
}  # fmt: skip
