"""Sizes that a table lacks, so that all of it is priced by a coarser fit."""

from __future__ import annotations

import math

from .cluster import Cluster
from .products import FILLED


def missing_sizes(cluster: Cluster) -> tuple[str, ...]:
    """One line for each dtype whose products fill most of a grid of sizes but not all of it.

    Tables of single products (batch 1) lack nothing: what was not timed is filled in.
    """
    found: list[str] = []
    table = cluster.gemm
    rows = table.rows if table else ()
    for dtype in sorted({row.dtype for row in rows}):
        sizes = {(r.batch, r.m, r.n, r.k) for r in rows if r.dtype == dtype}
        whole = math.prod(len(set(axis)) for axis in zip(*sizes, strict=True))
        batched = any(batch > 1 for batch, *_ in sizes)
        if table and batched and FILLED * whole <= len(sizes) < whole:
            found.append(
                f"products of {dtype} are timed at {len(sizes)} of the {whole} sizes that table "
                f"'{table.name}' spans: all are priced by their flops alone; time the others too"
            )
    return tuple(found)
