# pyright: basic
"""Memory on CPU devices: as XLA's CPU compiler says, and sane under any choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import plan, verify
from planner.hostmemory import host_memory
from tests.planner.programs import CASES, slow_machine, struct
from tests.planner.spaces import space

ROWS, WIDTH, LAYERS, WORDS = 512, 256, 4, 4096


def chain(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def scanned(ws: Any, x: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jax.nn.gelu(x @ w) + x, None), x, ws)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def normed(ws: Any, x: Any) -> Any:
    for w in ws:
        x = x + jax.nn.softmax(jax.nn.standardize(x.astype(jnp.float32)).astype(x.dtype) @ w)
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
    "chain of halves": (chain, weights(jnp.bfloat16), struct(ROWS, WIDTH, dtype=jnp.bfloat16)),
    "scan": (scanned, struct(8, WIDTH, WIDTH), struct(ROWS, WIDTH)),
    "scan of halves": (
        scanned, struct(LAYERS, WIDTH, WIDTH, dtype=jnp.bfloat16),
        struct(ROWS, WIDTH, dtype=jnp.bfloat16),
    ),
    "convolutions": (convolved, [struct(3, 3, 32, 32)] * LAYERS, struct(32, 16, 16, 32)),
    "norms": (normed, weights(jnp.float32), struct(ROWS, WIDTH)),
    "rows of a table": (looked_up, struct(WORDS, WIDTH), struct(ROWS, dtype=jnp.int32)),
}  # fmt: skip


def trained(loss: Callable[..., Any], params: Any, state: Any, x: Any) -> Any:
    updates, state = optax.sgd(0.1, momentum=0.9).update(jax.grad(loss)(params, x), state, params)
    return optax.apply_updates(params, updates), state


@pytest.mark.parametrize("baseline", ["data-parallel", "zero-2", "fsdp"])
@pytest.mark.parametrize("name", sorted(CASES_OF_LOSSES))
def test_memory_is_that_of_the_compiler(name: str, baseline: str) -> None:
    loss, params, x = CASES_OF_LOSSES[name]
    state = jax.eval_shape(optax.sgd(0.1, momentum=0.9).init, params)
    found = plan(
        partial(trained, loss), params, state, x, cluster=slow_machine(4), mesh=(4,),
        baseline=baseline, donate_argnums=(0, 1),
    )  # fmt: skip
    checked = verify(found, compiler="host")
    assert checked.predicted_argument_bytes == checked.compiled.argument_bytes
    ratio = checked.predicted_peak_bytes / checked.compiled.peak_bytes
    assert 0.9 < ratio < 1.1


@pytest.mark.parametrize("name", sorted(CASES))
def test_any_choice_has_a_memory(name: str) -> None:
    found, rng = space(CASES[name].fn, *CASES[name].args), np.random.default_rng(0)
    for _ in range(4):
        choice = found.draw(rng)
        memory = host_memory(found.builder, found.built, choice)
        arguments = found.account(choice).argument_bytes
        assert len(memory) == max(found.built.lives.horizon, 1)
        assert np.all(np.isfinite(memory))
        assert np.all(memory >= arguments * (1 - 1e-12))
        np.testing.assert_array_equal(memory, host_memory(found.builder, found.built, choice))


def test_a_plan_for_gpus_is_held_against_the_compiler_asked() -> None:
    loss, params, x = CASES_OF_LOSSES["chain of halves"]
    state = jax.eval_shape(optax.sgd(0.1, momentum=0.9).init, params)
    found = plan(
        partial(trained, loss), params, state, x, cluster="4xh100", mesh=(4,),
        baseline="data-parallel", donate_argnums=(0, 1),
    )  # fmt: skip
    checked = verify(found, compiler="host")
    assert checked.predicted_peak_bytes != found.peak_bytes
    assert 0.9 < checked.predicted_peak_bytes / checked.compiled.peak_bytes < 1.1
