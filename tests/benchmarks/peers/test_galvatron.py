"""Galvatron's cost model and our search under it, on its released profile of Llama-2 7B."""

from __future__ import annotations

import pytest

from benchmarks.peers.galvatron.cost import Setting, Strategy, layer_s, other_s, pipeline_s
from benchmarks.peers.galvatron.search import search_layers
from planner.pipeline.published.readers import galvatron
from tests.planner.pipeline.published.helpers import DATA


def test_cost_of_its_own_plan() -> None:
    """Its released configuration: 20 of 32 layers recomputed, all fully sharded; 1.0860 s."""
    profile = galvatron.read(DATA / "galvatron")
    setting = Setting(16, 1, 1)
    ways = [
        layer_s(profile, setting, Strategy(1, False, 8, "zero3", again)) for again in (True, False)
    ]
    rest = other_s(profile, setting, Strategy(2, True, 4, "zero3"))[0]
    computed = 20 * ways[0][1] + 12 * ways[1][1] + rest
    exchanged = 20 * ways[0][0] + 12 * ways[1][0]
    assert pipeline_s([computed], [exchanged], 1) == pytest.approx(1.0860, abs=1e-4)


@pytest.mark.exhaustive
def test_galvatron_is_not_better() -> None:
    found = search_layers(galvatron.read(DATA / "galvatron"), memory_mb=36 << 10, batch=16)
    assert found is not None
    assert found.step_s <= 1.0861
    assert max(stage.memory_mb for stage in found.stages) <= 36 << 10
