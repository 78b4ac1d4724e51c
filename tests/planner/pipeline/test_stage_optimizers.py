# pyright: basic
"""Optimizers that do not take the parameters of a stage alone."""

from __future__ import annotations

from typing import Any

import jax
import optax
import pytest

from planner import PlanError, plan
from tests.planner.pipeline.test_one_or_stages import chained, far_apart

PARAMS = {
    "w": [jax.ShapeDtypeStruct((32, 512), "float32")] * 3,
    "v": [jax.ShapeDtypeStruct((512, 32), "float32")] * 3,
}
BATCH = {"x": jax.ShapeDtypeStruct((64, 32), "float32")}


def labels(params: Any) -> Any:
    """One label for all weights of a kind."""
    return {"w": "a", "v": "b"}


OPTIMIZERS = {
    "mask": optax.adamw(1e-3, mask={"w": [True] * 3, "v": [False] * 3}),
    "labels": optax.multi_transform({"a": optax.sgd(0.1), "b": optax.adam(1e-3)}, labels),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_program_is_planned_and_says_why(name: str) -> None:
    settings: dict[str, Any] = {
        "cluster": far_apart(), "optimizer": OPTIMIZERS[name], "substitutions": False,
        "baselines": False,
    }  # fmt: skip
    found = plan(chained, PARAMS, BATCH, **settings)
    assert len(found.stages) == 1
    assert found.step_s == plan(chained, PARAMS, BATCH, pipeline="off", **settings).step_s
    assert "does not take the parameters of a stage" in str(found)
    with pytest.raises(PlanError, match="does not take the parameters of a stage") as caught:
        plan(chained, PARAMS, BATCH, pipeline=2, **settings)
    assert "pipeline='off'" in caught.value.remedy
