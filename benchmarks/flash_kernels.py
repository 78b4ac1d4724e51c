# pyright: basic
"""Kernels of flash attention that published steps ran, as tables of attention kernels.

The first one in Triton:
FlashAttention-2 is 1.3 to 2.5 times faster than it on an A100; priced is the geometric middle, with
the kernels of the A100's own table in place of FlashAttention-2's. Neither has instructions of the
H100's matrix unit, on which FlashAttention-2 reaches 335 TFLOP/s in place of 230 on an A100; the
same ratio is taken for the first one.

Source: Dao, FlashAttention-2, arXiv:2307.08691, section 4.1.

FlashAttention-2 on H100, which has none of these instructions either: one causal timing of 32 heads
of 128 features and 8,192 tokens, forward 1.935 ms (284 TFLOP/s) and backward 4.788 ms (287), grown
with heads and pairs. torchtitan's rows have this length. PyTorch takes it on H100 where torchtitan
names it before cuDNN, as in 2024 and 2025 (`ScaledDotProductAttention` in its attention.py).

Source: Dao-AILab/flash-attention, pull request 1791, "Fav2".
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from costmodel import Cluster, ComputeModel, parse_cluster
from profiles import AttentionTable, KernelRow

SLOWER = math.sqrt(1.3 * 2.5)
FASTER_ON_H100 = 335 / 230
HEADS, KEYS, SIZES = (16, 128, 1024), (512, 1024, 2048, 4096, 8192, 16384), (64, 128)
DTYPE = "bfloat16"


SECOND_KEYS, SECOND_HEADS, SECOND_S = 8192, 32, (1.935e-3, 4.788e-3)


def with_kernel(cluster: Cluster, name: str) -> Cluster:
    """A cluster of A100 or H100 that runs the `first` or `second` flash attention."""
    table = _first(cluster.profile) if name == "first" else _second(cluster.profile)
    return replace(cluster, attention=table)


@functools.cache
def _second(profile: str) -> AttentionTable:
    known = parse_cluster("1xh100")
    assert known.attention is not None
    pairs = {keys: keys * (keys + 1) // 2 for keys in (SECOND_KEYS, 8 * SECOND_KEYS)}
    times = {
        (heads, keys): heads / SECOND_HEADS * n / pairs[SECOND_KEYS]
        for keys, n in pairs.items() for heads in HEADS
    }  # fmt: skip
    rows = [
        KernelRow(DTYPE, 128, heads, keys, pairs[keys], *(s * n for s in SECOND_S))
        for (heads, keys), n in times.items()
    ]
    return AttentionTable(
        name=f"{profile}-second-flash", source="Dao-AILab/flash-attention, pull request 1791",
        date="2025-07", licence="facts", rows=known.attention.rows, kernels=tuple(rows),
        kernels_source="one timing, grown with heads and pairs",
    )  # fmt: skip


@functools.cache
def _first(profile: str) -> AttentionTable:
    known = parse_cluster("1xa100")
    assert known.attention is not None
    compute, rows = ComputeModel(known), list[KernelRow]()
    scale = SLOWER / (FASTER_ON_H100 if profile.startswith("h100") else 1.0)
    for size in SIZES:
        for heads in HEADS:
            for keys in KEYS:
                pairs = keys * (keys + 1) // 2
                forward, backward = (
                    scale
                    * float(
                        compute.attention_s(
                            heads, heads, pairs, keys, size, DTYPE, backward=back
                        )
                    )
                    for back in (False, True)
                )  # fmt: skip
                rows.append(KernelRow(DTYPE, size, heads, keys, pairs, forward, backward))
    return AttentionTable(
        name=f"{profile}-first-flash", source="arXiv:2307.08691, section 4.1", date="2023-07",
        licence="facts", rows=known.attention.rows, kernels=tuple(rows),
        kernels_source="a100's table, slower as the source says",
    )  # fmt: skip
