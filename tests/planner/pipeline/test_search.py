# pyright: basic
"""The search for a pipeline against its own sub-spaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from msgspec import structs

from costmodel import parse_cluster
from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline import search as search_module
from planner.pipeline.divide.dynamic_programme import Division
from planner.pipeline.divide.placements import Placements
from planner.pipeline.schedule import family_of
from planner.pipeline.search import PipelineSearch
from planner.training.training import Training
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import slow_machine

Shape = jax.ShapeDtypeStruct
SCHEDULES = ("1f1b", "1f1b-eager", "gpipe")


def search_of(widths: tuple[int, ...], memory_bytes: int | None, **settings: Any) -> PipelineSearch:
    """A search for a chain of layers of these widths on four slow devices."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for w, v in params:
            x = x + jnp.tanh(x @ w) @ v
        return jnp.mean(jnp.square(x))

    params = [(Shape((16, n), jnp.float32), Shape((n, 16), jnp.float32)) for n in widths]
    training = Training(
        loss, (params, {"x": Shape((8, 16), jnp.float32)}), optax.adam(1e-3), False, 0, "chain"
    )
    given = {"schedules": SCHEDULES, "baselines": False, "loss_reduction": "mean"} | settings
    options = Options(memory_bytes=memory_bytes, **given)
    return PipelineSearch(training, Request(slow_machine(4), options))


def step_of(search: PipelineSearch, asked: int | None = None) -> float:
    found = search.run(asked)
    return found.ranked.step_s if found else float("inf")


@pytest.mark.exhaustive
@pytest.mark.parametrize("widths", [(256, 32, 32)])
def test_a_space_is_no_worse_than_its_parts(widths: tuple[int, ...]):
    auto = step_of(search_of(widths, None))
    parts = {
        (p, m, s): step_of(search_of(widths, None, microbatches=m, schedules=s), p)
        for p, m, s in ((2, 2, ("1f1b",)), (2, 4, ("1f1b-eager",)), (3, 4, ("1f1b",)))
    }  # fmt: skip
    assert auto < float("inf")
    assert auto <= min(parts.values()) * (1 + 2e-3)


def test_slots_are_counted_in_a_loss_of_micro_batches() -> None:
    """Parts of a mean with weights of the batch's own need their sum, which takes more ops."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for w in params:
            x = jnp.tanh(x @ w)
        weight = jax.lax.stop_gradient(jax.nn.sigmoid(x[:, 0]))
        return jnp.sum(jnp.mean(x**2, axis=1) * weight) / jnp.sum(weight)

    args = [Shape((16, 16), jnp.float32)] * 3, {"x": Shape((8, 16), jnp.float32)}
    training = Training(loss, args, optax.sgd(0.1), False, 0, "weighted")
    search = PipelineSearch(training, Request(slow_machine(4), Options(baselines=False)))
    one, two = (search.planner.loss(count).chain for count in (1, 2))
    assert len(one.slots) != len(two.slots) == search.shares.places[-1]
    assert search.trials.is_able(2)
    assert not search.trials.is_able(1)


def test_a_small_step_has_one_micro_batch_and_its_bound_covers_that() -> None:
    """Where layers take little longer than the start of their kernels, each micro-batch costs."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean((x - batch["x"]) ** 2)

    args = [Shape((64, 64), jnp.float32)] * 2, {"x": Shape((16, 64), jnp.float32)}
    training = Training(loss, args, optax.sgd(0.1), False, 0, "small")
    machine = parse_cluster("2xa100-40gb")
    free, one, two = (
        PipelineSearch(training, Request(machine, Options(baselines=False, microbatches=count)))
        for count in (None, 1, 2)
    )
    free_s, one_s, two_s = (step_of(search, 2) for search in (free, one, two))
    assert free_s <= one_s < 0.9 * two_s
    assert 0.0 < free.lower_bound_s(free_s) <= free_s


