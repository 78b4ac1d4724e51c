# pyright: basic
"""Attention that a program writes out: planned by the kernel where it pays, bound, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import planner
from ir import ATTENTION
from planner.common.errors import PlanError
from tests.ir.attention_writings import LOOK_ALIKES, WRITINGS

B, T, H, D, L = 8, 32, 4, 16, 2
WIDTH = H * D


def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = {"qkv": struct(L, WIDTH, 3 * WIDTH), "out": struct(L, WIDTH, WIDTH)}


def loss(params: Any, batch: Any) -> Any:
    """Layers of causal attention in a loop."""
    t = batch.shape[1]

    def layer(x: Any, w: Any) -> Any:
        q, k, v = (
            y.reshape(*y.shape[:2], H, -1) for y in jnp.split(x @ w["qkv"], 3, axis=-1)
        )  # fmt: skip
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e30)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        out = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        return x + out @ w["out"], None

    x, _ = jax.lax.scan(layer, batch, params)
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


@jax.jit
def step(params: Any, batch: Any) -> Any:
    value, slope = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, slope), value


def numbers(tree: Any) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: jnp.asarray(0.3 * rng.normal(size=s.shape), s.dtype), tree)


def kernels(plan: Any) -> int:
    return sum(program.graph.count(ATTENTION[0]) for program in plan.file.programs)


def plan_of(fn: Any, *args: Any, cluster: str = "8xh100", **settings: Any) -> Any:
    few = {"baselines": False, "mesh": (8,), "substitutions": False, "padding": False}
    if "pipeline" in settings:
        del few["mesh"]
    return planner.plan(fn, *args, cluster=cluster, **(few | settings))


@pytest.mark.exhaustive
def test_the_kernel_is_planned_where_it_pays() -> None:
    args = ({"qkv": struct(2, 512, 1536), "out": struct(2, 512, 512)}, struct(16, 2048, 512))
    written, chosen = (plan_of(step, *args, attention=a) for a in ("written", "auto"))
    assert kernels(chosen) > 0
    assert not kernels(written)
    assert written.file.programs[0].attention == ()
    (row,) = chosen.file.programs[0].attention
    assert row.what.startswith("causal, 16 x 4 heads, 2,048 x 2,048 of 128")
    assert not row.why
    assert "by the kernel, within (0.016 + 0.0078 x largest score)" in str(chosen)
    assert chosen.step_s < written.step_s
    scores = 16 * 4 * 2048 * 2048 * 4 / 8
    assert chosen.peak_bytes + scores < written.peak_bytes


@pytest.mark.exhaustive
def test_a_plan_with_the_kernel_is_read_bound_and_run(tmp_path: Path) -> None:
    args = (PARAMS, struct(B, T, WIDTH))
    plan = plan_of(step, *args, cluster="host", attention="kernel")
    assert kernels(plan) > 0
    plan.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(step, *args)
    given = numbers(args)
    found, expected = again.compile()(*given), step(*given)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = (np.asarray(each, dtype=np.float64) for each in (x, y))
        assert np.abs(x - y).max() <= 0.03 * np.abs(y).max()
    with pytest.raises(PlanError, match="another function"):
        planner.load(tmp_path / "plan.json").bind(step, PARAMS, struct(2 * B, T, WIDTH))


@pytest.mark.exhaustive
@pytest.mark.parametrize("pipeline", [2, "off"])
def test_a_loss_with_the_kernel_in_stages_and_micro_batches(pipeline: Any, tmp_path: Path) -> None:
    args, optimizer = (PARAMS, struct(B, T, WIDTH)), optax.sgd(0.5)
    settings = {"optimizer": optimizer, "microbatches": 2, "pipeline": pipeline}
    plan = plan_of(loss, *args, cluster="host", attention="kernel", **settings)
    assert kernels(plan) > 0
    plan.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(loss, *args, optimizer=optimizer)
    params, batch = numbers(args)
    expected = float(loss(params, batch))
    *_, found = again.compile()(params, optimizer.init(params), batch)
    assert float(np.asarray(found)) == pytest.approx(expected, rel=0.01)


def biased_and_late(params: Any, batch: Any) -> Any:
    """Layers with ALiBi, learned biases of each head, and a division after the second product."""
    places = jnp.arange(batch.shape[1])
    far = places[None, :] - places[:, None]
    slopes = 2.0 ** -jnp.arange(H)[:, None, None]

    def layer(x: Any, w: Any) -> Any:
        q, k, v = (y.reshape(*y.shape[:2], H, -1) for y in jnp.split(x @ w["qkv"], 3, axis=-1))
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        scores = scores + slopes * far + w["bias"]
        scores = jnp.where(far <= 0, scores, -jnp.inf)
        weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
        out = jnp.einsum("bhts,bshd->bthd", weights.astype(x.dtype), v)
        out = (out / jnp.swapaxes(weights.sum(-1), 1, 2)[..., None]).astype(x.dtype)
        return x + out.reshape(x.shape) @ w["out"], None

    x, _ = jax.lax.scan(layer, batch, params)
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
def test_biases_and_their_gradients_are_split_and_equal(mesh: Any) -> None:
    params = PARAMS | {"bias": struct(L, H, T, T, dtype=jnp.float32)}
    args, fn = (params, struct(B, T, WIDTH)), jax.value_and_grad(biased_and_late)
    plan = plan_of(fn, *args, cluster="host", attention="kernel", mesh=mesh)
    (row,) = plan.file.programs[0].attention
    assert row.what.startswith("causal, bias")
    assert not row.why
    assert kernels(plan) > 0
    given = numbers(args)
    found, expected = plan.compile()(*given), fn(*given)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = (np.asarray(each, dtype=np.float64) for each in (x, y))
        assert np.abs(x - y).max() <= 0.03 * np.abs(y).max()


def test_what_is_not_taken_is_named() -> None:
    fn, args, why = LOOK_ALIKES["dropout"]
    plan = plan_of(fn, *args, attention="kernel")
    (row,) = plan.file.programs[0].attention
    assert why in row.why
    assert f"as written: {row.why}" in str(plan)
    fn, args, _ = WRITINGS["nanogpt"]
    small = plan_of(fn, *args)  # of 16 queries: the kernel is not worth its start
    rows = small.file.programs[0].attention
    assert bool(kernels(small)) == (not rows[0].why)


def test_float32_and_devices_without_measured_kernels_are_as_written() -> None:
    fn, args, _ = LOOK_ALIKES["float32"]
    assert plan_of(fn, *args, attention="kernel").file.programs[0].attention == ()
    fn, args, _ = WRITINGS["nanogpt"]
    assert plan_of(fn, *args, cluster="8xv100-16gb").file.programs[0].attention == ()


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(PlanError, match="attention"):
        plan_of(step, PARAMS, struct(B, T, WIDTH), attention="flash")
