# pyright: basic
"""Products with a scale for each block: planned, priced by the device's units, equal on shards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir.trace import trace
from planner import plan

DIMS = (((1,), (0,)), ((), ()))


def product(x: Any, w: Any) -> Any:
    """A product of bfloat16 numbers that are scaled and shortened before, forward and backward."""
    config = jax.nn.get_scaled_dot_general_config("mxfp8")
    return jax.nn.scaled_dot_general(
        x, w, DIMS, preferred_element_type=jnp.float32, configs=[config] * 3
    )


def loss(params: Any, x: Any) -> Any:
    return jnp.mean(product(jnp.tanh(product(x, params["in"])).astype(x.dtype), params["out"]) ** 2)


def shapes(rows: int, width: int) -> tuple[Any, Any]:
    w = jax.ShapeDtypeStruct((width, width), "bfloat16")
    return {"in": w, "out": w}, jax.ShapeDtypeStruct((rows, width), "bfloat16")


def test_gradients_are_products_with_scales_too() -> None:
    graph = trace(jax.value_and_grad(loss), *shapes(64, 128)).graph
    assert [n.op for n in graph.nodes].count("scaled_matmul_wrapper") == 5  # none by x
    assert all(n.op != "dot_general" for n in graph.nodes)


@pytest.mark.parametrize("pins", [(("x", "[8,-]"),), (("params/*", "[-,8]"), ("x", "[-,-]"))])
def test_shards_give_what_one_device_gives(pins: Any) -> None:
    rng = np.random.default_rng(0)
    args = jax.tree.map(
        lambda t: jnp.asarray(rng.normal(size=t.shape) / 8, t.dtype), shapes(64, 256)
    )
    fn = jax.value_and_grad(loss)
    found = plan(fn, *args, cluster="8xb200", mesh=(8,), pins=pins, baselines=False)
    mine, theirs = found.compile()(*args), jax.jit(fn)(*args)
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        x, y = (np.asarray(v, np.float32) for v in (x, y))
        np.testing.assert_allclose(x, y, atol=2e-2 * np.abs(y).max())


def test_only_units_that_scale_blocks_are_fast() -> None:
    """On others operands are multiplied by their scales first, and products are of wide numbers."""
    given = (jax.ShapeDtypeStruct((1, 8192, 8192), jnp.float8_e4m3fn),) * 2
    scales = (jax.ShapeDtypeStruct((1, 8192, 256), jnp.float8_e8m0fnu),) * 2

    def run(*xs: Any) -> Any:
        return jax.nn.scaled_matmul(*xs, preferred_element_type=jnp.bfloat16)

    def plain(a: Any, b: Any) -> Any:
        dims = (((2,), (2,)), ((0,), (0,)))
        return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.bfloat16)

    one: Any = {"baselines": False, "substitutions": False, "padding": False}
    for cluster, expected in (("1xb200", (0.95, 1.05)), ("1xh100", (1.5, 3.0))):
        scaled = plan(run, *given, *scales, cluster=cluster, **one).step_s
        short = plan(plain, *given, cluster=cluster, **one).step_s
        assert expected[0] < scaled / short < expected[1], cluster
