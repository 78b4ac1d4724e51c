# pyright: basic
"""Attention kernels on CPUs: traced without cuDNN, with the numbers of XLA's attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir.errors import IRError
from ir.host_kernels import cudnn_assumed
from ir.ops.attention import pairs
from ir.trace import trace
from tests.helpers_internals import attention
from tests.op_examples import normal

CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "full": ((4, 4, 6, 8), {}),
    "causal, grouped": ((4, 2, 6, 6), {"is_causal": True}),
    "causal, more keys": ((4, 1, 6, 8), {"is_causal": True}),
    "window": ((4, 2, 8, 8), {"is_causal": True, "local_window_size": (2, 0)}),
    "bias": ((4, 2, 6, 8), {"bias": normal(1, 4, 6, 8)}),
}


def _arrays(heads: int, groups: int, queries: int, keys: int) -> list[jax.Array]:
    shapes = ((2, queries, heads, 8), (2, keys, groups, 8), (2, keys, groups, 8))
    return [jnp.asarray(normal(*s, seed=i), jnp.bfloat16) for i, s in enumerate(shapes)]


def _typed(options: dict[str, Any]) -> dict[str, Any]:
    arrays = {k: jnp.asarray(x, jnp.bfloat16) for k, x in options.items() if k == "bias"}
    return options | arrays


@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradient_are_those_of_xla(name: str) -> None:
    sizes, options = CASES[name]
    arrays = _arrays(*sizes)

    def loss(implementation: str, *xs: Any) -> Any:
        chosen: Any = {"implementation": implementation} | _typed(options)
        found = jax.nn.dot_product_attention(*xs, **chosen)
        return jnp.sum(jnp.sin(found.astype(jnp.float32)))

    with cudnn_assumed():
        mine = jax.jit(jax.value_and_grad(lambda *xs: loss("cudnn", *xs), (0, 1, 2)))(*arrays)
    wide = [x.astype(jnp.float32) for x in arrays]
    exact = jax.jit(jax.value_and_grad(lambda *xs: loss("xla", *xs), (0, 1, 2)))(*wide)
    for found, expected in zip(jax.tree.leaves(mine), jax.tree.leaves(exact), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            np.asarray(found, np.float32) / scale, expected / scale, atol=2e-2
        )


def test_it_is_one_op_forward_and_one_backward() -> None:
    arrays = _arrays(4, 2, 6, 6)

    def loss(*xs: Any) -> Any:
        found = jax.nn.dot_product_attention(*xs, is_causal=True, implementation="cudnn")
        return jnp.sum(found.astype(jnp.float32))

    ops = [node.op for node in trace(jax.grad(loss, (0, 1, 2)), *arrays).graph.nodes]
    kernels = [op for op in ops if op.startswith("dot_product_attention")]
    assert kernels == ["dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"]


def test_outside_of_a_trace_jax_asks_for_cudnn_as_before() -> None:
    with cudnn_assumed():
        pass
    arrays = _arrays(4, 2, 6, 6)
    with pytest.raises(RuntimeError, match="cuDNN"):
        jax.nn.dot_product_attention(*arrays, implementation="cudnn")


def test_dropout_runs_on_gpus_alone_and_is_left_whole() -> None:
    arrays = _arrays(4, 2, 6, 6)

    def dropped(*xs: Any) -> Any:
        return attention(*xs, dropout=0.5)

    (node,) = [n for n in trace(dropped, *arrays).graph.nodes if "attention" in n.op]
    with pytest.raises(IRError, match="dropout"), cudnn_assumed():
        jax.jit(dropped).lower(*arrays)
    assert node.attr("dropout_rate") == 0.5


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (4, 7), (7, 4), (1, 6)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_pairs_are_counted(queries: int, keys: int, causal: bool, window: int | None) -> None:
    seen = np.ones((queries, keys), bool)
    rows, columns = np.indices(seen.shape)
    if causal:
        seen &= columns <= rows
    if window:
        seen &= columns > rows - window
    assert pairs(queries, keys, causal=causal, window=window) == seen.sum()
