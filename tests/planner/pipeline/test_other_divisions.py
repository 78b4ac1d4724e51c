# pyright: basic
"""Choices of what stages keep, in the divisions beside the one with the fastest kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from msgspec import structs

from planner import PlanError, plan
from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline import other_divisions
from planner.pipeline.divide.chosen_bounds import ChosenBounds
from planner.pipeline.divide.run_costs import RECOMPUTE
from planner.pipeline.divide.stage_bounds import StageKind
from planner.pipeline.other_divisions import OtherDivisions
from planner.pipeline.search import PipelineSearch
from planner.pipeline.whole_program_prices import price_wholes
from planner.training.training import Training
from tests.planner.programs import linked, slow_machine

SGD = optax.sgd(0.1, momentum=0.9)
ROUNDING = 1e-6


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def looped(params: Any, batch: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    return jnp.mean(lax.scan(layer, batch["x"], params)[0] ** 2)


def written(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for w in params:
        x = jax.nn.gelu(x @ w["a"]) @ w["b"]
    return jnp.mean((x - batch["x"]) ** 2)


LOOP = looped, shape(4, 2, 32, 32), {"x": shape(256, 32)}
WRITTEN = written, [{"a": shape(16, 128), "b": shape(128, 16)}] * 3, {"x": shape(256, 16)}
NEAR, FAR = slow_machine(4), linked(slow_machine(4), 1e6)
SHORT = 129_976  # of a device, with which the loop computes again
CASES: dict[str, tuple[Any, Any, int]] = {
    "a loop, a link to the hosts": (LOOP, FAR, SHORT), "a loop": (LOOP, NEAR, 173_302),
    "a loop, less memory": (LOOP, NEAR, 140_000), "layers written out": (WRITTEN, NEAR, 256_339),
}  # fmt: skip
PARTS: tuple[dict[str, Any], ...] = (
    *({"microbatches": m} for m in (4, 8, 16)),
    *({"schedules": (name,)} for name in ("1f1b", "1f1b-eager", "zb-h1")),
)  # fmt: skip


# Parts of the space of one program; the names of those of stages are errors beside `pipeline=`.
ALONE: tuple[dict[str, Any], ...] = (
    *({"mesh": mesh} for mesh in ((4,), (2, 2))),
    *({"recompute": kind} for kind in ("none", "selective", "full", "written")),
    *({"baseline": name, "baselines": True}
      for name in ("data-parallel", "fsdp", "megatron")),
    {"pipeline": "off"},
)  # fmt: skip


def apart(rate: float) -> Any:
    """Two hosts of two devices, with a network between them."""
    machine = slow_machine(4)
    network = structs.replace(machine.network, bandwidth_bytes_per_s=rate)
    return replace(machine, devices_per_host=2, domain=2, network=network)


# Loops are left out of these: with every choice of theirs a case takes more than 400 s.
NOTHING_GIVEN: dict[str, tuple[Any, Any, int]] = {
    "layers written out": CASES["layers written out"],
    "two hosts": (WRITTEN, apart(1e7), 300_000),
}


def planned(case: tuple[Any, Any, int], **part: Any) -> Any:
    (loss, params, batch), machine, memory_bytes = case
    given: dict[str, Any] = {"substitutions": False, "baselines": False, "padding": False}
    return plan(
        loss, params, batch, cluster=machine, optimizer=SGD, memory_bytes=memory_bytes,
        **given | part,
    )  # fmt: skip


def step_s(case: tuple[Any, Any, int], **part: Any) -> float:
    try:
        return planned(case, **part).step_s
    except PlanError:
        return float("inf")


def pipeline(number: int, seconds: float) -> Any:
    """A pipeline of a division."""
    return SimpleNamespace(
        ranked=SimpleNamespace(step_s=seconds, shape=SimpleNamespace(division=number))
    )


STEPS_S = 1.0, 1.002, 1.004, 1.006, 1.008, 1.1


@pytest.mark.parametrize(("steps", "gains", "kept", "asked"), [
    (STEPS_S, (0.1, 0.1, 0.1, 0.1, 0.1, 0.1), 0, 3),
    (STEPS_S, (0.0, 0.0, 0.05, 0.0, 0.2, 0.2), 2, 3),
    (STEPS_S, (0.0, 0.0, 0.0, 0.2, 0.2, 0.3), 0, 3), ((1.0, 1.002, 1.02), (0.0, 0.0, 0.3), 0, 2),
])  # fmt: skip
def test_choices_are_made_in_the_next_divisions(
    monkeypatch: pytest.MonkeyPatch,
    steps: Sequence[float],
    gains: Sequence[float],
    kept: int,
    asked: int,
) -> None:
    """In a few of those that are hardly longer, the shortest first."""
    planned = {n: pipeline(n, s) for n, s in enumerate(steps)}
    seen: list[int] = []

    def chosen(one: Any, _: Any) -> Any:
        number = one.ranked.shape.division
        seen.append(number)
        return pipeline(number, one.ranked.step_s * (1 - gains[number]))

    monkeypatch.setattr(other_divisions, "with_choices", chosen)
    monkeypatch.setattr(other_divisions, "polished", lambda one, _: one)
    monkeypatch.setattr(other_divisions, "chooses", lambda _: True)
    monkeypatch.setattr(OtherDivisions, "_estimated", lambda *_: iter(()))
    trials: Any = SimpleNamespace(planned=dict(reversed(planned.items())))
    for over, count in ((False, asked), (True, 1)):
        seen.clear()
        others = OtherDivisions(trials, cast(Any, None), ("1f1b",), lambda over=over: over)
        found = others.best_with_choices(planned[0], (2, 4), ())
        assert seen == [*range(count)]
        assert found.ranked.shape.division == (0 if over else kept)


def test_more_micro_batches_are_planned_where_the_fewest_compute_again() -> None:
    """With 2 one program computes again, with 4 nothing, which is 23 % faster."""
    case = CASES["layers written out"]
    free = planned(case, pipeline="off")
    kept_s, fewest = (
        step_s(case, pipeline="off", recompute="none"),
        planned(case, pipeline="off", microbatches=2),
    )
    assert free.step_s <= kept_s * (1 + ROUNDING)
    assert kept_s < 0.9 * fewest.step_s
    assert free.microbatches > 2
    assert free.lower_bound_s <= fewest.lower_bound_s  # of the numbers before it too


def test_a_mesh_that_is_given_has_the_plans_of_coarser_ones() -> None:
    """Of two axes the solver finds none that fits, as it does not know transient buffers."""
    part: dict[str, Any] = {"microbatches": 4, "recompute": "none"}
    fine_s, coarse_s = (step_s(CASES["a loop"], mesh=mesh, **part) for mesh in ((2, 2), (4,)))
    assert fine_s <= coarse_s * (1 + ROUNDING)
    assert coarse_s < float("inf")


def test_choices_alone_may_bring_a_pipeline_below_a_step() -> None:
    """No pipeline of kinds is below it."""
    loss, params, batch = LOOP
    training = Training(loss, (params, batch), SGD, False, 0, "step")

    def found_s(below_s: float = float("inf"), recompute: str = "auto") -> float:
        options = Options(memory_bytes=173_302, recompute=recompute, microbatches=8)
        found = PipelineSearch(training, Request(NEAR, options), below_s).run(2)
        return found.ranked.step_s if found else float("inf")

    chosen_s, kinds_s = found_s(), found_s(recompute="written")
    assert chosen_s < kinds_s * (1 - ROUNDING)
    between_s = (2 * chosen_s + kinds_s) / 3
    assert found_s(between_s) == chosen_s
    assert found_s(between_s, "written") == float("inf")
    assert found_s(chosen_s) == float("inf")


@pytest.mark.exhaustive
def test_a_given_number_of_micro_batches_is_no_better_than_a_free_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the fastest kinds there are 8 micro-batches, with choices 16 are faster."""
    case = CASES["a loop, a link to the hosts"]
    free_s, given_s = step_s(case, pipeline=2), step_s(case, pipeline=2, microbatches=16)
    monkeypatch.setattr(other_divisions, "MOST_OTHERS", 0)
    alone_s = step_s(case, pipeline=2)
    assert free_s <= given_s * (1 + ROUNDING)
    assert given_s < alone_s * (1 - ROUNDING)  # choices in the division that is kept alone


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_that_may_use_hosts_are_no_slower(name: str, stages: int) -> None:
    """Bounds that know of hosts had left out the best division without them."""
    free_s, here_s = (
        step_s(CASES[name], pipeline=stages, offload=offload) for offload in ("auto", "never")
    )
    assert free_s <= here_s * (1 + ROUNDING)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES | NOTHING_GIVEN)
