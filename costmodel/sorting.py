"""Seconds of sorts and cumulative ops on a GPU, as measured on one H100.

One array is sorted digit by digit (CUB, of XLA from 16,385 numbers on): t = t_0 + 9.5 bytes /
bandwidth, bytes of keys and of what is sorted with them. Rows of a batch, and the largest numbers
of rows, are sorted by comparing pairs, which takes log2(length) steps at least:

    t = 4.2 log2(length) bytes / bandwidth + t_launch

A cumulative op adds to each number those of its tile, then totals of tiles: arithmetic beside what
it moves, measured for rows of 4,096 alone.

Source: XLA, xla/service/gpu/transforms/sort_rewriter.cc; `sort`, `argsort`, `top_k` and `cumsum` of
`benchmarks/data/one_gpu_h100_kernels.csv`, each within 32 % (`python -m benchmarks one-gpu-ops`).
"""

from __future__ import annotations

import math
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from ir import CUMULATIVE, Node, TensorType

from .compute import ComputeModel

Floats = NDArray[np.float64]

SORTS: Final = ("approx_top_k", "sort", "top_k")
LEAST_RADIX: Final = 16_385  # numbers that are sorted digit by digit
RADIX_S: Final = 38e-6
RADIX_PASSES: Final = 9.5
PAIR_PASSES: Final = 4.2  # for each doubling of the length
ADDITIONS: Final = 138.0  # of a cumulative op, for each number


def ordering_s(
    node: Node, operands: tuple[TensorType, ...], share: Floats, moved_s: Floats,
    compute: ComputeModel,
) -> Floats | None:  # fmt: skip
    """Time of a sort or of a cumulative op without its start; None of other ops, and on CPUs.

    Args:
        node: the op.
        operands: types of its whole operands.
        share: part of the numbers that a device has, one entry per strategy.
        moved_s: to read and write each number once [s], likewise.
        compute: prices of the device.
    """
    if compute.cluster.has_cpus or node.op not in (*SORTS, *CUMULATIVE):
        return None
    first = operands[0]
    if node.op in CUMULATIVE:
        return moved_s + share * compute.flops_s(ADDITIONS * first.size, first.dtype)
    nbytes = share * sum(t.nbytes for t in operands)
    length = (
        first.shape[cast("int", node.attr("dimension"))] if node.op == "sort" else first.shape[-1]
    )
    if node.op == "sort" and length == first.size and length >= LEAST_RADIX:
        return RADIX_S + compute.memory_s(RADIX_PASSES * nbytes)
    return compute.memory_s(PAIR_PASSES * math.log2(max(length, 2)) * nbytes)
