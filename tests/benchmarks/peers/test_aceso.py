"""Aceso's cost model and our search under it, on its released database of four V100 models."""

from __future__ import annotations

import pytest

from benchmarks.peers.aceso.cost import price_ops
from benchmarks.peers.aceso.grid import grid_ops
from benchmarks.peers.aceso.search import search_ops
from planner.pipeline.published.readers import aceso
from tests.planner.pipeline.published.helpers import DATA

MEMORY_BYTES = 28000 * aceso.MB


# Modelled seconds of Megatron's best grid point, by the released cost model.
@pytest.mark.parametrize(
    ("model", "devices", "wanted"),
    [
        ("gpt_1_3B", 4, 126.0),
        ("gpt_2_6B", 8, 111.0),
        ("gpt_6_7B", 16, 112.2),
        ("gpt_13B", 32, 119.1),
    ],
)
def test_cost_of_megatron(model: str, devices: int, wanted: float) -> None:
    database = aceso.read(DATA / "aceso_gpt.tar.gz", model=model)
    host = min(devices, 8)
    plan = grid_ops(
        database, devices=devices, devices_per_host=host, memory_bytes=MEMORY_BYTES, batch=1024
    )
    assert plan is not None
    cost = price_ops(database, plan, batch=1024, devices_per_host=host)
    assert cost.step_s == pytest.approx(wanted, abs=0.05)


@pytest.mark.exhaustive
def test_aceso_is_beaten() -> None:
    """101.2 s for GPT 1.3B on 4 devices."""
    database = aceso.read(DATA / "aceso_gpt.tar.gz", model="gpt_1_3B")
    plan = search_ops(
        database, devices=4, devices_per_host=4, memory_bytes=MEMORY_BYTES, batch=1024
    )
    assert plan is not None
    cost = price_ops(database, plan, batch=1024, devices_per_host=4)
    assert cost.step_s <= 101.2
    assert max(cost.peak_bytes) < MEMORY_BYTES
