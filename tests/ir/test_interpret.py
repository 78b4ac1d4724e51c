# pyright: basic
"""The NumPy interpreter against JAX, on whole functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir.errors import IRError
from ir.graph import Graph, Input, Node
from ir.interpret import interpret, without_meaning
from ir.trace import trace
from ir.types import TensorType
from tests.op_examples import batch_spd, normal

X, W = normal(4, 6), normal(6, 6, seed=1)


def mlp(x: Any, w: Any) -> Any:
    h = jax.nn.gelu(x @ w)
    return jnp.mean(jax.nn.log_softmax(h) ** 2)


def recurrent(x: Any, w: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = jnp.tanh(carry @ w + row)
        return carry, carry.sum()

    return lax.scan(step, jnp.zeros(6), x, reverse=True)


def newton(x: Any, w: Any) -> Any:
    limit = jnp.abs(w).max()
    return lax.while_loop(
        lambda c: (c[0] < 7) & (c[1].max() < 50 * limit), lambda c: (c[0] + 1, c[1] * 2), (0, x)
    )


def branches(x: Any, w: Any) -> Any:
    two = lax.cond(x[0, 0] > 0, lambda y: y @ w, lambda y: y * 2, x)
    return two, lax.switch(9, [jnp.sin, jnp.cos, jnp.tanh], w)


def recomputed(x: Any, w: Any) -> Any:
    return jax.grad(lambda v: jax.checkpoint(lambda u: jnp.sin(u @ w).sum())(v))(x)


def embedded(x: Any, w: Any) -> Any:
    rows = jnp.array([3, 1, 1, 0])
    return jax.grad(lambda v: (v[rows] @ w).sum() ** 2)(x), jnp.asarray(x).at[rows[:2], 1].set(0.0)


@pytest.mark.parametrize(
    "fn",
    [mlp, jax.grad(mlp, argnums=(0, 1)), recurrent, newton, branches, recomputed, embedded],
    ids=["mlp", "mlp gradient", "scan", "while", "cond", "remat", "gather and scatter"],
)
def test_numpy_agrees_with_jax(fn: Callable[..., Any]) -> None:
    program = trace(fn, X, W).program
    found = interpret(program.graph, [*program.consts, X, W])
    expected = jax.tree.leaves(fn(X, W))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_short_floats_keep_their_type() -> None:
    x, w = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    program = trace(lambda x, w: jnp.exp(x @ w) + 1, x, w).program
    (found,) = interpret(program.graph, [x, w])
    assert found.dtype == jnp.bfloat16
    expected = np.asarray(jnp.exp(x @ w) + 1, np.float32)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=5e-2)


def test_captured_constants_are_looked_up_by_content() -> None:
    table = np.arange(24, dtype=np.float32).reshape(4, 6)
    graph = trace(lambda x: jax.jit(lambda y: y + table)(x), X).graph
    assert without_meaning(graph) == ("constant",)
    (content,) = [str(n.attr("content")) for n in graph.nodes if n.op == "constant"]
    (found,) = interpret(graph, [X], {content: table})
    np.testing.assert_allclose(found, X + table)


def test_ops_without_a_meaning_are_named_bodies_included() -> None:
    def fn(x: Any) -> Any:
        return lax.map(lambda row: jax.pure_callback(np.sin, row, row), jnp.linalg.qr(x)[0])

    graph = trace(fn, batch_spd(4, 4)).graph
    assert without_meaning(graph) == ("pure_callback", "qr")
    with pytest.raises(IRError, match="no NumPy meaning for pure_callback, qr"):
        interpret(graph, [batch_spd(4, 4)])


def test_a_scatter_with_a_function_of_the_users_has_no_meaning() -> None:
    graph = trace(lambda x: x.at[1].apply(jnp.sin), X).graph
    assert without_meaning(graph) == ("scatter",)


def test_errors_say_where() -> None:
    row, pair = TensorType((3,), "float32"), TensorType((2,), "float32")
    graph = Graph((Input("x", row),), (Node("neg", (0,), (pair,), source="model.py:7"),), (1,))
    with pytest.raises(
        IRError, match=r"expected a value of type f32\[2\], got the shape \(3,\)"
    ) as e:
        interpret(graph, [np.ones(3)])
    assert e.value.__notes__ == ["while interpreting node 0 (neg) model.py:7"]
    with pytest.raises(IRError, match="has 1 inputs, got 0 arrays"):
        interpret(graph, [])