def test_a_pipeline_with_nothing_else_given_is_no_worse(name: str) -> None:
    """On two hosts the fastest comes after ten divisions that do not fit, or are slower."""
    case = (CASES | NOTHING_GIVEN)[name]
    free = planned(case, pipeline=2)
    worse = {
        str(part): part_s / free.step_s for part in PARTS
        if (part_s := step_s(case, pipeline=2, **part)) < free.step_s * (1 - ROUNDING)
    }  # fmt: skip
    assert not worse
    assert 0.0 < free.lower_bound_s <= free.step_s


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NOTHING_GIVEN)
def test_a_plan_with_nothing_given_is_no_worse_than_one_with_parts_given(name: str) -> None:
    """On two hosts pipelines are parts of its space too."""
    case, parts = NOTHING_GIVEN[name], ALONE
    if name == "two hosts":
        parts = (*ALONE, {"pipeline": 2}, {"pipeline": 2, "microbatches": 8})
    free = planned(case)
    steps = {str(part): step_s(case, **part) for part in parts}
    assert sum(seconds < float("inf") for seconds in steps.values()) > 3
    assert not {k: s / free.step_s for k, s in steps.items() if s < free.step_s * (1 - ROUNDING)}
    assert 0.0 <= free.lower_bound_s <= free.step_s


def test_a_stage_with_choices_fits_wherever_a_kind_does() -> None:
    """In no more seconds than one that computes nothing again, where memory is ample."""
    loss, params, batch = LOOP
    training = Training(loss, (params, batch), SGD, False, 0, "step")
    search = PipelineSearch(training, Request(NEAR, Options(memory_bytes=SHORT)))
    price_wholes(search.trials, search.machine, search.counts, search.kinds)
    chosen, ample = (
        ChosenBounds(search.bounds, RECOMPUTE),
        replace(search.bounds, limit_bytes=float("inf"), _costs={}),
    )
    only_a_kind = 0
    for count, flight in ((2, 2), (4, 1), (4, 3), (16, 2)):
        kind = StageKind(count, 2, "none")
        found = chosen.costs(kind, flight, late=False).pace_s
        each = [search.bounds.costs(replace(kind, recompute=name), flight, late=False).pace_s
                for name in RECOMPUTE]  # fmt: skip
        assert (np.isfinite(found) == np.isfinite(each).any(axis=0)).all()
        least = ample.costs(kind, flight, late=False).pace_s
        assert (found[np.isfinite(found)] == least[np.isfinite(found)]).all()
        only_a_kind += int(np.isfinite(found).sum() - np.isfinite(each[0]).sum())
    assert only_a_kind > 0
