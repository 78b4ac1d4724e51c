# pyright: basic
"""No pipeline is below the bound: every division of small programs is planned."""

from __future__ import annotations

import itertools
import time
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from jax import ShapeDtypeStruct as Shape

from planner.inter.divide import Division
from planner.options import Options
from planner.pipesearch import PipelineSearch
from planner.stages import Training
from tests.planner.programs import slow_machine


def layered(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for w, v in params:
        x = x + jnp.tanh(x @ w) @ v
    return jnp.mean(jnp.square(x))


def search_of(layers: int, microbatches: int) -> PipelineSearch:
    params = [(Shape((16, 64), jnp.float32), Shape((64, 16), jnp.float32))] * layers
    batch = {"x": Shape((32, 16), jnp.float32)}
    training = Training(layered, (params, batch), optax.adam(1e-3), False, 0, "layered")
    options = Options(microbatches=microbatches, loss_reduction="mean", baselines=False)
    return PipelineSearch(training, slow_machine(4), options, lambda _: None, time.monotonic())


@pytest.mark.parametrize("microbatches", [1, 4])
def test_every_division_of_a_small_program_is_above_the_bound(microbatches: int):
    search = search_of(2, microbatches)
    search.looked_at.add(microbatches)
    bound, last = search.lower_bound_s(), search.shares.count - 1
    steps: list[float] = []
    for p in (2, 3):
        for inner in itertools.combinations(range(1, last), p - 1):
            for sizes in itertools.product((1, 2), repeat=p):
                if sum(sizes) == 4:
                    kinds = ("none",) * p
                    one = Division((0, *inner, last), sizes, kinds, float("inf"), float("inf"))
                    found = search.trial(microbatches, one)
                    assert found is not None
                    steps.append(found.ranked.step_s)
    for inner in itertools.combinations(range(1, last), 3):  # two stages in turn on each of two
        one = Division((0, *inner, last), (2,) * 4, ("none",) * 4, float("inf"), float("inf"), 2)
        found = search.trial(microbatches, one) if microbatches % 2 == 0 else None
        steps += [found.ranked.step_s] if found else []
    assert len(steps) >= 4
    assert 0.0 < bound <= min(steps)
    assert bound > 0.2 * min(steps)


def test_the_bound_of_a_plan_is_that_of_its_search():
    search = search_of(3, 4)
    found = search.run(2)
    assert found is not None
    assert search.lower_bound_s() <= found.ranked.step_s
