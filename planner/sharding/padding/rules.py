"""What the padding of a dimension means to an op: whether it may be there, and what must hide it.

A padded dimension has its elements first and padding after them, of which nothing is known. An op
that treats elements apart from each other makes padding of padding. One that brings elements
together needs it hidden: a sum needs zeros there, a maximum the least number, a lookup indices that
stay clear of it. For an op that moves elements along the dimension there is no rule: it runs on
the dimension as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ir import FactorSpec, Node, TensorType, dtype_kind, lookup

FAMILIES = ("contraction", "convolution", "elementwise", "index", "layout", "reduction")
PRODUCTS = ("conv_general_dilated", "dot_general")
CREATES = ("broadcast_in_dim", "empty", "iota")
_LOOKUPS = ("gather", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul",
            "scatter-sub")  # fmt: skip
_LOOKED_UP = "v"  # the factor of a looked-up dimension in `ir/ops/gather.py` and `scatter.py`
_ADDING = ("scatter-add", "scatter-sub")
_NO_RULE = ("ragged_dot_general",)
# Element types that have numbers below and above all others.
_NUMBERS = (
    "bool", "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip

Number = bool | int | float


@dataclass(frozen=True)
class Hidden:
    """How an op runs on padded operands.

    fills: for each operand the number that its padding must be; None if anything may be there.
    indexed: whether indices, which are the second operand, must stay clear of the padding.
    """

    fills: tuple[Number | None, ...]
    indexed: bool = False


def hidden(
    node: Node, spec: FactorSpec, factors: frozenset[str], operands: Sequence[TensorType]
) -> Hidden | None:
    """How an op runs whose `factors` are padded; None if it cannot.

    Args:
        node: the op.
        spec: its factors.
        factors: those in the padded dimensions.
        operands: types of its operands.
    """
    if lookup(node.op).family not in FAMILIES or node.op in _NO_RULE:
        return None
    tensors = (*spec.operands, *spec.results)
    if any(factors.intersection(dim[1:]) for dims in tensors for dim in dims):
        return None  # between the elements of a compound there is no room
    here, there = (
        {name for dims in side for dim in dims for name in dim}
        for side in (spec.operands, spec.results)
    )
    if node.op in CUMULATIVE:
        moved = (here ^ there) & factors  # the same dimension, of the operand and of the result
        if len(moved) == 1:
            return None
    elif node.op not in CREATES and not factors <= here:
        return None
    fills: list[Number | None] = [None] * len(operands)
    for name in sorted(factors):
        at = [k for k, dims in enumerate(spec.operands) if any(name in dim for dim in dims)]
        if not _hide(node, name, spec.kind(name), at, operands, fills):
            return None
    return Hidden(tuple(fills), node.op in _LOOKUPS and _LOOKED_UP in factors)


def _hide(
    node: Node, name: str, kind: str, at: Sequence[int], operands: Sequence[TensorType],
    fills: list[Number | None],
) -> bool:  # fmt: skip
    """Notes the fills that a factor needs; False if there is no rule for it."""
    if node.op in _LOOKUPS:
        if name == _LOOKED_UP:
            return bool(at) and operands[1].shape[-1:] == (1,)
        if kind == "sum" and node.op in _ADDING:
            fills[2] = 0
            return True
        return kind == "plain"
    if kind == "plain":
        return True
    if kind == "sum" and (node.op in PRODUCTS or node.op == "reduce_sum"):
        for k in at:
            fills[k] = 0
        return True
    if node.op in CUMULATIVE:
        if node.attr("reverse"):
            fills[0] = CUMULATIVE[node.op](operands[0].dtype)
        return operands[0].dtype in _NUMBERS
    if node.op in _NEUTRAL:
        fills[0] = _NEUTRAL[node.op](operands[0].dtype)
        return operands[0].dtype in _NUMBERS
    return False


def looked_up(node: Node) -> tuple[int, ...]:
    """Dimensions of the operand that indices of a lookup are along."""
    names = ("start_index_map", "scatter_dims_to_operand_dims")
    numbers = node.attr("dimension_numbers")
    for pair in numbers if isinstance(numbers, tuple) else ():
        if isinstance(pair, tuple) and pair[0] in names and isinstance(pair[1], tuple):
            return tuple(d for d in pair[1] if isinstance(d, int))
    return ()


# --- numbers that change nothing ------------------------------------------------------------------


def least(dtype: str) -> Number:
    """A number that no number of a type is below."""
    kind = dtype_kind(dtype)
    if kind == "bool":
        return False
    if kind == "int":
        return int(np.iinfo(np.dtype(dtype)).min)
    return -float("inf")


def most(dtype: str) -> Number:
    """A number that no number of a type is above."""
    kind = dtype_kind(dtype)
    if kind == "bool":
        return True
    if kind == "int":
        return int(np.iinfo(np.dtype(dtype)).max)
    return float("inf")


def _zero(dtype: str) -> Number:
    del dtype
    return 0


def _one(dtype: str) -> Number:
    del dtype
    return 1


def _every_bit(dtype: str) -> Number:
    if dtype_kind(dtype) == "bool":
        return True
    return int(np.iinfo(np.dtype(dtype)).max) if dtype.startswith("uint") else -1


_Neutral = Callable[[str], Number]
_NEUTRAL: dict[str, _Neutral] = {
    "argmax": least, "argmin": most, "reduce_and": _every_bit, "reduce_max": least,
    "reduce_min": most, "reduce_or": _zero, "reduce_prod": _one, "reduce_xor": _zero,
}  # fmt: skip
CUMULATIVE: dict[str, _Neutral] = {
    "cumlogsumexp": least, "cummax": least, "cummin": most, "cumprod": _one, "cumsum": _zero,
}  # fmt: skip
