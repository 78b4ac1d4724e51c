"""Grouped products: rows of the left operand belong to groups of unequal, dynamic sizes.

`jax.lax.ragged_dot` multiplies the rows of each group by a matrix of the group's own, such as
those of an expert of a mixture; its gradient for the matrices contracts the rows of each group.
Rows are in the order of their groups, from the first row on; those after the last group give zero.

    rows:      m k+, g+ k+ n, sizes -> m n      split rows or n at will; k, g leave partial sums
    gradient:  m+ k, m+ n,    sizes -> g k n    split groups, k or n at will; m leaves partial sums

Every device has all sizes, and so knows where groups begin in its rows, whichever groups are its
own: rows of others are left out, as zeros of a partial sum. No row is dropped, however unequal the
groups are. Rows may be in blocks with sizes of their own, which are all multiplied by the same
matrices; every block has its groups in order:

    rows:      b m k+, g+ k+ n, b sizes -> b m n
    gradient:  b+ m+ k, b+ m+ n, b sizes -> g k n

Devices that split blocks share nothing but matrices. Forms with batch dimensions keep rows and
groups whole.

The joint factor `near` splits rows and groups over the same n devices. All have equally many rows,
which belong to few groups: with equal groups to those that the device holds. Matrices of the other
groups that it has rows of are fetched from the devices that hold them, and sums of the gradient are
sent to these. Results are shards.

Source: Gale et al., MegaBlocks, arXiv:2211.15841.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..errors import IRError
from ..factors import FactorSpec
from ..graph import Attr
from ..opdef import Attributes, OpDef, Types
from .build import as_whole, build_spec, fields, ints, linear_in, opaque
from .contraction import einsum, labels, operand_names, product_dims, result_names

GROUPED: Final = "ragged_dot_general"
ROWS: Final = "m"  # factors of the forms that are split by rows or groups
GROUPS: Final = "g"
NEAR: Final = "near"
BLOCKS: Final = "b"
TILES_AT_ONCE: Final = 32  # of which one batched product is made
TILE_STEPS: Final = "tile_steps_"  # name of the loop over tiles, before the number of its steps

NUMBERS: Final = "ragged_dot_dimension_numbers"

# Few rows leave a matrix unit waiting for matrices, many are mostly empty in a small group.
_TILES: Final = (128, 1024)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Dimension numbers: those of the product, the ragged one of the left operand, the groups'."""

    dims: tuple[tuple[int, ...], ...]
    ragged: tuple[int, ...]
    groups: tuple[int, ...]

    @staticmethod
    def of(attrs: Attributes) -> _Numbers:
        numbers = fields(attrs[NUMBERS])
        return _Numbers(
            product_dims(numbers["dot_dimension_numbers"]),
            ints(numbers["lhs_ragged_dimensions"]),
            ints(numbers["rhs_group_dimensions"]),
        )

    @property
    def contracts_rows(self) -> bool:
        """Whether the ragged dimension is contracted: one product per group."""
        return self.ragged[0] in self.dims[0]


