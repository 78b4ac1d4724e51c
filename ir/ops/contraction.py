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
from .build import build_spec, ints, linear_in, names
from .numeric import numpy_dtype


def product_dims(value: Attr) -> tuple[tuple[int, ...], ...]:
    """(lhs contracting, rhs contracting, lhs batch, rhs batch)."""
    if not (isinstance(value, tuple) and len(value) == 2):
        raise IRError(f"expected (contracting, batch) dimensions, got {value!r}")
    contracting, batch = value
    if not (isinstance(contracting, tuple) and isinstance(batch, tuple)):
        raise IRError(f"expected (contracting, batch) dimensions, got {value!r}")
    return ints(contracting[0]), ints(contracting[1]), ints(batch[0]), ints(batch[1])


def operand_names(
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


def result_names(left: list[str], right: list[str], lhs_batch: tuple[int, ...]) -> list[str]:
    batch = [left[i] for i in lhs_batch]
    return [*batch, *(n for n in left if n[0] == "m"), *(n for n in right if n[0] == "n")]


def _dot_general(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    dims = product_dims(attrs["dimension_numbers"])
    left, right = operand_names(operands[0], operands[1], dims)
    out = result_names(left, right, dims[2])
    kinds = {name: "sum" for name in left if name[0] == "k"}
    return build_spec(operands, [left, right], results, [out], kinds)


def _dot_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    contracted = product_dims(attrs["dimension_numbers"])[0]
    return 2 * results[0].size * math.prod(operands[0].shape[i] for i in contracted)


def _accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Short floats are added up in float32, as accelerators do."""
    short = dtype.kind not in "biufc" or (dtype.kind == "f" and dtype.itemsize < 4)
    return np.dtype(np.float32) if short else dtype


def _dot_meaning(attrs: Attributes, lhs: Any, rhs: Any) -> Any:
    left, right, out = labels(product_dims(attrs["dimension_numbers"]), lhs.ndim, rhs.ndim)
    return einsum(lhs, left, rhs, right, out, attrs["preferred_element_type"])


def labels(
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


def einsum(
    lhs: Any, left: list[int], rhs: Any, right: list[int], out: list[int], wish: Attr = None
) -> Any:
    """A product, added up in the type that is wished for where the operands are shorter."""
    wide = _accumulator(np.result_type(lhs.dtype, rhs.dtype))
    if isinstance(wish, str) and np.can_cast(wide, numpy_dtype(wish)):
        wide = numpy_dtype(wish)
    return np.einsum(lhs.astype(wide), left, rhs.astype(wide), right, out)


PRODUCT = linear_in((0,), (1,))

RECORDS = (
    OpDef("dot_general", _dot_general, "contraction", _dot_flops, PRODUCT, meaning=_dot_meaning),
)
