"""What ops compute on the vector unit, and which convolutions run there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from ir import Node, TensorType, flops_of, lookup

from .compute import ComputeModel

# Ops that cost many times an addition each; `compute.transcendental_flops` says how many.
TRANSCENDENTAL = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "digamma",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log1p", "log2", "logistic",
    "pow", "sin", "sinh", "tan", "tanh",
)  # fmt: skip

# Of these, what takes a multiple of the others: `gelu_erf` of one_gpu_h100_kernels.csv, whose erfc
# is 98 operations long.
HEAVY = {"erfc": 4.0}

# Input channels up to which XLA's convolutions leave the matrix unit idle: it pads three to four,
# and cuDNN reads eight at once. On an H100 those of 3 channels and those of 1 in each group run at
# 31 to 46 % of the vector unit's peak (`benchmarks/data/one_gpu_h100_kernels.csv`).
NARROW = 4


def arithmetic_s(node: Node, operands: Sequence[TensorType], compute: ComputeModel) -> float:
    """Time of the arithmetic of an op on the vector unit.

    Args:
        node: the op.
        operands: types of its whole operands.
        compute: prices of the device.
    """
    flops = float(flops_of(lookup(node.op), node, tuple(operands)))
    if node.op in TRANSCENDENTAL:
        flops *= compute.transcendental_flops * HEAVY.get(node.op, 1.0)
    return float(compute.flops_s(flops, dtype_of(node, operands)))


def dtype_of(node: Node, operands: Sequence[TensorType]) -> str:
    """The type that an op computes in."""
    types = (*node.outputs, *operands)
    heavy = [t.dtype for t in types if t.dtype.startswith(("float", "bfloat", "complex"))]
    found = heavy[0] if heavy else "float32"
    return {"complex64": "float32", "complex128": "float64", "float0": "float32"}.get(found, found)


def is_narrow(node: Node, operands: Sequence[TensorType]) -> bool:
    """Whether a group of a convolution, or of that whose kernel's gradient it is, is `NARROW`."""
    numbers = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", node.attr("dimension_numbers")))
    image, kernel, result = operands[0].shape, operands[1].shape, node.outputs[0]
    window = [kernel[d] for d in numbers["rhs_spec"][2:]]
    positions = [result.shape[d] for d in numbers["out_spec"][2:]]
    if math.prod(window) > math.prod(positions):
        groups = cast("int", node.attr("batch_group_count"))
        return image[numbers["lhs_spec"][0]] // groups <= NARROW
    return kernel[numbers["rhs_spec"][1]] <= NARROW


def measured_as(op: str) -> str:
    """The measured operation that stands for a primitive, or the primitive itself."""
    if op.startswith("scatter"):
        return "scatter"
    return "reduce" if op in ("reduce_sum", "reduce_max", "reduce_min") else op
