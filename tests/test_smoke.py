# pyright: basic
"""What every version of Python and JAX has to do: plan, save, load, bind and run small programs.

`make smoke` runs this file on each interpreter that is here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import load, plan
from planner.common.compiler_options import compiler_options, options_here
from tests.planner.programs import slow_machine

from .smoke_programs import PROGRAMS, RNG, stacked

X = RNG.normal(size=(4, 8, 16)).astype(np.float32)
PARAMS = {"w": (RNG.normal(size=(4, 16, 16)) / 4).astype(np.float32)}


def assert_same(found: Any, expected: Any) -> None:
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("emission", ["shard_map", "constraints"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs_run_as_planned(name: str, emission: str, tmp_path: Any) -> None:
    fn, args = PROGRAMS[name]
    # The batch is split whatever it costs, so that collectives are written.
    pins = (("x", "[8,-]"),)
    made = plan(fn, *args, cluster="8xh100", mesh=(8,), pins=pins, emission=emission)
    made.save(tmp_path / "a.json")
    again = load(tmp_path / "a.json").bind(fn, *args)
    again.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert_same(again.compile()(*args), jax.jit(fn)(*args))


def test_the_compiler_knows_the_options_for_gpus() -> None:
    """Every backend of a version of JAX reads the options of all."""
    wanted = compiler_options(overlap=True, copies=True, rings=True, on_host=True)
    jax.jit(jnp.sin, compiler_options=options_here(wanted))(1.0)


def mean_loss(params: Any, batch: Any) -> Any:
    after, _ = stacked(params["w"], batch["x"])
    return jnp.mean(jnp.tanh(after) ** 2)


def layered_loss(params: Any, batch: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w), None

    after, _ = jax.lax.scan(layer, batch["x"], params["w"])
    return jnp.mean((after - 1.0) ** 2)


@pytest.mark.parametrize("stages", ["off", 2])
def test_training_in_parts_is_the_whole_step(stages: Any, tmp_path: Any) -> None:
    batch = {"x": X[0]}
    optimizer = optax.adamw(1e-2)
    loss_fn = mean_loss if stages == "off" else layered_loss
    settings: dict[str, Any] = {"schedules": ("1f1b",)} if stages == 2 else {"mesh": (2,)}
    made = plan(
        loss_fn, PARAMS, batch, optimizer=optimizer, microbatches=2, pipeline=stages,
        cluster=slow_machine(2), baselines=False, **settings,
    )  # fmt: skip
    made.save(tmp_path / "a.json")
    bound = load(tmp_path / "a.json").bind(loss_fn, PARAMS, batch, optimizer=optimizer)
    state = optimizer.init(PARAMS)
    value, slope = jax.jit(jax.value_and_grad(loss_fn))(PARAMS, batch)
    updates, after = optimizer.update(slope, state, PARAMS)
    expected = optax.apply_updates(PARAMS, updates), after, value
    assert_same(bound.compile()(PARAMS, state, batch), expected)
