"""Ops that can be split along a dimension if neighbours exchange the borders of their shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .graph import Node
from .opdef import Attributes, Types
from .ops import convolution, shift, window
from .ops.shift import SHIFT
from .ops.sliding import Slide
from .types import TensorType

SlideRule = Callable[[Types, Types, Attributes], "tuple[Slide, ...]"]

SLIDING: Final[Mapping[str, SlideRule]] = {
    "conv_general_dilated": convolution.slides,
    "reduce_window": window.slides_alone,  # compilers differ in what is beyond the ends
    "reduce_window_max": window.slides,
    "reduce_window_min": window.slides,
    "reduce_window_sum": window.slides,
    "select_and_gather_add": window.slides_alone,
    "select_and_scatter_add": window.slides_back,
    SHIFT: shift.slides,
}


def slides(node: Node, operands: Sequence[TensorType]) -> tuple[Slide, ...]:
    """The dimensions in which a node of `SLIDING` slides, in the order of their exchanges.

    Args:
        node: the op.
        operands: types of its whole operands.
    """
    return SLIDING[node.op](tuple(operands), node.outputs, dict(node.attrs))
