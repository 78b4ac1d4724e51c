"""How well the fits predict timings that they have not seen."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.residual import collective_residuals, gemm_residuals
from profiles import CollectiveRow, CollectiveTable, load_profile, profile_names

TABLES = [load_profile(n) for n in profile_names()]


@pytest.mark.parametrize("floor", [1 << 20])
def test_the_curves_predict_collectives_they_have_not_seen(floor: int) -> None:
    tables = {t.name: t for p in TABLES if (t := p.collectives)}
    assert tables.keys() == {"a100", "b200", "gb200", "gb300", "h100", "h200", "v100-pcie"}
    errors = [
        e
        for t in tables.values()
        for r in collective_residuals(t, at_least_bytes=floor)
        for e in r.errors
    ]
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.15


def test_the_grids_predict_products_they_have_not_seen() -> None:
    tables = {t.name: t for p in TABLES if (t := p.gemm)}
    found = [r for t in tables.values() for r in gemm_residuals(t)]
    assert {r.table for r in found} == {"a100", "b200", "gb200", "h100", "h200", "v100"}
    for dtype, median, p90 in (
        ("bfloat16", 0.05, 0.15), ("float16", 0.05, 0.15), ("float32", 0.1, 0.25),
        ("float8_e4m3fn", 0.1, 0.25),
    ):  # fmt: skip
        each = [r for r in found if r.what == f"product of {dtype}"]
        assert max(r.median for r in each) < median
        assert max(r.p90 for r in each) < p90


def test_a_left_out_point_is_not_used() -> None:
    rows = tuple(CollectiveRow("all-gather", 2, 1, 1 << i, 2.0**i * 1e-9) for i in range(20, 25))
    broken = (*rows[:2], CollectiveRow("all-gather", 2, 1, 1 << 22, 1.0), *rows[3:])
    table = CollectiveTable(name="t", source="test", date="2026", licence="none", rows=broken)
    (found,) = collective_residuals(table)
    assert found.errors[2] > 0.9
