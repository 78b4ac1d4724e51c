# pyright: basic
"""Any legal decisions give the numbers of the unsharded program: what the emitter promises."""

from __future__ import annotations

from functools import cache

import pytest

from ir.trace import Traced, trace
from tests.helpers_exhaustive import usual
from tests.helpers_numerics import check_numerics
from tests.planner.emit.models import MODELS
from tests.planner.emit.plans import MESHES, lowered, random_decisions

RTOL = 2e-5


@cache
def traced_of(name: str) -> Traced:
    """A model, traced once, so that the unsharded program is compiled once."""
    function, args = MODELS[name]
    return trace(function, *args)


# Whose meaning is checked under random plans too (`test_lowered_meaning.py`), and whose ops others
# have.
ALIKE = {"batched_gather", "constants", "integers", "layouts", "mlp", "positions", "remat_scan"}


@pytest.mark.parametrize(("mesh", "seed"), [
    ("cube", 0), *(pytest.param(*more, marks=pytest.mark.exhaustive)
                   for more in (("line", 0), ("cube", 1), ("line", 1))),
])  # fmt: skip
@pytest.mark.parametrize("name", usual(MODELS, {*MODELS} - ALIKE))
def test_random_plan_computes_the_same(name: str, mesh: str, seed: int) -> None:
    _, args = MODELS[name]
    traced = traced_of(name)
    decisions = random_decisions(traced.graph, MESHES[mesh], seed)
    report = check_numerics(traced, lowered(traced, decisions), args, rtol=RTOL)
    assert report.ok, str(report)
