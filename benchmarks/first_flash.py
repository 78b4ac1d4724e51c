# pyright: basic
"""The first flash attention in Triton, as a table of attention kernels.

FlashAttention-2 is 1.3 to 2.5 times faster than it on an A100; priced is the geometric middle, with
the kernels of the A100's own table in place of FlashAttention-2's. Neither has instructions of the
H100's matrix unit, on which FlashAttention-2 reaches 335 TFLOP/s in place of 230 on an A100; the
same ratio is taken for the first one.

Source: Dao, FlashAttention-2, arXiv:2307.08691, section 4.1.
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


def with_first_flash(cluster: Cluster) -> Cluster:
    """A cluster of A100 or H100 that runs the first flash attention."""
    return replace(cluster, attention=_table(cluster.profile))


@functools.cache
def _table(profile: str) -> AttentionTable:
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
