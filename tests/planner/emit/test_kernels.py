# pyright: basic
"""Attention by kernels: planned for GPUs, run on eight CPU devices, without scores in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from ir import ATTENTION
from ir.host_kernels import cudnn_assumed
from planner import plan


def loss(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for p in params:
        q, k, v = (jnp.einsum("btm,mhd->bthd", x, p[name]) for name in "qkv")
        heads = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        x = x + jnp.einsum("bthd,hdm->btm", heads, p["o"])
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def arguments(layers: int = 2, groups: int = 4, length: int = 16) -> tuple[Any, Any]:
    def draw(*shape: int) -> Any:
        values = np.random.default_rng(shape).normal(size=shape) / np.sqrt(shape[0])
        return jnp.asarray(values, jnp.bfloat16)

    shapes = {"q": (32, 8, 8), "k": (32, groups, 8), "v": (32, groups, 8), "o": (8, 8, 32)}
    params = [{name: draw(*shape) for name, shape in shapes.items()} for _ in range(layers)]
    return params, {"x": draw(8, length, 32)}


def step(params: Any, batch: Any) -> Any:
    return jax.value_and_grad(loss)(params, batch)


def roles(found: Any) -> set[str]:
    """Factors over which attention is split."""
    plan_ = found._lowered
    each = zip(plan_.flat.ops, plan_.strategies, strict=True)
    return {r for op, s in each if op.node.op in ATTENTION and s for r in s.roles if r}


HEADS = {f"params/{i}/{name}": P(None, "x") for i in range(2) for name in "qkv"}


@pytest.mark.parametrize(
    ("mesh", "pins", "split"),
    [
        pytest.param({"x": 8}, {"batch/x": P("x")}, {"b"}, marks=pytest.mark.exhaustive),
        pytest.param({"x": 4}, HEADS, {"g"}, marks=pytest.mark.exhaustive),
        ({"x": 2, "y": 4}, {"batch/x": P("x")} | {k: P(None, "y") for k in HEADS}, {"b", "g"}),
        pytest.param(
            {"x": 8},
            {"params/0/q": P(None, "x"), "params/0/o": P("x")},
            None,
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_planned_step_gives_what_one_device_gives(mesh: Any, pins: Any, split: Any) -> None:
    args = arguments(length=256)
    devices = int(np.prod(list(mesh.values())))
    found = plan(
        step, *args, cluster=f"{devices}xh100", mesh=mesh, pins=pins, substitutions=False,
        baselines=False,
    )  # fmt: skip
    assert split is None or split <= roles(found)
    with cudnn_assumed():
        expected = jax.jit(step)(*args)
    for mine, whole in zip(
        jax.tree.leaves(found.compile()(*args)), jax.tree.leaves(expected), strict=True
    ):
        wide = np.asarray(whole, np.float32)
        np.testing.assert_allclose(
            np.asarray(mine, np.float32) / np.abs(wide).max(), wide / np.abs(wide).max(), atol=2e-2
        )


def test_memory_holds_no_scores() -> None:
    length, groups = 65536, 4
    params, batch = jax.eval_shape(lambda: arguments(1, groups, length))
    found = plan(step, params, batch, cluster="8xh100", baselines=False)
    scores = 8 * length * length * 2  # of one sequence, with two bytes each
    assert found.peak_bytes < scores / 100


@pytest.mark.exhaustive
def test_training_steps_and_stages_take_kernels() -> None:
    args = arguments(4)
    found = plan(
        loss, *args, optimizer=optax.sgd(0.1), cluster="2xh100", pipeline=2, microbatches=2,
        baselines=False,
    )  # fmt: skip
    state = optax.sgd(0.1).init(args[0])
    with cudnn_assumed():
        expected = jax.jit(loss)(*args)
    _, _, value = found.compile()(*args[:1], state, args[1])
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=2e-2)
