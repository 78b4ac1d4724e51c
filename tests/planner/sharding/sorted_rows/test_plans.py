# pyright: basic
"""Plans with rows in blocks: on eight devices equal to one, exchanged over a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import EXCHANGE, GROUPED, NEAR, Mesh, replicated
from ir.strategy import Strategy
from ir.trace import trace
from planner import PlanError, load, plan
from planner.emit.jit import compile_plan
from planner.sharding.sorted_rows.rows import as_blocked, blocked
from tests.helpers_exhaustive import usual
from tests.planner.emit.plans import decisions_by, lowered
from tests.planner.sharding.sorted_rows.test_orders import (
    ALIKE,
    EXPERTS,
    LOADS,
    arguments,
    layer,
    loss,
)

MESHES = {2: Mesh((("hosts", 2), ("inside", 4))), 4: Mesh((("hosts", 4), ("inside", 2)))}


def split(traced: Any, mesh: Mesh) -> Any:
    """Blocks over hosts, rows and groups alike over the devices of one; nothing else is split."""
    wanted = {("b", NEAR), ("i0", EXCHANGE), ("b0", EXCHANGE)}

    def choose(types: Any, op: Any, menu: tuple[Strategy, ...]) -> Strategy:
        del types
        ours = [s for s in menu if s.roles in wanted]
        assert ours or op.node.op != GROUPED
        return ours[0] if ours else next(s for s in menu if not any(s.roles))

    graph = traced.graph
    inputs = [replicated(item.type.rank) for item in graph.inputs]
    outputs = [replicated(graph.type_of(v).rank) for v in graph.outputs]
    return decisions_by(graph, mesh, inputs, outputs, choose, lambda s: s.without_partial())


@pytest.mark.parametrize("blocks", usual(MESHES, [2]))
@pytest.mark.parametrize("name", usual(["as written", "places", "biases"], ["as written"]))
def test_values_and_gradients(name: str, blocks: int) -> None:
    fn = loss(ALIKE[name])
    traced = blocked(trace(fn, *arguments()), blocks)
    assert traced is not None
    made = compile_plan(traced, lowered(traced, split(traced, MESHES[blocks])))
    alone = jax.jit(fn)
    for load_ in LOADS:
        args = arguments(load_)
        pairs = zip(jax.tree.leaves(made(*args)), jax.tree.leaves(alone(*args)), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-4, 1e-5, err_msg=load_)


def test_rows_are_exchanged_within_blocks() -> None:
    fn, mesh = loss(layer), MESHES[2]
    traced = blocked(trace(fn, *arguments()), 2)
    assert traced is not None
    made = compile_plan(traced, lowered(traced, split(traced, mesh)))
    text = made.lower_as_planned().compile().as_text()
    lines = [line for line in text.splitlines() if " all-to-all(" in line]
    assert lines
    assert all("{{0,1,2,3},{4,5,6,7}}" in line for line in lines)


def experts(params: Any, x: Any) -> Any:
    """Sum of squares of a sorted layer."""
    score, chosen = jax.lax.top_k(jax.nn.softmax(x @ params["router"]), 8)
    flat = chosen.reshape(-1)
    order, sizes = jnp.argsort(flat), jnp.bincount(flat, length=64).astype(jnp.int32)
    up = jax.nn.relu(jax.lax.ragged_dot(x[order // 8], params["up"], sizes))
    rows = jax.lax.ragged_dot(up, params["down"], sizes) * score.reshape(-1)[order][:, None]
    return jnp.sum(jnp.zeros_like(x).at[order // 8].add(rows) ** 2)


def shapes(tokens: int) -> tuple[Any, Any]:
    each = {"router": (1024, 64), "up": (64, 1024, 512), "down": (64, 512, 1024)}
    params = {name: jax.ShapeDtypeStruct(shape, "bfloat16") for name, shape in each.items()}
    return params, jax.ShapeDtypeStruct((tokens, 1024), "bfloat16")


OPTIONS: Any = {"cluster": "32xh100", "substitutions": False, "baselines": False}


def test_blocks_are_chosen_where_they_are_faster(tmp_path: Path) -> None:
    step, args = jax.value_and_grad(experts), shapes(131072)
    before = plan(step, *args, sort_in_blocks=False, **OPTIONS)
    found = plan(step, *args, **OPTIONS)
    blocks = found.program.sorted_blocks
    assert not before.program.sorted_blocks
    assert blocks >= 2
    assert found.step_s < before.step_s
    assert f"within {blocks} blocks" in str(found)
    found.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json").bind(step, *args)
    assert again.program.graph_digest == found.program.graph_digest
    with pytest.raises(PlanError, match="another function"):
        load(tmp_path / "plan.json").bind(jax.value_and_grad(lambda p, x: experts(p, -x)), *args)


def test_a_program_without_such_rows_has_no_blocks() -> None:
    fn = loss(lambda w, x: layer(w, x, keys=lambda flat: EXPERTS - flat))
    with pytest.raises(PlanError, match="none can be"):
        as_blocked(trace(fn, *arguments()), 2, "plan")
    traced = trace(fn, *arguments())
    assert as_blocked(traced, 0, "plan") is traced
