# pyright: basic
"""Whole numbers of a program that are functions of one other value, element by element.

Each is known by its table: what it is for every number that the other value may have. So nothing
has to be recognised of how a program writes a division, a negative index or a one-hot mask.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ir import Literal, Node, TensorType, dtype_kind, lookup
from ir.analysis import FlatOp

Array = Any
# Elements of a table: numbers of rows, and masks.
MOST, MOST_OF_MASK = 1 << 25, 1 << 21
_RESHAPES: Final = ("reshape", "squeeze", "expand_dims")


@dataclass(frozen=True, eq=False)
class Pointwise:
    """A value that depends on one dimension of a source, or on none.

    table: of the rank of the value, of size 1 along dimensions in which it is the same.
    source: what it is a function of; None if it is constant.
    dim: dimension that has the elements of the source; -1 if it is constant.
    at: number of the source in the flat program.
    """

    table: Array
    source: Hashable = None
    dim: int = -1
    at: int = -1

    def same_along(self, dim: int) -> bool:
        """Whether it is constant along a dimension."""
        return self.table.ndim == 0 or self.table.shape[dim] == 1

    def is_all(self, number: int) -> bool:
        """Whether it is one number everywhere."""
        return self.source is None and bool(np.all(self.table == number))


def of_literal(value: Literal) -> Pointwise | None:
    """A number in the program."""
    if dtype_kind(value.type.dtype) not in ("int", "bool", "float"):
        return None
    return Pointwise(np.asarray(value.value).astype(_numpy(value.type.dtype)))


def result_of(
    op: FlatOp, ins: Sequence[Pointwise | None], types: Sequence[TensorType]
) -> Pointwise | None:
    """The result of an op of pointwise operands of some types, None if that is not known."""
    node = op.node
    if dtype_kind(node.outputs[0].dtype) not in ("int", "bool", "float"):
        return None
    if node.op == "iota":
        return _iota(node)
    if not ins or any(x is None for x in ins):
        return None
    known = [x for x in ins if x is not None]
    if node.op == "broadcast_in_dim":
        return _broadcast(node, known[0])
    if node.op in _RESHAPES:
        return _reshaped(node, known[0], types[0].shape)
    if lookup(node.op).family == "elementwise" and len(node.outputs) == 1:
        return _elementwise(node, known)
    return None


def _numpy(dtype: str) -> Any:
    return np.float32 if dtype == "bfloat16" else np.dtype(dtype)


def _iota(node: Node) -> Pointwise | None:
    (type_,), dim = node.outputs, node.attr("dimension")
    assert isinstance(dim, int)
    size = type_.shape[dim]
    if size > MOST:
        return None
    shape = [1] * type_.rank
    shape[dim] = size
    return Pointwise(np.arange(size).astype(_numpy(type_.dtype)).reshape(shape))


def _broadcast(node: Node, x: Pointwise) -> Pointwise:
    places = node.attr("broadcast_dimensions")
    assert isinstance(places, tuple)
    shape = [1] * node.outputs[0].rank
    for place, size in zip(places, x.table.shape, strict=True):
        shape[int(str(place))] = size
    dim = int(str(places[x.dim])) if x.dim >= 0 else -1
    return Pointwise(x.table.reshape(shape), x.source, dim, x.at)


def _reshaped(node: Node, x: Pointwise, before: tuple[int, ...]) -> Pointwise | None:
    """Constants in any shape, and functions with dimensions of size 1 that come and go.

    before: shape of the operand, which is not that of its table.
    """
    if node.has_attr("dimensions") and node.op == "reshape" and node.attr("dimensions") is not None:
        return None
    (after,) = node.outputs
    if x.table.size == 1 and x.source is None:
        return Pointwise(x.table.reshape((1,) * after.rank))
    if x.source is None:
        whole = math.prod(before) <= MOST
        return Pointwise(np.broadcast_to(x.table, before).reshape(after.shape)) if whole else None
    wide = [d for d, n in enumerate(after.shape) if n > 1]
    if [d for d, n in enumerate(before) if n > 1] != [x.dim] or len(wide) != 1:
        return None  # its elements are repeated, or put beside others
    shape = [1] * after.rank
    shape[wide[0]] = x.table.size
    return Pointwise(x.table.reshape(shape), x.source, wide[0], x.at)


def _elementwise(node: Node, known: Sequence[Pointwise]) -> Pointwise | None:
    meaning = lookup(node.op).meaning
    of = [x for x in known if x.source is not None]
    if meaning is None or len({(x.source, x.dim) for x in of}) > 1:
        return None
    if of and any(not x.same_along(of[0].dim) for x in known if x.source is None):
        return None
    shape = np.broadcast_shapes(*(x.table.shape for x in known))
    if math.prod(shape) > (MOST if max(shape, default=1) == math.prod(shape) else MOST_OF_MASK):
        return None
    with np.errstate(all="ignore"):
        found = meaning(dict(node.attrs), *(np.broadcast_to(x.table, shape) for x in known))
    if isinstance(found, tuple):
        (found,) = found
    if not of:
        return Pointwise(np.asarray(found))
    return Pointwise(np.asarray(found), of[0].source, of[0].dim, of[0].at)


def keys_to_try(dtype: str, groups: int) -> Array:
    """Numbers of groups, and others around them, of a type."""
    info = np.iinfo(dtype)
    some = [*range(-2 * groups - 2, 3 * groups + 3), info.min, info.min + 1, info.max - 1, info.max]
    return np.array(sorted({n for n in some if info.min <= n <= info.max}), dtype)


def counts_groups(op: FlatOp, ins: Sequence[Pointwise | None], keys: Array, *, signed: bool) -> int:
    """Source of the keys of which an op counts those of each group; -1 if it does nothing of it.

    Keys beyond the last group are not counted; those below the first are counted in the first.

    Args:
        op: any op.
        ins: its operands.
        keys: numbers that the source was tried with.
        signed: whether keys may be negative.
    """
    found = _added(op, ins) if op.node.op == "scatter-add" else _summed(op, ins)
    if found is None:
        return -1
    table, at = found
    groups = table.shape[1]
    meant = np.clip(keys.astype(np.int64), 0, None)[:, None] == np.arange(groups)
    tried = slice(None) if signed else keys >= 0
    enough = keys.size > 0 and keys.max() > groups
    return at if enough and np.array_equal(table[tried], meant[tried]) else -1


def _summed(op: FlatOp, ins: Sequence[Pointwise | None]) -> tuple[Array, int] | None:
    """Masks [rows, groups] that are added up."""
    if op.node.op != "reduce_sum" or op.node.attr("axes") != (0,) or ins[0] is None:
        return None
    x = ins[0]
    known = x.source is not None and x.dim == 0 and x.table.ndim == 2
    return (x.table, x.at) if known else None


def _added(op: FlatOp, ins: Sequence[Pointwise | None]) -> tuple[Array, int] | None:
    """Ones that are added to zeros, one for each row."""
    into, index, one = ins
    (out,) = op.node.outputs
    if into is None or index is None or one is None or out.rank != 1:
        return None
    if not into.is_all(0) or not one.is_all(1) or index.dim != 0 or index.table.ndim != 2:
        return None
    if index.source is None or index.table.shape[1] != 1 or op.node.attr("mode") == "CLIP":
        return None
    return index.table == np.arange(out.shape[0]), index.at
