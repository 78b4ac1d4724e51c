# pyright: basic
"""Bounds of one program that is short of memory, for every number of micro-batches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from jax import ShapeDtypeStruct as Shape
from jax import lax
from msgspec import structs

from planner import Options, plan
from planner.common.request import Request
from planner.pipeline import one_or_stages
from planner.sharding import none_below as module
from planner.sharding.none_below import is_short_of_memory, none_below
from planner.training.training import Training
from tests.helpers_exhaustive import usual
from tests.planner.programs import linked, slow_machine


def far_apart() -> Any:
    """Two hosts of two devices with a slow network between them."""
    machine = slow_machine(4)
    network = structs.replace(machine.network, bandwidth_bytes_per_s=1e6, latency_s=5e-3)
    device = structs.replace(
        machine.device, peak_flops=(("float32", 1e8),), memory_bandwidth_bytes_per_s=1e9
    )
    return replace(machine, devices_per_host=2, domain=2, network=network, device=device)


def chained(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for w, v in params:
        x = x + jnp.tanh(x @ w) @ v
    return jnp.mean(jnp.square(x))


def looped(params: Any, batch: Any) -> Any:
    def layer(x: Any, p: Any) -> Any:
        return x + jnp.tanh(x @ p[0]) @ p[1], None

    return jnp.mean(jnp.square(lax.scan(layer, batch["x"], params)[0]))


def step_of(loss: Any, features: int = 16, wide: int = 128, rows: int = 256) -> Training:
    """A step of two layers, or a loop over four."""
    f32 = jnp.float32
    params: Any = [(Shape((features, wide), f32), Shape((wide, features), f32))] * 2
    if loss is looped:
        params = Shape((4, features, wide), f32), Shape((4, wide, features), f32)
    batch = {"x": Shape((rows, features), f32)}
    return Training(loss, (params, batch), optax.sgd(0.1, momentum=0.9), False, 0, "step")


def request_of(memory_bytes: int | None, machine: Any = None, **options: Any) -> Request:
    given = Options(memory_bytes=memory_bytes, baselines=False, **options)
    return Request(machine or far_apart(), given)


# Steps, and a memory that is short for each.
CASES: dict[str, tuple[Training, int]] = {
    "written out": (step_of(chained), 100_000), "a loop": (step_of(looped), 180_000),
    "sizes to pad": (step_of(chained, features=15, wide=126, rows=240), 90_000),
}  # fmt: skip


@pytest.mark.parametrize("wish", usual(["written", "auto"], {"written"}))
@pytest.mark.parametrize("name", usual(CASES, {"sizes to pad"}))
def test_bounds_say_nothing_of_a_step_that_one_program_is_below(name: str, wish: str) -> None:
    training, memory_bytes = CASES[name]
    request = request_of(memory_bytes, recompute=wish)
    assert is_short_of_memory(training, request)
    single = plan(
        training.loss_fn, *training.args, cluster=far_apart(), optimizer=training.optimizer,
        pipeline="off", memory_bytes=memory_bytes, baselines=False, recompute=wish,
    )  # fmt: skip
    for share in (1.0001, 1.2):
        assert not none_below(training, request, single.step_s * share)


@pytest.mark.parametrize(("name", "known"), [
    ("written out", True), ("sizes to pad", False),  # all ops of it may be padded
])  # fmt: skip
def test_bounds_say_something_of_much_shorter_steps(name: str, known: bool) -> None:
    training, memory_bytes = CASES[name]
    request = request_of(memory_bytes, recompute="written")
    assert none_below(training, request, 1e-3) == known
    assert not none_below(training, request, 10.0)


def test_the_number_after_the_first_that_fits_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    training, memory_bytes = CASES["written out"]
    request = replace(request_of(memory_bytes, recompute="written"), say=heard.append)
    for fits, counts in ((True, (1, 2)), (False, (1, 2, 4, 8, 16, 32, 64))):
        heard.clear()
        monkeypatch.setattr(
            module, "_searches",
            lambda *_, fits=fits: [SimpleNamespace(fits_roughly=lambda: fits)],
        )  # fmt: skip
        assert none_below(training, request, 1.0)
        assert heard == [f"bounds of one program, {m} micro-batches" for m in counts]


def test_where_bounds_may_not_tell_one_program_comes_first() -> None:
    training, memory_bytes = CASES["written out"]
    ample, link, late = (
        request_of(None), request_of(memory_bytes, linked(far_apart())),
        request_of(memory_bytes, time_limit_s=60.0),
    )  # fmt: skip
    assert not any(is_short_of_memory(training, request) for request in (ample, link, late))

    def convolved(params: Any, batch: Any) -> Any:
        x = lax.conv(batch["x"], params, (1, 1), "VALID")
        return jnp.mean(jnp.square(x))

    shapes = Shape((8, 4, 3, 3), jnp.float32), {"x": Shape((8, 4, 16, 16), jnp.float32)}
    edited = Training(convolved, shapes, optax.sgd(0.1), False, 0, "step")
    assert not is_short_of_memory(edited, request_of(10_000))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rate", [1e6, 1e12])
def test_pipelines_first_are_no_worse(
    name: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the network is slow, and where it is not, so that one program is faster."""
    (training, memory_bytes), machine = CASES[name], far_apart()
    network = structs.replace(machine.network, bandwidth_bytes_per_s=rate, latency_s=5e3 / rate)
    given: dict[str, Any] = {
        "cluster": replace(machine, network=network), "optimizer": training.optimizer,
        "memory_bytes": memory_bytes, "baselines": False, "recompute": "written",
    }  # fmt: skip
    first = plan(training.loss_fn, *training.args, **given)
    monkeypatch.setattr(one_or_stages, "is_short_of_memory", lambda *_: False)
    after = plan(training.loss_fn, *training.args, **given)
    assert first.step_s <= after.step_s * (1 + 1e-6)
    assert 0.0 <= first.lower_bound_s <= first.step_s
    if rate == 1e6 and name != "sizes to pad":  # all ops of that may be padded
        assert "by bounds of all that may fit; none was planned" in str(first)
        assert not first.baselines
    else:
        assert len(first.stages) == 1 or "one program" in first.baselines
