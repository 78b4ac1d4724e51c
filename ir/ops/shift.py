"""Shifts along one dimension: every element moves by so many places, in a ring or with zeros.

    result[i] = x[i - by]    where that index exists; else x[(i - by) mod n] if the shift wraps
                             around, and zero if it does not

JAX has no primitive for it: `ir/shifts.py` reads one from the slices, pads and concatenations that
`jnp.roll` and `jnp.pad(x[:-1], (1, 0))` become. Split along that dimension, a device takes `by`
elements from the shards before its own, of one or two devices. The joint factor `halo` says so.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from .attention import HALO
from .build import as_whole, build_spec, linear_in, names, no_flops, whole_number
from .sliding import Slide, splitting

SHIFT: Final = "shift"
_ALONG = "x"


def _spec(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    axis = whole_number(attrs["axis"])
    dims = [*names("d", operands[0].rank)]
    dims[axis] = _ALONG
    spec = build_spec(operands, [dims], results, [dims], as_whole([_ALONG]))
    return splitting(spec, slides(operands, results, attrs))


def slides(operands: Types, results: Types, attrs: Attributes) -> tuple[Slide, ...]:
    """The dimension of a shift; elements come from the shard before, or the one behind."""
    del results
    axis, by = whole_number(attrs["axis"]), whole_number(attrs["by"])
    size = operands[0].shape[axis]
    if size < 2:
        return ()
    return (
        Slide(
            HALO, size, (_ALONG,), -1, (0,), axis, max(0, by), max(0, -by), (0, 0), shifts=True,
            wraps=bool(attrs["wraps"]),
        ),
    )  # fmt: skip


def _meaning(attrs: Attributes, x: Any) -> Any:
    axis, by = whole_number(attrs["axis"]), whole_number(attrs["by"])
    found = np.roll(x, by, axis)
    if not attrs["wraps"]:
        gone = slice(0, by) if by > 0 else slice(by, None)
        found[(slice(None),) * axis + (gone,)] = 0
    return found


RECORDS = (OpDef(SHIFT, _spec, "layout", no_flops, linear_in((0,)), meaning=_meaning),)
