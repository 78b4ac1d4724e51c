from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from costmodel import missing_sizes, parse_cluster


@pytest.mark.parametrize("name", ["8xh100", "8xb200", "8xv100-16gb", "8xa100", "4xhost"])
def test_shipped_tables_lack_nothing(name: str) -> None:
    assert missing_sizes(parse_cluster(name)) == ()


def test_a_table_with_a_hole_is_named() -> None:
    whole = parse_cluster("8xh100")
    assert whole.gemm is not None
    left_out = next(row for row in whole.gemm.rows if row.dtype == "float32")
    kept = tuple(row for row in whole.gemm.rows if row != left_out)
    cluster = replace(whole, gemm=msgspec.structs.replace(whole.gemm, rows=kept))
    (line,) = missing_sizes(cluster)
    assert left_out.dtype in line
    assert "374 of the 375 sizes" in line
