# pyright: basic
"""Equations for which others are read: they are split as those are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy.sparse.linalg import cg

from ir.inlined import inlined
from ir.trace import trace
from planner import plan
from tests.helpers_internals import Primitive
from tests.planner.programs import array, assert_split_and_equal, slow_machine


def batch_norm(x: Any) -> Any:
    """Of one example; sums are over the batch, as layers of Equinox write them."""
    mean, square = lax.pmean((x, x * x), "batch")
    return (x - mean) / jnp.sqrt(square - mean * mean + 1.0) + lax.pmax(
        lax.stop_gradient(x), "batch"
    )


def normed(w: Any, x: Any) -> Any:
    return jnp.mean(jax.vmap(lambda row: batch_norm(row @ w), axis_name="batch")(x) ** 2)


def solved(a: Any) -> Any:
    return jnp.linalg.solve(a @ a.mT + jnp.eye(8), a)


def conjugate_gradients(a: Any, b: Any) -> Any:
    def product(x: Any) -> Any:
        return a @ (a.T @ x) + 40.0 * x

    return cg(product, b, maxiter=8)[0]


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (jax.value_and_grad(normed), (array(8, 16), array(64, 8, seed=1))),
        (solved, (array(16, 8, 8),)),
        (jax.vmap(conjugate_gradients), (array(8, 16, 16), array(8, 16, seed=1))),
    ],
)
def test_they_are_split_as_what_they_stand_for(fn: Any, args: tuple[Any, ...]) -> None:
    found = plan(fn, *args, cluster=slow_machine(8), baselines=False)
    assert_split_and_equal(found, fn, *args)
    assert "runs whole" not in str(found)


def test_a_copy_of_several_arrays_is_one_of_each() -> None:
    def fn(x: Any, y: Any) -> Any:
        x, y = jax.device_put((x, y))
        return x @ y

    ops = [node.op for node in trace(fn, array(8, 4), array(4, 8)).graph.nodes]
    assert ops == ["device_put", "device_put", "dot_general"]


def test_equations_of_libraries_in_loops_have_the_line_of_the_call() -> None:
    graph = trace(conjugate_gradients, array(16, 16), array(16)).graph
    (loop,) = [node for node in graph.nodes if node.op == "while"]
    lines = {node.source for body in loop.bodies for node in body.nodes}
    assert lines
    assert all(line.startswith("test_inlined.py:") for line in lines)


def test_rewriting_keeps_the_lines_of_a_program_with_copies_that_change_nothing() -> None:
    found = plan(
        conjugate_gradients, array(16, 16), array(16), cluster=slow_machine(8), baselines=False
    )
    assert found.collectives
    assert all("test_inlined.py:" in each.cause for each in found.collectives)


@pytest.mark.parametrize("name", ["closed_call", "eval_jaxpr"])
def test_calls_of_a_body_are_its_equations(name: str) -> None:
    """JAX 0.12 has the second in place of the first."""
    body = jax.make_jaxpr(jnp.sin)(1.0)
    call = SimpleNamespace(primitive=Primitive(name), params={"call_jaxpr": body})
    assert inlined(call) is body
