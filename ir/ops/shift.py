"""Shifts along one dimension: every element moves by so many places, in a ring or with zeros.

    result[i] = x[i - by]    where that index exists; else x[(i - by) mod n] if the shift wraps
                             around, and zero if it does not

JAX has no primitive for it: `ir/shifts.py` reads one from the slices, pads and concatenations that
`jnp.roll` and `jnp.pad(x[:-1], (1, 0))` become. Split along that dimension, a device takes `by`
elements from the shard beside its own. The joint factor `halo` says so; it splits the dimension
into shards of `by` elements or more.

Source: the spatial splits of Jia et al., OptCNN, ICML 2018, and Wang et al., Tofu, EuroSys 2019.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from .attention import HALO
from .build import as_whole, build_spec, linear_in, names, no_flops, whole_number

SHIFT: Final = "shift"
_ALONG = "x"


def _spec(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    axis, by = whole_number(attrs["axis"]), abs(whole_number(attrs["by"]))
    dims = [*names("d", operands[0].rank)]
    dims[axis] = _ALONG
    spec = build_spec(operands, [dims], results, [dims], as_whole([_ALONG]))
    size = operands[0].shape[axis]
    parts = size // next(n for n in range(max(1, by), size + 1) if size % n == 0)
    if parts < 2 or size < 2:
        return spec
    return replace(spec, sizes=(*spec.sizes, (HALO, parts)), joint=((HALO, (_ALONG,)),))


def border_elements(node_attrs: Attributes, operand: Types) -> tuple[int, tuple[str, ...]]:
    """Elements that pass one border between shards, and the factors that split them."""
    axis, by = whole_number(node_attrs["axis"]), abs(whole_number(node_attrs["by"]))
    others = [n for d, n in enumerate(operand[0].shape) if d != axis]
    return by * math.prod(others), tuple(f"d{d}" for d in range(operand[0].rank) if d != axis)


def _meaning(attrs: Attributes, x: Any) -> Any:
    axis, by = whole_number(attrs["axis"]), whole_number(attrs["by"])
    found = np.roll(x, by, axis)
    if not attrs["wraps"]:
        gone = slice(0, by) if by > 0 else slice(by, None)
        found[(slice(None),) * axis + (gone,)] = 0
    return found


RECORDS = (OpDef(SHIFT, _spec, "layout", no_flops, linear_in((0,)), meaning=_meaning),)
