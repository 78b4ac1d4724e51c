"""The figures on earlier predictions are those of the benchmark's results."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from costmodel import parse_cluster
from planner.common.units_text import seconds_text
from planner.inspect.accuracy import COMPARED, SOURCE, accuracy_text

RESULTS = Path(__file__).parents[3] / SOURCE.split()[0]


def test_the_figures_are_those_of_the_results() -> None:
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        if row.get("fits") and row.get("published_s") and row.get("predicted_s"):
            device = row["cluster"].partition("x")[2]
            ratios[device].append(row["predicted_s"] / row["published_s"])
    assert set(COMPARED) == set(ratios)
    for device, found in COMPARED.items():
        known = np.quantile(ratios[device], (0.1, 0.5, 0.9))
        assert found.steps == len(ratios[device])
        assert (found.low, found.median, found.high) == pytest.approx(known, abs=0.00501)


def test_a_device_without_comparisons_says_so() -> None:
    assert accuracy_text(parse_cluster("8xl4"), 1.0).startswith(
        "from published peak figures, not measured: no published step on l4"
    )
    assert accuracy_text(parse_cluster("8xhost"), 1.0).startswith(
        "from assumed figures, not measured: no published step on host"
    )
    assert accuracy_text(parse_cluster("8xh200"), 1.0).startswith("no published step on h200")
    said = accuracy_text(parse_cluster("8xh100"), 1.0)
    low, high = COMPARED["h100"].low, COMPARED["h100"].high
    assert f"may be {seconds_text(1 / high)} to {seconds_text(1 / low)} when run" in said
