"""Leave-one-out error of the fits to the shipped tables: how well unseen sizes are predicted.

    python -m benchmarks costs

A point is left out of its series and predicted from the others; `>= 1 MiB` and `>= 8 MiB` are the
bytes of the whole tensor of a collective. Knots are then twice as far apart as in use, so that the
error in use is smaller.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from costmodel import Residual, collective_residuals, gemm_residuals
from profiles import load_profile, profile_names

HEAD = "| table | what | points | median | 90th percentile |\n|---|---|---|---|---|"
SIZES = ((1 << 20, "1 MiB"), (8 << 20, "8 MiB"))


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
    singles = [r for _, table in sorted(products.items()) for r in gemm_residuals(table)]
    return [*found, *singles, _pool("all", "products", singles)]


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
