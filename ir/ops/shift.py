"""Shifts along one dimension: every element moves by so many places, in a ring or with zeros.

    result[i] = x[i - by]    where that index exists; else x[(i - by) mod n] if the shift wraps
                             around, and zero if it does not

Of a longer array only the first `ring` elements may be a ring, and what is behind them stays.

JAX has no primitive for it: `ir/shifts.py` reads one from the slices, pads and concatenations that
`jnp.roll` and `jnp.pad(x[:-1], (1, 0))` become. Split along that dimension, a device takes `by`
elements from the shards before its own, of one or two devices. The joint factor `halo` says so.
"""

from __future__ import annotations

import functools
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
    beyond = size - whole_number(attrs.get("ring", size))
    parts = _parts(size, size // (beyond + abs(by))) if beyond else size
    return (
        Slide(
            HALO, parts, (_ALONG,), -1, (0,), axis, max(0, by), max(0, -by), (0, 0), shifts=True,
            wraps=bool(attrs["wraps"]), beyond=beyond,
        ),
    )  # fmt: skip


@functools.cache
def _parts(size: int, most: int) -> int:
    """A divisor of a size, of its smallest prime factors, that is not above `most`."""
    found, prime = 1, 2
    while prime * found <= most and prime * prime <= size // found:
        if size // found % prime:
            prime += 1
        else:
            found *= prime
    return found


def _meaning(attrs: Attributes, x: Any) -> Any:
    axis, by = whole_number(attrs["axis"]), whole_number(attrs["by"])
    ring = whole_number(attrs.get("ring", x.shape[axis]))
    found = x.copy()
    here = (slice(None),) * axis + (slice(ring),)
    found[here] = np.roll(x[here], by, axis)
    if not attrs["wraps"]:
        gone = slice(0, by) if by > 0 else slice(by, None)
        found[(slice(None),) * axis + (gone,)] = 0
    return found


RECORDS = (OpDef(SHIFT, _spec, "layout", no_flops, linear_in((0,)), meaning=_meaning),)
