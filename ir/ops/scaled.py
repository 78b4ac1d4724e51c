"""Products of short numbers with a scale for each block: `jax.nn.scaled_matmul`, `lax.scaled_dot`.

    result[m, n] = sum over k of  a[m, k] * s[m, k // c] * w[k, n] * t[k // d, n]

of 8-bit or 4-bit elements a and w with scales s and t of blocks of c and d elements of a contracted
dimension, one scale for all of it too. Where blocks of both are as long, devices may share blocks;
elements of a block stay together.

Source: Rouhani et al., Microscaling Data Formats for Deep Learning, arXiv:2310.10537.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..factors import Dim, FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import WHOLE, build_spec
from .contraction import einsum, labels, operand_names, product_dims, result_names
from .numeric import numpy_dtype

SCALED: Final = ("scaled_dot", "scaled_matmul_wrapper")
ROWS: Final = ((2,), (2,), (0,), (0,))  # of `scaled_matmul_wrapper`: batch, rows, contracted


def _dims(attrs: Attributes) -> tuple[tuple[int, ...], ...]:
    numbers = attrs.get("dimension_numbers")
    return ROWS if numbers is None else product_dims(numbers)


def _factors(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    dims = _dims(attrs)
    left, right = operand_names(operands[0], operands[1], dims)
    out = result_names(left, right, dims[2])
    sides: list[list[str | Dim]] = [list(left), list(right), list(left), list(right)]
    kinds, sizes = dict[str, str](), dict[str, int]()
    for i, j in zip(dims[0], dims[1], strict=True):
        name, at = left[i], (i, j, i, j)
        size, counts = operands[0].shape[i], [operands[2].shape[i], operands[3].shape[j]]
        blocks, inner, joined = max(counts), f"{name}i", {*counts} <= {1, max(counts)}
        sizes |= {name: blocks, inner: size // blocks}
        kinds |= {name: "sum" if joined else WHOLE, inner: WHOLE}
        for side, d in enumerate(at):
            if side < 2:
                sides[side][d] = (name, inner)
            else:
                alone = name if counts[side - 2] == blocks else f"{name}s{side}"
                sides[side][d] = alone if counts[side - 2] > 1 else ()
                kinds |= {} if alone == name else {alone: WHOLE}
    return build_spec(operands, sides, results, [out], kinds, sizes)


def _flops(operands: Types, results: Types, attrs: Attributes) -> int:
    return 2 * results[0].size * math.prod(operands[0].shape[i] for i in _dims(attrs)[0])


def scaled_up(numpy: Any, dims: Sequence[Sequence[int]], *operands: Any) -> tuple[Any, Any]:
    """Both operands times their scales, in float32, in the arrays of NumPy or of `jax.numpy`."""

    def wide(x: Any, scale: Any, contracted: Sequence[int]) -> Any:
        each = scale.astype(np.float32)
        for d in contracted:
            each = numpy.repeat(each, x.shape[d] // scale.shape[d], axis=d)
        return x.astype(np.float32) * each

    a, b, a_scale, b_scale = operands
    return wide(a, a_scale, dims[0]), wide(b, b_scale, dims[1])


def _meaning(attrs: Attributes, *operands: Any) -> Any:
    dims = _dims(attrs)
    a, b = scaled_up(np, dims, *operands)
    left, right, out = labels(dims, a.ndim, b.ndim)
    found = einsum(a, left, b, right, out)
    return found.astype(numpy_dtype(str(attrs["preferred_element_type"])))


RECORDS = tuple(OpDef(name, _factors, "contraction", _flops, meaning=_meaning) for name in SCALED)
