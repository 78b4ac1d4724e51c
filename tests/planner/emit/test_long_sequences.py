# pyright: basic
"""Steps of one long sequence: split along it from end to end, equal to one device, verified."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ir import ATTENTION, LoweredPlan, Sharding, replicated
from ir.trace import trace
from planner import load, plan, verify
from tests.helpers_exhaustive import usual
from tests.helpers_internals import attention
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import LINE, decisions_by, lowered

LENGTH, HEADS, GROUPS, SIZE, WIDTH = 64, 4, 2, 8, 32


def rotary(x: Any) -> Any:
    """Rotary positions [batch, length, heads, size]."""
    angles = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(SIZE // 2) / SIZE)
    turn = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [first * turn[0] - second * turn[1], second * turn[0] + first * turn[1]], -1
    )


def step(params: Any, tokens: Any, targets: Any) -> Any:
    """Loss and gradients of a layer of attention and a prediction of the next token."""

    def loss(params: Any) -> Any:
        x = params["embed"][tokens]
        for p in params["layers"]:
            q, k, v = (jnp.einsum("btm,mhd->bthd", x, p[name]) for name in "qkv")
            heads = attention(rotary(q), rotary(k), v, mask="CAUSAL")
            x = x + jnp.einsum("bthd,hdm->btm", heads, p["o"])
            x = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], -1))

    return jax.value_and_grad(loss)(params)


def arguments() -> tuple[Any, Any, Any]:
    def draw(*shape: int) -> Any:
        rng = np.random.default_rng(shape)
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    heads = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    layers = [
        {name: draw(WIDTH, n, SIZE) for name, n in heads.items()} | {"o": draw(HEADS, SIZE, WIDTH)}
        for _ in range(1)
    ]
    tokens = np.random.default_rng(0).integers(0, 48, (2, 1, LENGTH))
    return {"embed": draw(48, WIDTH), "layers": layers}, *jnp.asarray(tokens, jnp.int32)


def along(traced: Any, way: str) -> LoweredPlan:
    """The plan that splits everything along the sequence, and attention in a way."""
    graph, mesh = traced.graph, LINE

    def split(type_: Any, state: Sharding) -> bool:
        pairs = zip(type_.shape, state.dims, strict=True)
        return any(size == LENGTH and axes for size, axes in pairs)

    def choose(types: Any, op: Any, menu: Any) -> Any:
        if op.node.op in ATTENTION:
            return next(s for s in menu if s.roles == (way,))
        each = (*types, *op.node.outputs)
        counts = [sum(map(split, each, (*s.operands, *s.results))) for s in menu]
        return menu[int(np.argmax(counts))]

    def state(type_: Any) -> Sharding:
        return Sharding(tuple(mesh.names if size == LENGTH else () for size in type_.shape))

    inputs = [state(item.type) for item in graph.inputs]
    outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
    return lowered(traced, decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw))


@pytest.mark.parametrize("way", usual(["t", "ring", "zigzag"], ["ring", "zigzag"]))
def test_a_step_split_along_the_sequence_gives_what_one_device_gives(way: str) -> None:
    args = arguments()
    traced = trace(step, *args)
    plan_ = along(traced, way)
    values = zip(plan_.flat.values, plan_.states, strict=True)
    long = [state for value, state in values if state and value.type.shape[:2] == (1, LENGTH)]
    assert len(long) > 30
    assert all(state.dims[1] == ("x",) or state.partial for state in long)
    report = check_numerics(traced, plan_, args, rtol=1e-5)
    assert report.ok, str(report)
    gathered = {r.change.type.shape for r in plan_.reshards
                if r.change.steps and r.change.type.shape[:2] == (1, LENGTH)}  # fmt: skip
    of_keys = {(1, LENGTH, GROUPS, SIZE)} if way == "t" else set()
    assert gathered <= of_keys


# --- chosen by price ---------------------------------------------------------------------------

LONG = 131072


def planned(cluster: str, length: int = LONG, **settings: Any) -> Any:
    """One layer of attention as wide as that of Llama 3 8B, over one long sequence."""

    def loss(params: Any, batch: Any) -> Any:
        q, k, v = (jnp.einsum("btm,mhd->bthd", batch["x"], params[name]) for name in "qkv")
        out = attention(q, k, v, mask="CAUSAL")
        return jnp.mean(jnp.einsum("bthd,hdm->btm", out, params["o"]) ** 2)

    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {name: struct(1024, n, 128) for name, n in {"q": 32, "k": 8, "v": 8}.items()}
    params["o"] = struct(32, 128, 1024)
    return plan(
        jax.value_and_grad(loss), params, {"x": struct(1, length, 1024)}, cluster=cluster,
        substitutions=False, baselines=False, **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Any:
    return planned("64xh100")


def test_as_many_key_heads_as_devices_go_to_heads_by_all_to_all() -> None:
    split = planned("8xh100", 16384, mesh={"x": 8}, pins={"batch/x": P(None, "x")})
    pairs = zip(split._lowered.flat.ops, split._lowered.strategies, strict=True)
    assert {s.roles for op, s in pairs if s and op.node.op in ATTENTION} == {("g",)}
    exchanged = [c for c in split.collectives if c.kind == "all-to-all"]
    assert any("dot_product" in c.cause for c in exchanged)


def test_more_devices_than_key_heads_split_the_sequence_too(found: Any) -> None:
    pairs = zip(found._lowered.flat.ops, found._lowered.strategies, strict=True)
    chosen = [s.roles for op, s in pairs if s and op.node.op in ATTENTION]
    assert all({"ring", "zigzag"} & {*roles} for roles in chosen)
    scores = 32 * LONG * LONG * 4
    assert found.peak_bytes < scores / 100


def test_permutes_of_ops_are_collectives_of_the_plan(found: Any) -> None:
    own = [c for c in found.collectives if "dot_product" in c.cause and "permute" in c.kind]
    assert own
    assert all(0.0 <= c.exposed_s <= c.seconds for c in own)
    total = sum(c.seconds for c in found.collectives)
    assert found.program.communication_s == pytest.approx(total)


def test_the_program_has_the_permutes_of_the_plan(found: Any) -> None:
    checked = verify(found, compiler="host")
    assert checked.unexplained_bytes == 0
    (row,) = (row for row in checked.collectives if row.kind == "collective-permute")
    assert row.written_bytes == pytest.approx(row.predicted_bytes)


def test_a_stored_plan_keeps_the_way(found: Any, tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    found.save(path)
    again = load(path)
    assert again.collectives == found.collectives
    assert again._lowered.strategies == found._lowered.strategies
