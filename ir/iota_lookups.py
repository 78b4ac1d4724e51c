# pyright: basic
"""Lookups at `x[arange(B), i]`: an index that counts along a dimension is a batch of lookups.

    gather(x[B, V, ...], concatenate(iota over B, i)), indexed dimensions (0, 1)
    = gather(x[B, V, ...], i), batch dimension 0 of x and of i, indexed dimension 1

and the same of scatters, so that both are split along B as `jnp.take_along_axis` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .graph import Literal, Node, Operand
from .interpret import apply
from .ops.numeric import numpy_dtype
from .table import lookup
from .types import TensorType

LOOKUPS = (
    "gather", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub",
)  # fmt: skip
# Values that depend on no argument are computed to see whether they count along a dimension: the
# most elements of such a value, and the longest chain of operations that makes it.
LARGEST, DEEPEST = 1 << 20, 32
# Fields of the dimension numbers: indexed, without a place in the result or update, batch
# dimensions of the operand, batch dimensions of the indices.
_FIELDS: Mapping[bool, tuple[str, str, str, str]] = {
    True: (
        "start_index_map", "collapsed_slice_dims", "operand_batching_dims",
        "start_indices_batching_dims",
    ),
    False: (
        "scatter_dims_to_operand_dims", "inserted_window_dims", "operand_batching_dims",
        "scatter_indices_batching_dims",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Batched:
    """A lookup with batch dimensions in place of indices that count.

    numbers: its dimension numbers.
    columns: its other indices, of shape [..., 1] each.
    """

    numbers: Any
    columns: tuple[Operand, ...]


@dataclass
class Known:
    """Values of a program that no argument enters.

    types: of all values; nodes: made so far; consts: the first values.
    """

    types: Sequence[TensorType]
    nodes: Sequence[Node]
    consts: Sequence[Any]
    makers: dict[int, tuple[int, int]] = field(init=False)
    found: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        start = len(self.types) - sum(len(node.outputs) for node in self.nodes)
        self.makers, self.found = {}, {}
        for i, node in enumerate(self.nodes):
            for k in range(len(node.outputs)):
                self.makers[start + k] = i, k
            start += len(node.outputs)

    def maker(self, operand: Operand) -> Node | None:
        """The node that makes a value."""
        at = self.makers.get(operand) if isinstance(operand, int) else None
        return None if at is None else self.nodes[at[0]]

    def value(self, operand: Operand, depth: int = 0) -> Any:
        """The value as a NumPy array; None if an argument enters it, or it is large."""
        if isinstance(operand, Literal):
            return np.asarray(operand.value, numpy_dtype(operand.type.dtype))
        if operand not in self.found:
            self.found[operand] = self._value(operand, depth)
        return self.found[operand]

    def _value(self, v: int, depth: int) -> Any:
        if self.types[v].size > LARGEST or self.types[v].dtype.startswith("key"):
            return None
        if v < len(self.consts):
            return np.asarray(self.consts[v])
        node = self.maker(v)
        if node is None or depth > DEEPEST or node.bodies or lookup(node.op).meaning is None:
            return None
        operands: list[Any] = []
        for operand in node.inputs:
            value = self.value(operand, depth + 1)
            if value is None:
                return None
            operands.append(value)
        return apply(node, operands)[self.makers[v][1]]


def batched(name: str, numbers: Any, operands: Sequence[Operand], known: Known) -> Batched | None:
    """The lookup with batch dimensions, if one of its indices counts along a dimension.

    Args:
        name: one of `LOOKUPS`.
        numbers: its dimension numbers.
        operands: the array, the indices, and the updates of a scatter.
        known: values of the program so far.
    """
    indexed, gone, batch, places = _FIELDS[name == "gather"]
    made = known.maker(operands[1])
    if made is None or made.op != "concatenate" or isinstance(operands[0], Literal):
        return None
    shape, indices = known.types[operands[0]].shape, made.outputs[0].shape
    columns = list(zip(getattr(numbers, indexed), made.inputs, strict=False))
    if made.attr("dimension") != len(indices) - 1 or len(columns) != indices[-1]:
        return None
    pairs = dict(zip(getattr(numbers, batch), getattr(numbers, places), strict=True))
    kept: list[tuple[int, Operand]] = []
    for d, column in columns:
        j = _counted(known.value(column), shape[d]) if d in getattr(numbers, gone) else None
        if j is None or j in pairs.values():
            kept.append((d, column))
        else:
            pairs[d] = j
    if not kept or len(kept) == len(columns):
        return None
    changed = {
        indexed: tuple(d for d, _ in kept),
        gone: tuple(d for d in getattr(numbers, gone) if d not in pairs),
        batch: tuple(sorted(pairs)),
        places: tuple(pairs[d] for d in sorted(pairs)),
    }
    return Batched(numbers._replace(**changed), tuple(column for _, column in kept))


def _counted(column: Any, size: int) -> int | None:
    """The dimension of indices [..., 1] along which they count from 0 to a size."""
    if column is None or not column.size:
        return None
    for j, length in enumerate(column.shape[:-1]):
        form = [1] * column.ndim
        form[j] = length
        if length == size > 1 and np.array_equal(
            column, np.broadcast_to(np.arange(size).reshape(form), column.shape)
        ):
            return j
    return None
