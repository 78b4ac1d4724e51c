"""Sizes that a table lacks, so that all of it is priced by a coarser fit."""

from __future__ import annotations

import math

from .cluster import Cluster

# A table with fewer of the sizes that its axes span was never meant to have all of them.
MEANT = 0.5


def missing_sizes(cluster: Cluster) -> tuple[str, ...]:
    """One line for each dtype whose products fill most of a grid of sizes but not all of it."""
    found: list[str] = []
    table = cluster.gemm
    rows = table.rows if table else ()
    for dtype in sorted({row.dtype for row in rows}):
        sizes = {(r.batch, r.m, r.n, r.k) for r in rows if r.dtype == dtype}
        whole = math.prod(len(set(axis)) for axis in zip(*sizes, strict=True))
        if table and MEANT * whole <= len(sizes) < whole:
            found.append(
                f"products of {dtype} are timed at {len(sizes)} of the {whole} sizes that table "
                f"'{table.name}' spans: all are priced by their flops alone; time the others too"
            )
    return tuple(found)
