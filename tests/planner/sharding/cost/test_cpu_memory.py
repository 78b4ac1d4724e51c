# pyright: basic
"""Memory on CPU devices beside what XLA's CPU compiler says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from planner import plan, verify
from tests.planner.programs import slow_machine, struct

ROWS, WIDTH, LAYERS, WORDS = 512, 256, 4, 4096


def chain(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def scanned(ws: Any, x: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jax.nn.gelu(x @ w) + x, None), x, ws)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def convolved(windows: Any, x: Any) -> Any:
    for w in windows:
        x = jax.nn.relu(jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ))  # fmt: skip
    return jnp.mean(x**2)


def looked_up(table: Any, ids: Any) -> Any:
    return jnp.mean(table[ids] ** 2)


def weights(dtype: Any) -> Any:
    return [struct(WIDTH, WIDTH, dtype=dtype)] * LAYERS


CASES_OF_LOSSES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "chain": (chain, weights(jnp.float32), struct(ROWS, WIDTH)),
    "scan of halves": (
        scanned, struct(LAYERS, WIDTH, WIDTH, dtype=jnp.bfloat16),
        struct(ROWS, WIDTH, dtype=jnp.bfloat16),
    ),
    "convolutions": (convolved, [struct(3, 3, 32, 32)] * LAYERS, struct(32, 16, 16, 32)),
    "rows of a table": (looked_up, struct(WORDS, WIDTH), struct(ROWS, dtype=jnp.int32)),
}  # fmt: skip


def trained(loss: Callable[..., Any], params: Any, state: Any, x: Any) -> Any:
    updates, state = optax.sgd(0.1, momentum=0.9).update(jax.grad(loss)(params, x), state, params)
    return optax.apply_updates(params, updates), state


@pytest.mark.parametrize("name", sorted(CASES_OF_LOSSES))
def test_predicted_memory_is_near_the_compilers(name: str) -> None:
    loss, params, x = CASES_OF_LOSSES[name]
    state = jax.eval_shape(optax.sgd(0.1, momentum=0.9).init, params)
    found = plan(
        partial(trained, loss), params, state, x, cluster=slow_machine(4), mesh=(4,),
        baseline="fsdp", donate_argnums=(0, 1),
    )  # fmt: skip
    checked = verify(found, compiler="host")
    assert checked.predicted_argument_bytes == checked.compiled.argument_bytes
    assert 0.7 < checked.predicted_peak_bytes / checked.compiled.peak_bytes < 3.0


def test_a_plan_for_gpus_is_held_against_the_compiler_asked() -> None:
    loss, params, x = CASES_OF_LOSSES["chain"]
    state = jax.eval_shape(optax.sgd(0.1, momentum=0.9).init, params)
    found = plan(
        partial(trained, loss), params, state, x, cluster="4xh100", mesh=(4,),
        baseline="data-parallel", donate_argnums=(0, 1),
    )  # fmt: skip
    checked = verify(found, compiler="host")
    assert checked.predicted_peak_bytes > found.peak_bytes
