# pyright: basic
"""Numbers of micro-batches that cannot fit are seen from smaller ones."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import optax
import pytest
from jax import ShapeDtypeStruct as Shape

from ir.trace import trace
from planner import Options, PlanError, plan
from planner.sharding.fewest_microbatches import TRAINING_ROLES, least_needed
from planner.sharding.plan_traced import program_for
from planner.training.step_call import step_for
from tests.planner.programs import mean_loss, slow_machine

COUNTS = (2, 3, 4, 6, 8, 12, 24, 48)


def needed(rows: int) -> dict[int, float]:
    """What every plan of a step holds at least, by micro-batches."""
    params = {"b1": Shape((32,), jnp.float32), "w1": Shape((16, 32), jnp.float32),
              "w2": Shape((32, 16), jnp.float32)}  # fmt: skip
    x = Shape((rows, 16), jnp.float32)
    found: dict[int, float] = {}
    for count in COUNTS:
        call = step_for(
            mean_loss, (params, {"x": x, "y": x}), optimizer=optax.adam(1e-3),
            microbatches=count, loss_reduction="mean",
        )  # fmt: skip
        traced = trace(call.fn, *call.args, donate_argnums=(0, 1), roles=TRAINING_ROLES)
        found[count] = program_for(traced, Options(), slow_machine(4)).facts.least_peak(4)
    return found


@pytest.mark.parametrize("rows", [48, 48 * 64])
def test_no_number_needs_less_than_smaller_ones_say(rows: int) -> None:
    held = needed(rows)
    rises = 0
    for m, n, count in itertools.combinations(COUNTS, 3):
        least = least_needed(((m, held[m]), (n, held[n])), count)
        assert least <= held[count]
        rises += least > 0.9 * held[count]
    assert rises  # it says something


def test_nothing_is_said_without_two_numbers() -> None:
    assert least_needed((), 4) == least_needed(((2, 1e9),), 4) == 0.0


def test_the_error_is_of_the_first_number() -> None:
    """However many are passed over, by how much one program does not fit is said."""
    heard: list[str] = []
    x = Shape((64, 16), jnp.float32)
    params = {"b1": Shape((32,), jnp.float32), "w1": Shape((16, 32), jnp.float32),
              "w2": Shape((32, 16), jnp.float32)}  # fmt: skip
    with pytest.raises(PlanError, match="does not fit") as caught:
        plan(
            mean_loss, params, {"x": x, "y": x}, cluster=slow_machine(4), baselines=False,
            optimizer=optax.adam(1e-3), memory_bytes=6000, pipeline="off", progress=heard.append,
        )  # fmt: skip
    assert caught.value.needs_bytes > 6000
    assert heard.count("trace") < 7  # divisors of 64


def test_a_loss_that_cannot_be_cut_is_the_reason() -> None:
    """More micro-batches are not the remedy where the loss forbids them: it says why."""

    def largest(params, batch):
        return jnp.max(mean_rows(params, batch))

    def mean_rows(params, batch):
        return jnp.mean((batch["x"] @ params["w"]) ** 2, axis=1)

    x, params = Shape((64, 16), jnp.float32), {"w": Shape((16, 16), jnp.float32)}
    with pytest.raises(PlanError, match="does not fit") as caught:
        plan(
            largest, params, {"x": x}, cluster=slow_machine(4), baselines=False,
            optimizer=optax.adam(1e-3), memory_bytes=2000, pipeline="off",
        )  # fmt: skip
    assert "reduce_max" in caught.value.message
    assert "test_fewest_microbatches.py" in caught.value.message
    assert "more micro-batches" not in caught.value.remedy
    assert caught.value.needs_bytes > 2000


def test_what_a_step_holds_throughout_is_refused_before_any_search() -> None:
    """Neither micro-batches, recomputation nor stages are tried; a byte more, and they are."""
    params = {"w1": Shape((64, 256), jnp.float32), "w2": Shape((256, 64), jnp.float32)}
    params["b1"] = Shape((256,), jnp.float32)
    x, heard = Shape((16, 64), jnp.float32), list[str]()

    def refused(limit: int) -> PlanError:
        heard.clear()
        with pytest.raises(PlanError, match="does not fit") as caught:
            plan(
                mean_loss, params, {"x": x, "y": x}, cluster=slow_machine(4), baselines=False,
                optimizer=optax.adam(1e-3), memory_bytes=limit, progress=heard.append,
            )  # fmt: skip
        return caught.value

    error = refused(50_000)
    held = 4 * (3 * (2 * 64 * 256 + 256) + 1 + 2 * 16 * 64) / 4
    assert error.needs_bytes == pytest.approx(held, abs=4)
    assert "micro-batches nor stages are of help" in error.remedy
    assert not any("recompute" in line or "stage" in line for line in heard)
    assert "its arguments alone" not in refused(int(held) + 8).message
    assert any("recompute" in line for line in heard)
