# pyright: basic
"""Rows in blocks in stages: where they pay, saved and loaded, equal to the step as written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import load, plan
from tests.planner.pipeline.unproved import without_proof

TOKENS, EXPERTS, ACTIVE, WIDTH, INNER = 64, 8, 4, 32, 24
SGD = optax.sgd(0.5, momentum=0.9)


def experts(x: Any, w: Any) -> tuple[Any, None]:
    score, chosen = jax.lax.top_k(jax.nn.softmax(x @ w["router"]), ACTIVE)
    flat = chosen.reshape(-1)
    order, groups = jnp.argsort(flat), w["router"].shape[-1]
    sizes = jnp.bincount(flat, length=groups).astype(jnp.int32)
    up = jax.nn.relu(jax.lax.ragged_dot(x[order // ACTIVE], w["up"], sizes))
    rows = jax.lax.ragged_dot(up, w["down"], sizes) * score.reshape(-1)[order][:, None]
    return x + jnp.zeros_like(x).at[order // ACTIVE].add(rows), None


def loss(params: Any, batch: Any) -> Any:
    x, _ = jax.lax.scan(experts, batch["x"], params["layers"])
    return jnp.mean(jax.nn.logsumexp(x @ params["last"], axis=-1))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


LAYERS = {
    "router": struct(2, WIDTH, EXPERTS), "up": struct(2, EXPERTS, WIDTH, INNER),
    "down": struct(2, EXPERTS, INNER, WIDTH),
}  # fmt: skip
ARGS = {"layers": LAYERS, "last": struct(WIDTH, 16)}, {"x": struct(2 * TOKENS, WIDTH)}


def planned(args: Any = ARGS, cluster: str = "8xhost", **options: Any) -> Any:
    """A pipeline of two stages on half of the devices each."""
    with without_proof():
        return plan(
            loss, *args, optimizer=SGD, cluster=cluster, pipeline=2, microbatches=2,
            substitutions=False, baselines=False, loss_reduction="mean",
            schedules=("1f1b",), **options,
        )  # fmt: skip


def two(machine: Any, whole_s: float, step_s: Callable[[int], float]) -> int:
    """Two blocks, whatever they cost."""
    del machine, whole_s
    return 2 if step_s(2) < float("inf") else 1


@pytest.fixture(scope="module")
def found() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.pipeline.block_stages.fastest_blocks", two)
        patch.setattr("planner.pipeline.edit_stages._pays", lambda *_: True)
        return planned()


def test_stages_have_rows_in_blocks(found: Any) -> None:
    assert [program.sorted_blocks for program in found.file.members] == [2, 2]
    assert "within 2 blocks of tokens, in the stages" in str(found)


@pytest.mark.exhaustive
def test_blocks_pay() -> None:
    """Two stages on two hosts each, whose rows stay within a host."""
    big = {
        "router": (2, 1024, 64), "up": (2, 64, 1024, 512), "down": (2, 64, 512, 1024),
    }  # fmt: skip
    layers = {name: jax.ShapeDtypeStruct(shape, "bfloat16") for name, shape in big.items()}
    last, x = (jax.ShapeDtypeStruct((n, m), "bfloat16") for n, m in ((1024, 16), (131072, 1024)))
    args = {"layers": layers, "last": last}, {"x": x}
    found, without = (planned(args, "32xh100", sort_in_blocks=flag) for flag in (True, False))
    assert all(program.sorted_blocks for program in found.file.programs)
    assert not any(program.sorted_blocks for program in without.file.programs)
    assert found.step_s < without.step_s


def test_the_pipeline_is_loaded_and_trains_as_the_step_does(found: Any, tmp_path: Path) -> None:
    found.save(tmp_path / "plan.json")
    run = load(tmp_path / "plan.json").bind(loss, *ARGS, optimizer=SGD).compile()
    rng = np.random.default_rng(0)
    params, batch = jax.tree.map(lambda t: jnp.asarray(rng.normal(size=t.shape) / 4, t.dtype), ARGS)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = SGD.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    theirs = (params, SGD.init(params))
    mine: Any = jax.tree.map(jnp.copy, theirs)
    for _ in range(2):
        *mine, value = run(*mine, batch)
        *theirs, expected = step(*theirs, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))
