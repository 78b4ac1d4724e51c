"""Convolutions: which of a program's are those of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ir import Node, TensorType

from .views import Groups

Ints = tuple[int, ...]


# Rows are written with stride 1 and padding that keeps the size; the same proof is made for all
# of these (tests/substitutions/test_rewrite_rules.py), and a program's convolution must be one.
STRIDES = (1, 2, 3)


def conv_axes(node: Node, types: Sequence[TensorType]) -> tuple[Groups, Groups, Groups] | None:
    """Dimensions of input (sample, channel, height, width), kernel (out, in, ...) and result.

    None if the convolution is none of the rules': grouped, dilated, or padded in another way.
    """
    names = ("lhs_dilation", "rhs_dilation")
    dilated = any(set(cast("Ints", node.attr(name))) - {1} for name in names)
    grouped = node.attr("feature_group_count") != 1 or node.attr("batch_group_count") != 1
    if dilated or grouped or types[0].rank != 4:
        return None
    specs = dict(cast("tuple[tuple[str, Ints], ...]", node.attr("dimension_numbers")))
    lhs, rhs, out = specs["lhs_spec"], specs["rhs_spec"], specs["out_spec"]
    strides = cast("Ints", node.attr("window_strides"))
    if not set(strides) <= set(STRIDES):
        return None
    padding: list[tuple[Ints, Ints]] = []
    for k in range(2):
        length, window = types[0].shape[lhs[2 + k]], types[1].shape[rhs[2 + k]]
        padding.append((_same(length, window, strides[k]), (0, 0)))
    if node.attr("padding") not in [tuple(pair) for pair in zip(*padding, strict=True)]:
        return None
    found = [tuple((d,) for d in spec) for spec in (lhs, rhs, out)]
    return found[0], found[1], found[2]


def _same(length: int, window: int, stride: int) -> tuple[int, int]:
    """Padding before and after, so that one result comes for every `stride` elements."""
    count = -(-length // stride)
    total = max((count - 1) * stride + window - length, 0)
    return total // 2, total - total // 2
