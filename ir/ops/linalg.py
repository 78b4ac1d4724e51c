"""Factorisations, triangular solves and Fourier transforms: leading dimensions are a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, FlopRule, OpDef, Types
from .build import as_whole, build_spec, ints, leading_plain, linear_in, names


def _matrix_flops(factor: float) -> FlopRule:
    """`factor` x rows x columns x the smaller of both, for each matrix of the batch."""

    def rule(operands: Types, results: Types, attrs: Attributes) -> int:
        del results, attrs
        *batch, rows, columns = operands[0].shape
        return int(factor * math.prod(batch) * rows * columns * min(rows, columns))

    return rule


def _cholesky(attrs: Attributes, x: Any) -> Any:
    del attrs
    factor: Any = np.linalg.cholesky
    return factor(np.tril(x) + _transposed(np.conj(np.tril(x, -1))))


def _transposed(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _triangular(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Rule of X with `a X = b` or, from the right, `X a = b`; the other side of b is plain."""
    a, b = operands
    batch = names("b", b.rank - 2)
    solved = (*batch, "m", "n") if attrs["left_side"] else (*batch, "n", "m")
    matrix = (*batch[b.rank - a.rank :], "m", "m2")
    return build_spec(operands, [matrix, solved], results, [solved], as_whole(["m", "m2"]))


def _triangular_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del attrs
    return results[0].size * operands[0].shape[-1]


def _triangular_meaning(attrs: Attributes, a: Any, b: Any) -> Any:
    a = np.tril(a) if attrs["lower"] else np.triu(a)
    if attrs["unit_diagonal"]:
        eye = np.eye(a.shape[-1], dtype=a.dtype)
        a = a * (1 - eye) + eye
    if attrs["transpose_a"]:
        a = _transposed(a)
    if attrs["conjugate_a"]:
        a = np.conj(a)
    solve: Any = np.linalg.solve
    if attrs["left_side"]:
        return solve(a, b)
    return _transposed(solve(_transposed(a), _transposed(b)))


# --- Fourier transforms ------------------------------------------------------------------------


FFT: Final = "fft"
PENCILS: Final = "pencils"


def _fft(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    batch = names("b", operands[0].rank - len(ints(attrs["fft_lengths"])))
    before = names("x", operands[0].rank - len(batch))
    after = names("y", operands[0].rank - len(batch))
    kinds = as_whole(before, after)
    spec = build_spec(operands, [(*batch, *before)], results, [(*batch, *after)], kinds)
    first = before[:1] + after[:1]
    if len(before) < 2 or not {*first} <= {*spec.names}:
        return spec
    # devices may share the first dimension if they exchange parts of the last one meanwhile
    size = spec.size(first[0])
    return replace(spec, sizes=(*spec.sizes, (PENCILS, size)), joint=((PENCILS, first),))


def _fft_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    size = max(operands[0].size, results[0].size)
    return int(5 * size * math.log2(max(2, math.prod(ints(attrs["fft_lengths"])))))


def _fft_meaning(attrs: Attributes, x: Any) -> Any:
    lengths = ints(attrs["fft_lengths"])
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    functions = {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn", "IRFFT": "irfftn"}
    return getattr(np.fft, functions[str(attrs["fft_type"])])(x, lengths, axes)


_BATCHED = leading_plain(2)

RECORDS = (
    OpDef("cholesky", _BATCHED, "linalg", _matrix_flops(1 / 3), meaning=_cholesky),
    OpDef("eig", _BATCHED, "linalg", _matrix_flops(25.0)),
    OpDef("eigh", _BATCHED, "linalg", _matrix_flops(9.0)),
    OpDef("fft", _fft, "linalg", _fft_flops, linear_in((0,)), meaning=_fft_meaning),
    OpDef("householder_product", _BATCHED, "linalg", _matrix_flops(4 / 3)),
    OpDef("lu", _BATCHED, "linalg", _matrix_flops(2 / 3)),
    OpDef("lu_pivots_to_permutation", leading_plain(1), "linalg"),
    OpDef("qr", _BATCHED, "linalg", _matrix_flops(2.0)),
    OpDef("svd", _BATCHED, "linalg", _matrix_flops(14.0)),
    OpDef(
        "triangular_solve",
        _triangular,
        "linalg",
        _triangular_flops,
        linear_in((1,)),
        meaning=_triangular_meaning,
    ),
    OpDef("tridiagonal_solve", leading_plain(1), "linalg"),
)
