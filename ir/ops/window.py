"""Reductions over sliding windows; a dimension with a trivial window is a batch.

Those that bring something back to the elements of a window have a result with the borders of their
operand, which go back to the neighbours. Those that pick one element of a window, and those with a
function of the user's, are split where no window crosses the shards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import as_whole, build_spec, ints, linear_in, names, pairs
from .sliding import Meeting, Slide, splitting


def _is_trivial(attrs: Attributes, i: int) -> bool:
    ones = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    return pairs(attrs["padding"])[i] == (0, 0) and all(
        ints(attrs[key])[i] == 1 for key in ones if key in attrs
    )


def _whole_window(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    # Initial values of the general form have rank 0.
    rank = results[0].rank
    plain = [_is_trivial(attrs, i) for i in range(rank)]
    before = [f"d{i}" if plain[i] else f"x{i}" for i in range(rank)]
    after = [f"d{i}" if plain[i] else f"y{i}" for i in range(rank)]
    ins = [before if type_.rank else () for type_ in operands]
    kinds = as_whole(names("x", rank), names("y", rank))
    return build_spec(operands, ins, results, [after] * len(results), kinds)


def _window(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    spec = _whole_window(operands, results, attrs)
    return splitting(spec, slides(operands, results, attrs))


def _window_alone(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    spec = _whole_window(operands, results, attrs)
    return splitting(spec, slides_alone(operands, results, attrs))


def _scatter_back(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Rule for (source, operand) -> a result of the operand's shape."""
    rank = results[0].rank
    plain = [_is_trivial(attrs, i) for i in range(rank)]
    source = [f"d{i}" if plain[i] else f"y{i}" for i in range(rank)]
    operand = [f"d{i}" if plain[i] else f"x{i}" for i in range(rank)]
    kinds = as_whole(names("x", rank), names("y", rank))
    spec = build_spec(operands, [source, operand], results, [operand], kinds)
    return splitting(spec, slides_back(operands, results, attrs))


def slides(operands: Types, results: Types, attrs: Attributes) -> tuple[Slide, ...]:
    """Dimensions along which a reduction over windows can be split."""
    moving = tuple(i for i, type_ in enumerate(operands) if type_.rank)
    return _along(operands[0].shape, results[0].shape, attrs, moving)


def slides_alone(operands: Types, results: Types, attrs: Attributes) -> tuple[Slide, ...]:
    """Dimensions along which a reduction without borders can be split."""
    return _alone(slides(operands, results, attrs))


def slides_back(operands: Types, results: Types, attrs: Attributes) -> tuple[Slide, ...]:
    """Dimensions along which a scatter back into windows can be split."""
    found = _along(results[0].shape, operands[0].shape, attrs, (1,))
    return tuple(replace(each, returns=each.border != (0, 0)) for each in found)


def _alone(found: tuple[Slide, ...]) -> tuple[Slide, ...]:
    """Dimensions in which no window crosses the shards."""
    return tuple(each for each in found if not each.before and not each.after)


def _along(
    before: tuple[int, ...], after: tuple[int, ...], attrs: Attributes, moving: tuple[int, ...]
) -> tuple[Slide, ...]:
    """Of windows that make one shape of another."""
    found: list[Slide] = []
    ones = (1,) * len(before)
    strides, windows = ints(attrs["window_strides"]), ints(attrs["window_dimensions"])
    base, spread = (ints(attrs.get(k, ones)) for k in ("base_dilation", "window_dilation"))
    for d, (size, made) in enumerate(zip(before, after, strict=True)):
        low = pairs(attrs["padding"])[d][0]
        meeting = Meeting(size, base[d], low, made, strides[d], windows[d], spread[d])
        if _is_trivial(attrs, d) or not meeting.aligned or meeting.parts < 2:
            continue
        low, high = meeting.padding
        if low < 0 or high <= -strides[d]:
            continue  # windows leave out elements at an end, which their padding cannot say
        members, padding = (f"x{d}", f"y{d}"), (low, max(0, high))
        border = meeting.border
        found.append(Slide(f"halo{d}", meeting.parts, members, d, moving, d, *border, padding))
    return tuple(found)


def _window_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del operands
    return results[0].size * math.prod(ints(attrs["window_dimensions"]))


def _back_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del results
    return operands[0].size * math.prod(ints(attrs["window_dimensions"]))


def dilated(x: Any, padding: Any, dilation: Any, fill: Any) -> Any:
    """`x` with `dilation - 1` fills between elements, padded or cropped at the borders."""
    shape = [max(0, (n - 1) * d + 1) for n, d in zip(x.shape, dilation, strict=True)]
    wide = np.full(shape, fill, x.dtype)
    wide[tuple(slice(None, None, d) for d in dilation)] = x
    pads = [(max(0, low), max(0, high)) for low, high in padding]
    wide = np.pad(wide, pads, constant_values=fill)
    crop = [
        slice(max(0, -low), n - max(0, -high))
        for (low, high), n in zip(padding, wide.shape, strict=True)
    ]
    return wide[tuple(crop)]


def _reduce_window(function: Callable[..., Any], extreme: int) -> Callable[..., Any]:
    def meaning(attrs: Attributes, x: Any) -> Any:
        size, stride = ints(attrs["window_dimensions"]), ints(attrs["window_strides"])
        spread = ints(attrs["window_dilation"])
        fill = _extreme(x.dtype, extreme)
        wide = dilated(x, pairs(attrs["padding"]), ints(attrs["base_dilation"]), fill)
        reach = [(n - 1) * d for n, d in zip(size, spread, strict=True)]
        counts = [(n - r - 1) // s + 1 for n, r, s in zip(wide.shape, reach, stride, strict=True)]
        found = None
        for place in itertools.product(*(range(n) for n in size)):
            part = wide[
                tuple(
                    slice(p * d, p * d + (n - 1) * s + 1, s)
                    for p, d, n, s in zip(place, spread, counts, stride, strict=True)
                )
            ]
            found = part if found is None else function(found, part)
        return found

    return meaning


def _extreme(dtype: Any, sign: int) -> Any:
    """The neutral element: zero of a sum, the lowest for a maximum, the highest for a minimum."""
    if sign == 0:
        return 0
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if sign < 0 else info.max
    return sign * np.inf


RECORDS = (
    OpDef("reduce_window", _window_alone, "reduction", _window_flops),
    OpDef(
        "reduce_window_max",
        _window,
        "reduction",
        _window_flops,
        meaning=_reduce_window(np.maximum, -1),
    ),
    OpDef(
        "reduce_window_min",
        _window,
        "reduction",
        _window_flops,
        meaning=_reduce_window(np.minimum, 1),
    ),
    OpDef(
        "reduce_window_sum",
        _window,
        "reduction",
        _window_flops,
        linear_in((0,)),
        meaning=_reduce_window(np.add, 0),
    ),
    OpDef("select_and_gather_add", _window_alone, "reduction", _window_flops, linear_in((0,))),
    OpDef("select_and_scatter_add", _scatter_back, "reduction", _back_flops, linear_in((0,))),
)
