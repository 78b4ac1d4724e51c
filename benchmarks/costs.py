"""Leave-one-out error of the fits to the shipped tables: how well unseen sizes are predicted.

    python -m benchmarks costs

A point is left out of its series and predicted from the others; `>= 1 MiB` and `>= 8 MiB` are the
bytes of the whole tensor of a collective. Knots are then twice as far apart as normally, so that
the error in use is smaller. Products of tables without batches, and attention kernels, are left out
a tenth at a time.

Two more rows show the share of the timings in the error. `on smooth series` leaves out collectives
with an implausible doubling of the size nearby: a shorter time, or one more than twice as long.
`against its transpose` is the difference of the times of two products of equal work with m and n
exchanged: it comes from the choice of a kernel, not from the size.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from benchmarks.residual import (
    Residual,
    attention_residuals,
    collective_residuals,
    gemm_residuals,
)
from profiles import CollectiveTable, GemmTable, load_profile, profile_names

HEAD = "| table | what | points | median | 90th percentile |\n|---|---|---|---|---|"
SIZES = ((1 << 20, "1 MiB"), (8 << 20, "8 MiB"))
SAME = 0.02  # slopes of log seconds over log size that may be noise


def rows() -> list[Residual]:
    """One residual per table, kind of fit and size class, and one over everything."""
    profiles = [load_profile(name) for name in profile_names()]
    collectives = {t.name: t for p in profiles if (t := p.collectives)}
    products = {t.name: t for p in profiles if (t := p.gemm)}
    found: list[Residual] = []
    for least, text in SIZES:
        each = [
            (name, collective_residuals(table, at_least_bytes=least))
            for name, table in sorted(collectives.items())
        ]
        found += [_pool(name, f"collectives >= {text}", some) for name, some in each]
        found.append(_pool("all", f"collectives >= {text}", [r for _, some in each for r in some]))
    found += [_smooth(table) for _, table in sorted(collectives.items())]
    singles = [r for _, table in sorted(products.items()) for r in gemm_residuals(table)]
    twins = [r for _, table in sorted(products.items()) for r in _transposed(table)]
    kernels = {t.name: t for p in profiles if (t := p.attention)}
    attention = [r for _, table in sorted(kernels.items()) for r in attention_residuals(table)]
    return [
        *found, *singles, _pool("all", "products", singles), *twins, *attention,
        _pool("all", "attention", attention),
    ]  # fmt: skip


def _smooth(table: CollectiveTable) -> Residual:
    """The error over the sizes of at least 1 MiB whose timings grow as those of a link."""
    errors: list[float] = []
    series = sorted({(r.kind, r.group_size, r.stride) for r in table.rows})
    for key in series:
        kept = [r for r in table.rows if (r.kind, r.group_size, r.stride) == key]
        size = sorted({r.full_bytes for r in kept})
        seconds = [np.median([r.seconds for r in kept if r.full_bytes == x]) for x in size]
        slope = np.diff(np.log(seconds)) / np.diff(np.log(size))
        odd = (slope < -SAME) | (slope > 1 + SAME)
        scored = [i for i, x in enumerate(size[:-1]) if x >= SIZES[0][0]]
        alone = collective_residuals(msgspec.structs.replace(table, rows=tuple(kept)))
        found = [e for r in alone for e in r.errors]
        errors += [
            e for i, e in zip(scored, found, strict=True) if not odd[max(i - 2, 0) : i + 2].any()
        ]
    return Residual(table.name, "collectives >= 1 MiB on smooth series", tuple(errors))


def _transposed(table: GemmTable) -> list[Residual]:
    """How much products of equal work differ in time."""
    found: list[Residual] = []
    for dtype in sorted({row.dtype for row in table.rows}):
        at = {(r.batch, r.m, r.n, r.k): r.seconds for r in table.rows if r.dtype == dtype}
        pairs = [
            (s, at[b, n, m, k]) for (b, m, n, k), s in at.items() if m < n and (b, n, m, k) in at
        ]
        if pairs:
            errors = tuple(abs(x / y - 1.0) for x, y in pairs)
            found.append(Residual(table.name, f"product of {dtype} against its transpose", errors))
    return found


def _pool(table: str, what: str, residuals: Iterable[Residual]) -> Residual:
    return Residual(table, what, tuple(e for r in residuals for e in r.errors))


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints the table; with `quick` nothing is left out, it takes a second."""
    print(HEAD)
    found: list[dict[str, object]] = []
    for r in rows():
        print(f"| {r.table} | {r.what} | {len(r.errors)} | {r.median:.1%} | {r.p90:.1%} |")
        row: dict[str, object] = {"table": r.table, "what": r.what, "points": len(r.errors)}
        found.append(row | {"median": r.median, "p90": r.p90})
    worst = _worst_kinds()
    print("\nthe series that are predicted worst, 1 MiB and more:")
    for r in worst:
        print(f"  {r.table} {r.what}: median {r.median:.1%}, 90th percentile {r.p90:.1%}")
    return found


def _worst_kinds(count: int = 5) -> list[Residual]:
    tables = {t.name: t for n in profile_names() if (t := load_profile(n).collectives)}
    each = [r for _, table in sorted(tables.items()) for r in collective_residuals(table)]
    return sorted(each, key=lambda r: -float(np.quantile(r.errors, 0.9)))[:count]
