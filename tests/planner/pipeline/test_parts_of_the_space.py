# pyright: basic
"""`plan` with nothing fixed is no worse than with something fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from msgspec import structs

from planner import PlanError, plan
from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline import search as search_module
from planner.pipeline.schedule.registry import PIPELINES, TURNS
from planner.pipeline.search import PipelineSearch
from planner.training.training import Training
from tests.planner.pipeline.test_one_or_stages import chained, far_apart
from tests.planner.programs import BATCH, PARAMS, mean_loss


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def scanned(params: Any, batch: Any) -> Any:
    def layer(x: Any, p: Any) -> Any:
        return x + jnp.tanh(x @ p["w"]) @ p["v"], None

    return jnp.mean(jnp.square(jax.lax.scan(layer, batch["x"], params)[0]))


def noisy(params: Any, batch: Any) -> Any:
    """Dropout, norms with `std`, and a mean with weights."""
    x = batch["x"]
    for i, (w, v) in enumerate(zip(params["w"], params["v"], strict=True)):
        kept = jax.random.bernoulli(jax.random.fold_in(batch["key"], i), 0.8, x.shape)
        x = x + jnp.tanh(x @ w) @ v * kept
        x = (x - x.mean(-1, keepdims=True)) / (1e-3 + x.std(-1, keepdims=True))
    return jnp.sum(jnp.mean(x**2, 1) * batch["mask"]) / jnp.sum(batch["mask"])


def chain(layers: int, width: int, inner: int, rows: int) -> tuple[Any, Any]:
    weights = {"w": [shape(width, inner)] * layers, "v": [shape(inner, width)] * layers}
    return weights, {"x": shape(rows, width)}


WIDE, LONG = chain(3, 32, 256, 32), chain(3, 32, 64, 256)
NOISE = {"x": shape(16, 32), "mask": shape(16), "key": jax.eval_shape(lambda: jax.random.key(0))}
STACK = {"w": shape(4, 32, 128), "v": shape(4, 128, 32)}
PROGRAMS: dict[str, tuple[Any, Any, Any, int | None]] = {
    "wide layers": (chained, *WIDE, None),
    "wide layers, little memory": (chained, *WIDE, 240_000),
    "many rows": (chained, *LONG, None),
    "many rows, little memory": (chained, *LONG, 150_000),
    "a scan": (scanned, STACK, {"x": shape(16, 32)}, None),
    "a scan, little memory": (scanned, STACK, {"x": shape(64, 32)}, 120_000),
    "noise": (noisy, chain(2, 32, 128, 16)[0], NOISE, None),
    "two layers": (mean_loss, PARAMS, BATCH, None),
}
PARTS: tuple[dict[str, Any], ...] = (
    {"pipeline": "off"}, {"pipeline": 2}, {"pipeline": 3}, {"pipeline": 4},
    *({"microbatches": m} for m in (1, 2, 4, 8)),
    *({"microbatches": m, "pipeline": "off"} for m in (2, 4)),
    *({"schedules": (name,)} for name in PIPELINES if name not in TURNS),
    *({"schedules": ("1f1b", name)} for name in TURNS),
    {"mesh": (4,)}, {"mesh": (2, 2)}, {"pipeline": 2, "microbatches": 4},
)  # fmt: skip


def step_s(program: str, **settings: Any) -> float:
    loss, params, batch, memory_bytes = PROGRAMS[program]
    given: dict[str, Any] = {"substitutions": False, "baselines": False} | settings
    try:
        found = plan(
            loss, params, batch, cluster=far_apart(), optimizer=optax.adam(1e-3),
            memory_bytes=memory_bytes, **given,
        )  # fmt: skip
    except PlanError:
        return float("inf")
    return found.step_s


def test_nothing_fixed_is_no_worse_for_a_tiny_program() -> None:
    apart = far_apart()
    network = structs.replace(apart.network, latency_s=2e-2)  # dear enough for stages
    two = replace(apart, num_devices=2, devices_per_host=1, domain=1, network=network)
    args, least_s = chain(2, 256, 512, 4), float("inf")
    parts: tuple[dict[str, Any], ...] = (
        {"pipeline": "off"}, {"pipeline": "off", "microbatches": 2}, {"mesh": (2,)},
        {"pipeline": 2, "microbatches": 2, "schedules": ("zb-h1",)}, {},
    )  # fmt: skip
    for part in parts:
        found = plan(
            chained, *args, cluster=two, optimizer=optax.sgd(0.1), substitutions=False,
            baselines=False, **part,
        )  # fmt: skip
        least_s = min(least_s, found.step_s)
    assert len(found.stages) == 2  # with nothing fixed
    assert found.step_s <= least_s * (1 + 2e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_fixed_is_no_worse(program: str) -> None:
    auto_s = step_s(program)
    worse = {str(part): part_s / auto_s for part in PARTS
             if (part_s := step_s(program, **part)) < auto_s * (1 - 2e-3)}  # fmt: skip
    assert not worse
    loss, params, batch, memory_bytes = PROGRAMS[program]
    if auto_s < float("inf"):
        beside = plan(
            loss, params, batch, cluster=far_apart(), optimizer=optax.adam(1e-3),
            memory_bytes=memory_bytes, substitutions=False,
        )  # fmt: skip
        by_hand = [b.step_s for b in beside.baselines.values() if b.fits]
        assert auto_s <= min(by_hand, default=float("inf")) * (1 + 2e-3)


@pytest.mark.exhaustive
def test_other_numbers_of_micro_batches_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates are far above the step of few micro-batches whose weight gradients wait."""
    monkeypatch.setattr(search_module, "MOST_UNITS", 0)  # without the proof
    steps: list[float] = []
    for count in (None, 2):
        training = Training(chained, WIDE, optax.adam(1e-3), False, 0, "wide")
        options = Options(microbatches=count, substitutions=False, baselines=False)
        found = PipelineSearch(training, Request(far_apart(), options)).run(2)
        assert found is not None
        steps.append(found.ranked.step_s)
    assert steps[0] <= steps[1]
