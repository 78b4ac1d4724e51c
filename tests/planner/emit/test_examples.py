# pyright: basic
"""The examples' training steps under random plans: hundreds of ops each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from examples import gpt, llama
from ir.trace import trace
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import MESHES, lowered, random_decisions

EXAMPLES: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt_block": (gpt.block, "cube"),
    "llama": (llama.small, "line"),  # scanned layers with recomputation
}
# Adam divides gradients by their size: where one is nearly zero, the last bits of a sum decide.
RTOL = 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXAMPLES)
def test_random_plan_of_an_example(name: str) -> None:
    make, mesh = EXAMPLES[name]
    function, args, options = make()
    traced = trace(function, *args, **options)
    decisions = random_decisions(traced.graph, MESHES[mesh], 5, traced.tied)
    report = check_numerics(traced, lowered(traced, decisions), args, rtol=RTOL)
    assert report.ok, str(report)
