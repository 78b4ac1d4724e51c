"""Steps of one GPU at its power limit are priced as they were measured."""

from __future__ import annotations

import pytest

from benchmarks.one_gpu import DATA, MEASURED, compared, measured_rows

H200 = DATA / "one_gpu_h200.csv"


@pytest.mark.parametrize("row", measured_rows(H200), ids=lambda row: str(row["program"]))
def test_steps_at_the_power_limit_are_those_measured(row: dict[str, object]) -> None:
    """Without the sustained rate of products they are 8 to 9 % too fast."""
    found = compared(row, MEASURED[H200])
    assert abs(found["difference"]) < 0.04


def test_rows_on_nan_are_priced_without_a_power_limit() -> None:
    (cluster,) = (c for path, c in MEASURED.items() if path != H200)
    assert cluster.device.sustained("bfloat16") is None
    assert MEASURED[H200].device.sustained("bfloat16")