@dataclass(frozen=True, slots=True)
class GroupedSizes:
    """A grouped product as a whole: `rows` of `depth`, and a matrix [depth, width] per group.

    matrix_dims: dimensions of group, depth and width in the right operand; empty for the gradient.
    blocks: of as many rows each, with sizes of their own; 0 where rows have no such dimension.
    """

    rows: int
    groups: int
    depth: int
    width: int
    matrix_dims: tuple[int, ...]
    blocks: int = 0

    @property
    def contracts_rows(self) -> bool:
        """Whether it is the gradient for the matrices, [groups, depth, width]."""
        return not self.matrix_dims

    @property
    def tile_rows(self) -> int:
        """Rows of a tile: the mean of a group, up to a power of two, within `_TILES`."""
        mean = -(-self.rows // max(self.groups, 1))
        return min(max(1 << (max(mean, 1) - 1).bit_length(), _TILES[0]), _TILES[1])


def grouped_sizes(operands: Types, attrs: Attributes) -> GroupedSizes | None:
    """The sizes of a product that rows or groups may split; None where its form has batches."""
    numbers = _Numbers.of(attrs)
    if len(operands) != 3 or operands[2].rank not in (1, 2):
        return None
    lhs, rhs, lead = operands[0], operands[1], operands[2].rank - 1
    contracted, of_matrix, batch, _ = numbers.dims
    if batch or numbers.ragged != (lead,) or lhs.rank != lead + 2:
        return None
    *blocks, rows, depth = lhs.shape
    given = rows, operands[2].shape[-1], depth
    of_rows = tuple(range(lead + 1))
    if (contracted, of_matrix, rhs.rank) == (of_rows, of_rows, lead + 2):
        return GroupedSizes(*given, rhs.shape[-1], (), *blocks)
    if contracted != (lead + 1,) or rhs.rank != 3 or len(numbers.groups) != 1:
        return None
    group_dim, inner = numbers.groups[0], of_matrix[0]
    outer = 3 - group_dim - inner
    return GroupedSizes(*given, rhs.shape[outer], (group_dim, inner, outer), *blocks)


def _factors(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    sizes = grouped_sizes(operands, attrs)
    if sizes is None:
        return _with_batches(operands, results, attrs)
    kinds = {"sizes": "whole"}
    if sizes.contracts_rows:
        left, right, out = [ROWS, "k"], [ROWS, "n"], [GROUPS, "k", "n"]
        kinds[ROWS] = "sum"
    else:
        left, right, out = [ROWS, "k"], [""] * 3, [ROWS, "n"]
        for dim, name in zip(sizes.matrix_dims, (GROUPS, "k", "n"), strict=True):
            right[dim] = name
        kinds |= {"k": "sum", GROUPS: "sum"}
    counts = ["sizes"]
    if sizes.blocks:
        left, counts = [BLOCKS, *left], [BLOCKS, *counts]
        if sizes.contracts_rows:
            right, kinds[BLOCKS] = [BLOCKS, *right], "sum"
        else:
            out = [BLOCKS, *out]
    spec = build_spec(operands, [left, right, counts], results, [out], kinds)
    near = math.gcd(sizes.rows, sizes.groups)
    if near < 2 or not {ROWS, GROUPS} <= {*spec.names}:
        return spec
    return replace(spec, sizes=(*spec.sizes, (NEAR, near)), joint=((NEAR, (ROWS, GROUPS)),))


def _with_batches(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    numbers = _Numbers.of(attrs)
    if len(operands) != 3 or operands[2].rank != 1 or len(numbers.ragged) != 1:
        return opaque(operands, results, attrs)
    left, right = operand_names(operands[0], operands[1], numbers.dims)
    for i in numbers.groups:
        right[i] = GROUPS
    out = result_names(left, right, numbers.dims[2])
    if numbers.contracts_rows:
        out = [GROUPS, *out]
    kinds = {name: "sum" for name in left if name[0] == "k"}
    # Where a group begins depends on all sizes before it, hence both are whole.
    kinds |= as_whole([GROUPS, left[numbers.ragged[0]]])
    return build_spec(operands, [left, right, [GROUPS]], results, [out], kinds)


def of_one_block(attrs: Attributes) -> dict[str, Attr]:
    """Attributes of the product of one block, of a product of rows in blocks."""
    numbers = _Numbers.of(attrs)
    many = numbers.contracts_rows
    contracted = ((0,), (0,)) if many else ((1,), numbers.dims[1])
    found: tuple[tuple[str, Attr], ...] = (
        ("dot_dimension_numbers", (contracted, ((), ()))),
        ("lhs_ragged_dimensions", (0,)),
        ("rhs_group_dimensions", numbers.groups),
    )
    return {**attrs, NUMBERS: found}


def _flops(operands: Types, results: Types, attrs: Attributes) -> int:
    """Each row is multiplied by the matrix of its own group alone."""
    numbers = _Numbers.of(attrs)
    _, contracted, _, batch = numbers.dims
    taken = {*contracted, *batch, *numbers.groups}
    del results
    free = math.prod(size for i, size in enumerate(operands[1].shape) if i not in taken)
    return 2 * operands[0].size * free


def _meaning(attrs: Attributes, lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    numbers = _Numbers.of(attrs)
    (ragged,) = numbers.ragged
    if group_sizes.ndim == 2 and not numbers.dims[2] and ragged == 1:
        return _meaning_of_blocks(attrs, lhs, rhs, group_sizes)
    if group_sizes.ndim != 1:
        raise IRError("a ragged product with group sizes per batch has no NumPy meaning")
    left, right, out = labels(numbers.dims, lhs.ndim, rhs.ndim)
    out = [label for label in out if label not in {right[i] for i in numbers.groups}]
    column: tuple[int, ...] = (-1,) + (1,) * (lhs.ndim - ragged - 1)
    place = np.arange(int(lhs.shape[ragged]), dtype=np.int64).reshape(column)
    ends: Any = np.cumsum(group_sizes)
    terms: list[Any] = []
    for group, end in enumerate(ends):
        rows = np.where((place >= end - group_sizes[group]) & (place < end), lhs, 0)
        matrix, names = rhs, right
        for i in numbers.groups:
            matrix, names = np.take(rhs, group, axis=i), [*right[:i], *right[i + 1 :]]
        terms.append(einsum(rows.astype(lhs.dtype), left, matrix, names, out))
    return np.stack(terms) if numbers.contracts_rows else sum(terms)


def _meaning_of_blocks(attrs: Attributes, lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    """Blocks one after the other, each as the product of its rows."""
    inner, many = of_one_block(attrs), _Numbers.of(attrs).contracts_rows
    each = [_meaning(inner, x, rhs[b] if many else rhs, group_sizes[b]) for b, x in enumerate(lhs)]
    return sum(each[1:], each[0]) if many else np.stack(each)


RECORDS = (
    OpDef(
        GROUPED,
        _factors,
        "contraction",
        _flops,
        linear_in((0,), (1,)),
        offset=True,
        meaning=_meaning,
    ),
)
