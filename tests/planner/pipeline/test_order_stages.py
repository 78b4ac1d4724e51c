# pyright: basic
"""Causal sequences in zigzag inside stages: saved and loaded, equal to the step as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import ATTENTION, ORDERED, Mesh, Sharding
from ir.analysis import flatten
from planner import load, plan
from planner.emit.jit import compile_plan
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.replaced import traced_joint, with_program
from planner.pipeline.cut.stage_gradient import joint_of
from planner.sharding.ordering.plan import row_of
from planner.sharding.ordering.rows import as_ordered
from tests.helpers_internals import attention
from tests.planner.emit.plans import decisions_by, lowered
from tests.planner.pipeline.unproved import without_proof

LAYERS, LENGTH, WIDTH, SIZE, WORDS = 2, 512, 32, 16, 48
SGD = optax.sgd(0.5, momentum=0.9)


def layer(x: Any, p: Any) -> tuple[Any, None]:
    """One head, so that kernels are split along the sequence alone; positions are counted."""
    q, k, v = (jnp.einsum("btm,mhd->bthd", x, p[name]) for name in "qkv")
    places = jnp.cos(jnp.arange(x.shape[1]) / 7.0)[None, :, None, None]
    heads = attention(q * places, k, v, mask="CAUSAL")
    x = x + jnp.einsum("bthd,hdm->btm", heads, p["o"])
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3), None


def loss(params: Any, batch: Any) -> Any:
    x = params["embed"][batch["tokens"]] + params["places"]
    x, _ = jax.lax.scan(layer, x, params["layers"])
    logits = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.mean(jnp.take_along_axis(logits, batch["targets"][..., None], -1))


def struct(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = {
    "embed": struct(WORDS, WIDTH), "places": struct(LENGTH, WIDTH),
    "layers": {name: struct(LAYERS, WIDTH, 1, SIZE) for name in "qkv"}
    | {"o": struct(LAYERS, 1, SIZE, WIDTH)},
}  # fmt: skip
BATCH = {name: struct(2, LENGTH, dtype="int32") for name in ("tokens", "targets")}


@pytest.fixture(scope="module")
def found() -> Any:
    """Two stages on two devices each, in zigzag whatever that costs."""
    with pytest.MonkeyPatch.context() as patch, without_proof():
        patch.setattr("planner.pipeline.order_stages._parts", lambda _: 2)
        patch.setattr("planner.pipeline.order_stages._is_faster", lambda *_: True)
        patch.setattr("planner.pipeline.edit_stages._pays", lambda *_: True)
        return plan(
            loss, PARAMS, BATCH, optimizer=SGD, cluster="4xh100", pipeline=2, microbatches=2,
            substitutions=False, baselines=False, padding=False, schedules=("1f1b",),
        )  # fmt: skip


def test_kernels_of_stages_are_in_order(found: Any) -> None:
    for program in found.file.members:
        assert [(row.was, row.parts) for row in program.ordered] == [(LENGTH, 2)]
        kernels = [line for line in program.graph.splitlines() if f" {ATTENTION[0]} " in line]
        assert kernels
        assert all(f"{ORDERED}=2" in line for line in kernels)
    assert "512 in zigzag over 2 devices, in the stages" in str(found)


def test_the_pipeline_is_loaded_and_trains_as_the_step_does(found: Any, tmp_path: Path) -> None:
    found.save(tmp_path / "plan.json")
    run = load(tmp_path / "plan.json").bind(loss, PARAMS, BATCH, optimizer=SGD).compile()
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda t: jnp.asarray(rng.normal(size=t.shape) / 4, t.dtype), PARAMS)
    batch = jax.tree.map(lambda t: jnp.asarray(rng.integers(0, WORDS, t.shape), t.dtype), BATCH)

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
        np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(b).max()))


def along(traced: Any) -> Any:
    """The plan that splits everything along the sequence, and kernels in zigzag."""
    graph, mesh = traced.graph, Mesh((("x", 2),))

    def split(type_: Any, state: Any) -> bool:
        pairs = zip(type_.shape, state.dims, strict=True)
        return any(size == LENGTH and axes for size, axes in pairs)

    def choose(types: Any, op: Any, menu: Any) -> Any:
        if op.node.op in ATTENTION:
            return next(s for s in menu if s.roles == ("zigzag",))
        each = (*types, *op.node.outputs)
        counts = [sum(map(split, each, (*s.operands, *s.results))) for s in menu]
        return menu[int(np.argmax(counts))]

    def state(type_: Any) -> Sharding:
        return Sharding(tuple(("x",) if size == LENGTH else () for size in type_.shape))

    inputs = [state(item.type) for item in graph.inputs]
    outputs = [state(graph.type_of(o)) for o in graph.outputs]
    return lowered(traced, decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw))


@pytest.mark.parametrize("number", [0, 1])
def test_stages_that_split_their_sequence_in_two(found: Any, number: int) -> None:
    """Forward and backward pass of a micro-batch of each stage, traced again as in a pipeline."""
    opened_loss = opened(loss, PARAMS, BATCH, SGD, microbatches=2, loss_reduction="mean")
    cut = cut_of(opened_loss, found.file.cuts)
    joint = joint_of(opened_loss.program, cut, number)
    traced = traced_joint(joint)
    row = row_of(traced, {op.place: 2 for op in flatten(traced.graph).ops})
    assert row is not None
    edited = with_program(joint, as_ordered(traced, (row,), "stage"))
    again = traced_joint(edited)
    kernels = [op.node for op in flatten(again.graph).ops if op.node.op in ATTENTION]
    assert kernels
    assert all(node.attr(ORDERED) == 2 for node in kernels)
    made = compile_plan(again, along(again))
    rng = np.random.default_rng(number)

    def drawn(t: Any) -> Any:
        whole = jnp.issubdtype(t.dtype, jnp.integer)
        values = rng.integers(0, WORDS, t.shape) if whole else rng.normal(size=t.shape) / 4
        return jnp.asarray(values, t.dtype)

    args = [jax.tree.map(drawn, values) for values in joint.structs.values()]
    pairs = zip(
        jax.tree.leaves(made(*args)), jax.tree.leaves(jax.jit(joint.run)(*args)), strict=True
    )
    for a, b in pairs:
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, atol=2e-5 * float(np.abs(b).max() + 1e-6))
