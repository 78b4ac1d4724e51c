# pyright: basic
"""What-if questions of plans in stages: prices, limits, and plans that run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from msgspec import structs

from planner import load, plan
from planner.common.errors import PlanError
from planner.pipeline.schedule import PIPELINES
from tests.planner.emit.pipelines import CLIPPED, arguments, everything, masked, three_steps
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import slow_machine


def machine(bandwidth: float = 8e6) -> Any:
    """Two hosts of two devices between which transfers and collectives take time."""
    base = slow_machine(4)
    link = structs.replace(base.network, latency_s=1e-4, bandwidth_bytes_per_s=bandwidth)
    return replace(base, devices_per_host=2, domain=2, network=link, intra_host=link)


@pytest.fixture(autouse=True)
def compiled_in_haste() -> Iterator[None]:
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    with without_proof():
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@cache
def planned(loss_fn: Any = everything, **settings: Any) -> Any:
    """A plan that tests share; none changes it."""
    params, batch = arguments()
    given = {"cluster": machine(), "microbatches": 4, "pipeline": 2, "baselines": False,
             "substitutions": False, "schedules": ("1f1b",)}  # fmt: skip
    return plan(loss_fn, params, batch, optimizer=CLIPPED, has_aux=True, **given | settings)


def weighted(params: Any, batch: Any) -> Any:
    """A mean by learned weights: a first round of forward passes makes its sums."""
    x = params["tok"][batch["ids"]]
    for k in range(4):
        x = jnp.tanh(x @ params["layers"]["w"][k]) + x
    weights = jax.nn.sigmoid(x[..., 0])
    return jnp.sum(weights * x[..., 1]) / jnp.sum(weights), {}


@pytest.mark.parametrize("loss_fn", [everything, masked, weighted])
def test_the_same_conditions_give_the_plan_or_a_faster_one(loss_fn: Any, tmp_path: Any) -> None:
    made = planned(loss_fn)
    made.save(tmp_path / "p.json")
    again = load(tmp_path / "p.json").what_if()
    assert again.step_s <= made.step_s * (1 + 1e-9)
    assert again.step_s >= made.lower_bound_s
    assert again.simulated.timeline.step_s == pytest.approx(again.step_s)
    assert [s.layers for s in again.stages] == [s.layers for s in made.stages]
    assert again.step_s < made.step_s or again.peak_bytes == pytest.approx(made.peak_bytes)
    again.save(tmp_path / "again.json")
    assert load(tmp_path / "again.json").step_s == again.step_s


def test_less_memory_than_the_plan_needs_is_refused() -> None:
    made = planned()
    same = made.what_if()
    with pytest.raises(PlanError, match="does not fit"):
        made.what_if(memory_bytes=int(0.9 * min(same.peak_bytes, made.peak_bytes)))
    with pytest.raises(PlanError, match="must be above 0"):
        made.what_if(memory_bytes=0)


def test_the_step_moves_as_the_links_do() -> None:
    made = planned()
    faster, slower = made.what_if(bandwidth=8.0), made.what_if(bandwidth=0.125)
    assert faster.step_s < made.step_s < slower.step_s
    assert faster.cluster.network.bandwidth_bytes_per_s == 64e6
    # what is planned anew on those links has a lower bound that holds for these stages too
    anew = planned(cluster=machine(64e6))
    assert anew.lower_bound_s <= faster.step_s
    assert anew.step_s <= faster.step_s * 1.003  # other cuts may be better


def test_a_limit_of_memory_is_kept_or_refused_by_how_much() -> None:
    made = planned()
    least = made.peak_bytes
    tight = made.what_if(memory_bytes=int(least * 0.97))
    assert tight.peak_bytes <= least * 0.97
    assert tight.step_s >= made.what_if().step_s * (1 - 1e-9)
    assert tight.file.joined.limit_bytes == int(least * 0.97)
    with pytest.raises(PlanError, match=r"does not fit: .* more than the limit") as caught:
        made.what_if(memory_bytes=1500)
    assert caught.value.kind == "does-not-fit"
    assert caught.value.needs_bytes > 1500


def test_other_schedules_of_the_stages_are_simulated_with_them() -> None:
    made = planned()
    best = made.what_if(schedules=PIPELINES)
    each = {}
    for name in ("1f1b", "gpipe", "zb-h1"):
        found = made.what_if(schedules=name)
        assert found.schedule == name
        assert found.simulated.timeline.step_s == pytest.approx(found.step_s)
        each[name] = found.step_s
    assert best.step_s <= min(each.values()) * (1 + 1e-9)
    with pytest.raises(PlanError, match="are not those of zb-v"):
        made.what_if(schedules=("zb-v",))
    with pytest.raises(PlanError, match="must be some of"):
        made.what_if(schedules=("best",))


def test_stages_on_twice_the_devices_run_as_the_step_that_was_written(tmp_path: Any) -> None:
    made = planned().what_if(devices=8)
    assert [s.devices for s in made.stages] == [(0, 4), (4, 8)]
    assert made.step_s < planned().step_s
    made.save(tmp_path / "eight.json")
    params, batch = arguments()
    bound: Any = load(tmp_path / "eight.json").bind(
        everything, params, batch, optimizer=CLIPPED, has_aux=True
    )
    loss = bound.bound.loss
    state = loss.built.init(params)
    expected = three_steps(jax.jit(loss.built.fn), params, state, batch)
    found = three_steps(bound.compile(), params, state, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


def test_what_does_not_apply_to_stages_is_refused() -> None:
    made = planned()
    with pytest.raises(PlanError, match="pins apply to a single program"):
        made.what_if(pins=(("params/tok", "[-,2]"),))
    with pytest.raises(PlanError, match="do not have the same shares of 6"):
        made.what_if(devices=6)
    with pytest.raises(PlanError, match="do not have the same shares of 1"):
        made.what_if(devices=1)
    one = made.stage_plans[0]
    with pytest.raises(PlanError, match="a plan of one program has no schedule"):
        one.what_if(schedules="1f1b")


def test_stages_priced_otherwise_in_the_file_are_no_base_for_a_question() -> None:
    made = planned()
    rows = list(made.file.stages)
    cost = structs.replace(rows[1].cost, forward_s=rows[1].cost.forward_s * 1.1)
    rows[1] = structs.replace(rows[1], cost=cost)
    changed = replace(made, file=structs.replace(made.file, stages=tuple(rows)))
    with pytest.raises(PlanError, match="other prices in the file than by this version"):
        changed.what_if(bandwidth=2.0)
