"""Products: batch, contracted and free dimensions are factors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import IRError
from ..factors import FactorSpec
from ..graph import Attr
from ..opdef import Attributes, OpDef, Types
from ..types import TensorType
from .build import as_whole, build_spec, fields, ints, linear_in, names, opaque
from .numeric import numpy_dtype


def _dims(value: Attr) -> tuple[tuple[int, ...], ...]:
    """(lhs contracting, rhs contracting, lhs batch, rhs batch)."""
    if not (isinstance(value, tuple) and len(value) == 2):
        raise IRError(f"expected (contracting, batch) dimensions, got {value!r}")
    contracting, batch = value
    if not (isinstance(contracting, tuple) and isinstance(batch, tuple)):
        raise IRError(f"expected (contracting, batch) dimensions, got {value!r}")
    return ints(contracting[0]), ints(contracting[1]), ints(batch[0]), ints(batch[1])


def _operand_names(
    lhs: TensorType, rhs: TensorType, dims: tuple[tuple[int, ...], ...]
) -> tuple[list[str], list[str]]:
    """Factors of both operands: `b*` batch, `k*` contracted, `m*` and `n*` free."""
    lhs_contracting, rhs_contracting, lhs_batch, rhs_batch = dims
    left, right = list(names("m", lhs.rank)), list(names("n", rhs.rank))
    for prefix, lefts, rights in (
        ("b", lhs_batch, rhs_batch),
        ("k", lhs_contracting, rhs_contracting),
    ):
        for number, (i, j) in enumerate(zip(lefts, rights, strict=True)):
            left[i] = right[j] = f"{prefix}{number}"
    return left, right


def _result_names(left: list[str], right: list[str], lhs_batch: tuple[int, ...]) -> list[str]:
    batch = [left[i] for i in lhs_batch]
    return [*batch, *(n for n in left if n[0] == "m"), *(n for n in right if n[0] == "n")]


def _dot_general(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    dims = _dims(attrs["dimension_numbers"])
    left, right = _operand_names(operands[0], operands[1], dims)
    out = _result_names(left, right, dims[2])
    kinds = {name: "sum" for name in left if name[0] == "k"}
    return build_spec(operands, [left, right], results, [out], kinds)


def _dot_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    contracted = _dims(attrs["dimension_numbers"])[0]
    return 2 * results[0].size * math.prod(operands[0].shape[i] for i in contracted)


def _accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Short floats are added up in float32, as accelerators do."""
    short = dtype.kind not in "biufc" or (dtype.kind == "f" and dtype.itemsize < 4)
    return np.dtype(np.float32) if short else dtype


def _dot_meaning(attrs: Attributes, lhs: Any, rhs: Any) -> Any:
    left, right, out = _labels(_dims(attrs["dimension_numbers"]), lhs.ndim, rhs.ndim)
    return _einsum(lhs, left, rhs, right, out, attrs["preferred_element_type"])


def _labels(
    dims: tuple[tuple[int, ...], ...], lhs_rank: int, rhs_rank: int
) -> tuple[list[int], list[int], list[int]]:
    """A number for each dimension of lhs, rhs and result, equal where they go together."""
    lhs_contracting, rhs_contracting, lhs_batch, rhs_batch = dims
    left, right = list(range(lhs_rank)), list(range(lhs_rank, lhs_rank + rhs_rank))
    for i, j in (
        *zip(lhs_contracting, rhs_contracting, strict=True),
        *zip(lhs_batch, rhs_batch, strict=True),
    ):
        right[j] = left[i]
    shared = set(left) & set(right)
    out = [left[i] for i in lhs_batch]
    out += [i for i in (*left, *right) if i not in shared]
    return left, right, out


def _einsum(
    lhs: Any, left: list[int], rhs: Any, right: list[int], out: list[int], wish: Attr = None
) -> Any:
    """A product, added up in the type that is wished for where the operands are shorter."""
    wide = _accumulator(np.result_type(lhs.dtype, rhs.dtype))
    if isinstance(wish, str) and np.can_cast(wide, numpy_dtype(wish)):
        wide = numpy_dtype(wish)
    return np.einsum(lhs.astype(wide), left, rhs.astype(wide), right, out)


# --- ragged products: rows of the left operand belong to groups of unequal, dynamic sizes -------


def _ragged(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    numbers = fields(attrs["ragged_dot_dimension_numbers"])
    dims = _dims(numbers["dot_dimension_numbers"])
    ragged = ints(numbers["lhs_ragged_dimensions"])
    groups = ints(numbers["rhs_group_dimensions"])
    if len(operands) != 3 or operands[2].rank != 1 or len(ragged) != 1:
        return opaque(operands, results, attrs)
    left, right = _operand_names(operands[0], operands[1], dims)
    for i in groups:
        right[i] = "g"
    out = _result_names(left, right, dims[2])
    if ragged[0] in dims[0]:  # the contracted dimension is ragged: one product per group
        out = ["g", *out]
    kinds = {name: "sum" for name in left if name[0] == "k"}
    # Where a group begins depends on all sizes before it, hence both are whole.
    kinds |= as_whole(["g", left[ragged[0]]])
    return build_spec(operands, [left, right, ["g"]], results, [out], kinds)


def _ragged_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    numbers = fields(attrs["ragged_dot_dimension_numbers"])
    _, contracted, _, batch = _dims(numbers["dot_dimension_numbers"])
    taken = {*contracted, *batch, *ints(numbers["rhs_group_dimensions"])}
    del results
    free = math.prod(size for i, size in enumerate(operands[1].shape) if i not in taken)
    return 2 * operands[0].size * free


def _ragged_meaning(attrs: Attributes, lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    numbers = fields(attrs["ragged_dot_dimension_numbers"])
    dims = _dims(numbers["dot_dimension_numbers"])
    (ragged,), groups = (ints(numbers[f"{s}_dimensions"]) for s in ("lhs_ragged", "rhs_group"))
    if group_sizes.ndim != 1:
        raise IRError("a ragged product with group sizes per batch has no NumPy meaning")
    left, right, out = _labels(dims, lhs.ndim, rhs.ndim)
    out = [label for label in out if label not in {right[i] for i in groups}]
    column: tuple[int, ...] = (-1,) + (1,) * (lhs.ndim - ragged - 1)
    place = np.arange(int(lhs.shape[ragged]), dtype=np.int64).reshape(column)
    ends: Any = np.cumsum(group_sizes)
    terms: list[Any] = []
    for group, end in enumerate(ends):
        rows = np.where((place >= end - group_sizes[group]) & (place < end), lhs, 0)
        matrix, labels = rhs, right
        for i in groups:
            matrix, labels = np.take(rhs, group, axis=i), [*right[:i], *right[i + 1 :]]
        terms.append(_einsum(rows.astype(lhs.dtype), left, matrix, labels, out))
    return np.stack(terms) if ragged in dims[0] else sum(terms)


_PRODUCT = linear_in((0,), (1,))

RECORDS = (
    OpDef("dot_general", _dot_general, "contraction", _dot_flops, _PRODUCT, meaning=_dot_meaning),
    OpDef(
        "ragged_dot_general",
        _ragged,
        "contraction",
        _ragged_flops,
        _PRODUCT,
        meaning=_ragged_meaning,
    ),
)
