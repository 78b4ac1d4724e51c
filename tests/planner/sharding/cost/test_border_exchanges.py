# pyright: basic
"""Borders of ops that slide run beside compute that does not wait for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from costmodel import INTERFERENCE, parse_cluster
from planner import plan, verify
from planner.emit.compilers import has_plugin
from planner.sharding.cost.inside_ops import Inside, inside_ops
from planner.sharding.problem.windows import BESIDE
from tests.planner.sharding.cost.test_account import adds_up
from tests.planner.spaces import Space, space

SIZE, CHANNELS = 1024, 64


def step(params: Any, images: Any) -> Any:
    """A training step of three convolutions of one image."""

    def loss(params: Any) -> Any:
        x = images
        for w in params:
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    value, slopes = jax.value_and_grad(loss)(params)
    return [p - g for p, g in zip(params, slopes, strict=True)], value


def arguments(size: int = SIZE) -> tuple[Any, ...]:
    kernel = jax.ShapeDtypeStruct((3, 3, CHANNELS, CHANNELS), jnp.bfloat16)
    return [kernel] * 3, jax.ShapeDtypeStruct((1, size, size, CHANNELS), jnp.bfloat16)


@cache
def on_eight() -> Space:
    return space(step, *arguments(), mesh=(8,), cluster=parse_cluster("8xh100"))


def split_in_space(found: Space) -> tuple[int, ...]:
    """A choice in which every convolution exchanges borders, else as drawn."""
    rng, built = np.random.default_rng(0), found.built
    best, least_s = tuple[int, ...](), np.inf
    for _ in range(200):
        choice = list(found.draw(rng))
        for i, node in built.op_node.items():
            roles = [s.roles for s in built.refs[node].menu]
            if found.flat.ops[i].node.op == "conv_general_dilated":
                choice[node] = roles.index(("halo0",))
        found.builder.settle(built, choice)
        cost_s = built.problem.cost(tuple(choice))
        if cost_s < least_s:
            best, least_s = tuple(choice), cost_s
    assert np.isfinite(least_s)
    return best


def borders(found: Space, choice: tuple[int, ...]) -> list[Inside]:
    each = list(inside_ops(found.decided(choice)))
    assert len(each) == 8  # convolutions forward, by their kernels, and two by their inputs
    return each


def test_only_borders_on_the_longest_way_show() -> None:
    """Gradients by kernels wait for nothing, so that their borders are beside the rest.

    Those of gradients by inputs may run beside these; a forward pass has nothing beside it.
    """
    found = on_eight()
    choice = split_in_space(found)
    ops = [op.node for op in found.flat.ops if op.node.op == "conv_general_dilated"]
    for n, (node, each) in enumerate(zip(ops, borders(found, choice), strict=True)):
        least_s = each.seconds * (1 - 1 / INTERFERENCE)
        if node.outputs[0].shape[:2] == (3, 3):
            assert each.exposed_s == pytest.approx(least_s)
        elif n < 3:
            assert 0.9 * each.seconds < each.exposed_s <= each.seconds
        else:
            assert 0.999 * least_s < each.exposed_s <= each.seconds


def test_what_hides_borders_hides_nothing_else() -> None:
    """Permutes are no compute: neither those that show nor, as they use it up, the hidden ones."""
    found = on_eight()
    choice, built = split_in_space(found), found.built
    inside = sum(each.seconds for each in borders(found, choice))
    nodes = {built.op_node[i] for i, op in enumerate(found.flat.ops)
             if op.node.op == "conv_general_dilated"}  # fmt: skip
    beside = sum(x.seconds[choice[x.node]] for x in built.problem.work if x.node in nodes)
    costs = sum(built.work[node][choice[node]] for node in nodes)
    assert beside == pytest.approx(BESIDE * (costs - inside))


def test_the_account_is_the_objective() -> None:
    found = on_eight()
    adds_up(found, split_in_space(found))
    rng = np.random.default_rng(1)
    for _ in range(20):
        choice = found.draw(rng)
        if np.isfinite(found.built.problem.cost(choice)):
            adds_up(found, choice)


def test_a_step_of_one_thing_after_the_other_shows_all_borders() -> None:
    pins = (("images", "[-,8,-,-]"),)
    settings: dict[str, Any] = {"cluster": "8xh100", "mesh": (8,), "baselines": False}
    p = plan(step, *arguments(), pins=pins, overlap=False, **settings)
    permutes = [c for c in p.collectives if c.kind == "collective-permute"]
    assert permutes
    assert all(c.exposed_s == pytest.approx(c.seconds) for c in permutes)


@pytest.mark.exhaustive
@pytest.mark.skipif(not has_plugin(), reason="needs XLA's GPU compiler")
def test_the_scheduled_text_hides_as_much() -> None:
    """The compiler exchanges once the borders that a convolution and its gradient share."""
    p = plan(step, *arguments(), cluster="8xh100", mesh=(8,), baselines=False, substitutions=False)
    overlap = verify(p, compiler="gpu-aot").overlap
    assert overlap is not None
    kind = "collective-permute"
    scheduled = sum(c.scheduled_exposed_s for c in overlap.collectives if c.kind == kind)
    predicted = sum(c.exposed_s for c in p.collectives if c.kind == kind)
    spent = sum(c.seconds for c in p.collectives if c.kind == kind)
    assert 0.6 * predicted < scheduled < 1.05 * predicted < 0.8 * spent