@pytest.mark.slow
def test_no_pipeline_with_one_cut_moved_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "MOST_UNITS", 0)  # without the proof
    search = search_of((64, 16, 48), None, microbatches=4, schedules=("1f1b-eager",))
    found = search.run(2)
    assert found is not None
    shape, trials = found.ranked.shape, search.trials
    places = tuple(search.shares.places.index(cut) for cut in shape.cuts)
    moved = [
        (*places[:s], places[s] + by, *places[s + 1 :])
        for s in range(1, len(places) - 1) for by in (-1, 1)
        if places[s - 1] < places[s] + by < places[s + 1]
    ]  # fmt: skip
    assert moved
    for at in moved:
        one = Division(at, shape.sizes, shape.recompute, 0.0, 0.0)
        other = trials.trial(shape.microbatches, one, "1f1b-eager")
        assert other is None or other.ranked.step_s >= found.ranked.step_s * (1 - 1e-9)


@without_proof()
def test_pipelines_written_by_hand_are_tried_where_no_estimate_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PipelineSearch, "_searched", lambda *_: None)
    monkeypatch.setattr("planner.pipeline.search.MOST_VAIN_PLACED", 0)
    found = search_of((64, 16, 48), None, microbatches=4).run(2)
    assert found is not None
    assert found.ranked.shape.sizes == (2, 2)


@without_proof()
def test_cuts_are_moved_by_simulation_with_the_prices_of_the_plan() -> None:
    search = search_of((64, 16, 48), None, microbatches=4, schedules=("1f1b-eager", "zb-h2"))
    found = search.run(2)
    assert found is not None
    shape = found.ranked.shape
    at = tuple(search.shares.places.index(cut) for cut in shape.cuts)
    like = Division(at, shape.sizes, shape.recompute, 0.0, 0.0)
    placements = Placements(search.candidates, search.options.schedules)
    family = family_of(found.ranked.schedule)
    kinds, steps_s = placements.steps_s(4, family, like, np.array([at]))
    assert tuple(placements.kinds[kind] for kind in kinds[0]) == shape.recompute
    assert steps_s[0] == pytest.approx(found.ranked.step_s, rel=1e-6)
    other = placements.best(4, like, float("inf"), {(4, like.key)})
    assert other is not None
    assert other[1].key != like.key
    assert placements.best(4, like, found.ranked.step_s * 1e-3, set()) is None


def test_stages_compute_again_what_takes_longer_to_store() -> None:
    """With arithmetic for free, and memory for all of it, stored activations are what is slow."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for w, v in params:
            h = x @ w
            x = x + (jnp.tanh(h) * jnp.sin(h) * jnp.cos(h) * jnp.exp(h) * jnp.arctan(h)) @ v
        return jnp.mean(jnp.square(x))

    params = [(Shape((16, 64), jnp.float32), Shape((64, 16), jnp.float32))] * 2
    machine = slow_machine(2)
    device = structs.replace(machine.device, peak_flops=(("float32", 1e12),))
    training = Training(
        loss, (params, {"x": Shape((256, 16), jnp.float32)}), optax.sgd(0.1), False, 0, "wide"
    )
    options = Options(
        microbatches=2, schedules=("1f1b",), baselines=False, loss_reduction="mean"
    )  # fmt: skip
    steps = dict[tuple[str, ...], float]()
    for kinds in (("none",), ("none", "full")):
        search = PipelineSearch(training, Request(replace(machine, device=device), options))
        object.__setattr__(search, "candidates", replace(search.candidates, kinds=kinds))
        object.__setattr__(search, "floors", replace(search.floors, kinds=kinds))
        found = search.run(2)
        assert found is not None
        steps[kinds] = found.ranked.step_s
        assert search.lower_bound_s(found.ranked.step_s) <= found.ranked.step_s * (1 + 1e-9)
    assert found.ranked.shape.recompute == ("full", "full")
    assert steps["none", "full"] < 0.96 * steps["none",]
