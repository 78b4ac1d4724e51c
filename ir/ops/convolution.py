"""Convolution: batch, channels and groups are factors; along spatial dimensions it slides."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..factors import Dim, FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import as_whole, build_spec, fields, ints, linear_in, pairs, whole_number
from .numeric import numpy_dtype
from .sliding import Meeting, Slide, splitting
from .window import dilated


def _layouts(attrs: Attributes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Places of (batch, feature, space...), (out, in, space...), (batch, feature, space...)."""
    found = fields(attrs["dimension_numbers"])
    return ints(found["lhs_spec"]), ints(found["rhs_spec"]), ints(found["out_spec"])


def _is_pointwise(attrs: Attributes, i: int, size: int) -> bool:
    """Whether spatial dimension i has a window of one element that moves by one."""
    steps = ("window_strides", "lhs_dilation")
    return (
        size == 1
        and pairs(attrs["padding"])[i] == (0, 0)
        and all(ints(attrs[key])[i] == 1 for key in steps)
    )


def _conv(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Factors `n` batch, `f` feature groups, `g` batch groups, `ci`, `co` channels per group.

    Groups are the major factor of the channels they divide: with feature groups the input has
    (f ci) channels and the kernel makes (f co); with batch groups the batch is (g n) and the
    kernel makes (g co).
    """
    lhs, rhs = operands
    at_lhs, at_rhs, at_out = _layouts(attrs)
    feature_groups = whole_number(attrs["feature_group_count"])
    batch_groups = whole_number(attrs["batch_group_count"])
    sizes = {
        "n": lhs.shape[at_lhs[0]] // batch_groups,
        "f": feature_groups,
        "g": batch_groups,
        "ci": rhs.shape[at_rhs[1]],
        "co": rhs.shape[at_rhs[0]] // (feature_groups * batch_groups),
    }
    left: dict[int, str | Dim] = {at_lhs[0]: ("g", "n"), at_lhs[1]: ("f", "ci")}
    kernel: dict[int, str | Dim] = {at_rhs[0]: ("f", "g", "co"), at_rhs[1]: "ci"}
    out: dict[int, str | Dim] = {at_out[0]: "n", at_out[1]: ("f", "g", "co")}
    kinds = {"ci": "sum"}
    for i, (a, b, c) in enumerate(zip(at_lhs[2:], at_rhs[2:], at_out[2:], strict=True)):
        left[a], kernel[b], out[c] = f"x{i}", f"r{i}", f"y{i}"
        kinds |= as_whole([f"r{i}", f"y{i}"]) | {f"x{i}": "window"}
        if _is_pointwise(attrs, i, rhs.shape[b]):
            left[a] = out[c] = f"p{i}"
    dims = [[where[i] for i in range(lhs.rank)] for where in (left, kernel, out)]
    spec = build_spec(operands, dims[:2], results, dims[2:], kinds, sizes)
    return splitting(spec, slides(operands, results, attrs))


def slides(operands: Types, results: Types, attrs: Attributes) -> tuple[Slide, ...]:
    """Spatial dimensions along which a convolution can be split.

    Of the result and the window that index is split which has more elements, if it meets the input
    in equal shards, else the other: the gradient by the kernel is a convolution with a window that
    is as large as the image.
    """
    at_lhs, at_rhs, at_out = _layouts(attrs)
    strides, spread, base = (
        ints(attrs[key]) for key in ("window_strides", "rhs_dilation", "lhs_dilation")
    )
    found: list[Slide] = []
    for i, (a, b, c) in enumerate(zip(at_lhs[2:], at_rhs[2:], at_out[2:], strict=True)):
        size, window, made = operands[0].shape[a], operands[1].shape[b], results[0].shape[c]
        low = pairs(attrs["padding"])[i][0]
        ways = (made, strides[i], window, spread[i]), (window, spread[i], made, strides[i])
        both = [Meeting(size, base[i], low, *way) for way in ways]
        larger = window > made
        sums = next((s for s in (larger, not larger) if both[s].aligned), None)
        if _is_pointwise(attrs, i, window) or sums is None or both[sums].parts < 2:
            continue
        meeting = both[sums]
        members = (f"x{i}", f"r{i}" if sums else f"y{i}")
        border, padding = meeting.border, meeting.padding
        found.append(Slide(f"halo{i}", meeting.parts, members, i, (0,), a, *border, padding, sums))
    return tuple(found)


def _conv_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    kernel, at_kernel = operands[1].shape, _layouts(attrs)[1]
    return 2 * results[0].size * math.prod(kernel[i] for i in at_kernel[1:])


def _conv_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    """Group counts of a shard: as many groups as its channels, or its batch, make up."""
    at_lhs, at_rhs, at_out = _layouts(attrs)
    lhs, rhs, out = operands[0].shape, operands[1].shape, results[0].shape
    return {
        "feature_group_count": max(1, lhs[at_lhs[1]] // max(1, rhs[at_rhs[1]])),
        "batch_group_count": max(1, lhs[at_lhs[0]] // max(1, out[at_out[0]])),
    }


def _conv_meaning(attrs: Attributes, lhs: Any, rhs: Any) -> Any:
    at_lhs, at_rhs, at_out = _layouts(attrs)
    x, kernel = np.transpose(lhs, at_lhs), np.transpose(rhs, at_rhs)
    space, stride = kernel.shape[2:], ints(attrs["window_strides"])
    spread = ints(attrs["rhs_dilation"])
    x = dilated(
        x, ((0, 0), (0, 0), *pairs(attrs["padding"])), (1, 1, *ints(attrs["lhs_dilation"])), 0
    )
    counts = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], space, spread, stride, strict=True)
    ]
    found: Any = 0
    for place in itertools.product(*(range(k) for k in space)):
        edges = zip(place, spread, counts, stride, strict=True)
        space_part = [slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in edges]
        part = x[(slice(None), slice(None), *space_part)]
        found = found + _by_group(attrs, part, kernel[(slice(None), slice(None), *place)])
    return np.transpose(found, np.argsort(at_out))


def _by_group(attrs: Attributes, part: Any, kernel: Any) -> Any:
    """Product over channels of one window place: (N, C, ...) with (O, I) to (N', O, ...)."""
    f = whole_number(attrs["feature_group_count"])
    g = whole_number(attrs["batch_group_count"])
    n, c, *space = part.shape
    o, i = kernel.shape
    wide = np.dtype(np.float32) if part.dtype.kind not in "biufc" else part.dtype
    wish = attrs["preferred_element_type"]
    if isinstance(wish, str) and np.can_cast(wide, numpy_dtype(wish)):
        wide = numpy_dtype(wish)
    part = part.reshape(g, n // g, f, c // f, *space).astype(wide)
    kernel = kernel.reshape(f, g, o // (f * g), i).astype(wide)
    return np.einsum("gnfi...,fgoi->nfgo...", part, kernel).reshape(n // g, o, *space)


RECORDS = (
    OpDef(
        "conv_general_dilated",
        _conv,
        "convolution",
        _conv_flops,
        linear_in((0,), (1,)),
        _conv_local,
        meaning=_conv_meaning,
    ),
)
