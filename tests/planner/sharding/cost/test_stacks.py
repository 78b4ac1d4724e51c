# pyright: basic
"""Stacks of loops as XLA keeps them: turned where slices are gathered, and one for two."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from planner import plan
from planner.sharding.cost.stacks import merged_stacks, turned_stacks

LAYERS, ROWS, WIDTH = 4, 64, 32


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def stack(x, w):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype("bfloat16")), None), x, w)[0]


def forward(w, x):
    return stack(x.astype("bfloat16"), w)


@pytest.mark.parametrize(("dim", "turned"), [(1, False), (2, True)])
def test_slices_gathered_along_another_dimension_than_the_first(dim: int, turned: bool) -> None:
    """The copy has the bytes of the argument's shard, and is there while the loop runs."""
    split = ["-"] * 3
    split[dim] = "8"
    w, x = struct(64, 2048, 2048), struct(8192, 2048)
    found = plan(
        forward, w, x, cluster="8xh100", mesh=(8,), baselines=False, substitutions=False,
        padding=False, memory_bytes=400 * 10**6,  # no room for the whole stack
        pins={"w": f"[{','.join(split)}]", "x": "[8,-]"},
    )  # fmt: skip
    decided = found.analysed.decided
    copies = list(turned_stacks(decided))
    assert bool(copies) == turned
    if turned:
        ((start, end, size),) = copies
        (region,) = decided.builder.flat.regions
        assert size == w.size * 4 / 8
        assert start <= region.start + 1
        assert region.end <= end


def named(w, x):
    def layer(x, w):
        y = jnp.sin(x @ w)
        return x + jnp.tanh(checkpoint_name(y, "y") @ w) * y, None

    return jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)


def test_a_value_and_its_name_are_one_stack() -> None:
    found = plan(
        jax.grad(named), struct(LAYERS, WIDTH, WIDTH), struct(ROWS, WIDTH), cluster="8xh100",
        mesh=(8,), baselines=False, substitutions=False, recompute="written",
    )  # fmt: skip
    decided = found.analysed.decided
    for start, end, size in merged_stacks(decided):
        assert end > start
        assert size <= LAYERS * ROWS * WIDTH * 4
        break
    else:
        raise AssertionError("no stack is merged")
