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


def of_near(table: Any, seen: Any, weights: Any) -> Any:
    """A loss of positions looked up in a small table, as relative positions are."""
    return jnp.sum((table[seen] * weights).astype(jnp.float32))


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_many_updates_of_16_bits_are_added_in_float32(half: str) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    table = jax.random.normal(keys[0], (5, 8)).astype(half)
    seen = jax.random.randint(keys[1], (128, 128), 0, 5)
    weights = jax.random.uniform(keys[2], (128, 128, 8)).astype(half)
    step = jax.grad(of_near)
    made = plan(step, table, seen, weights, cluster=slow_machine(4))
    adding = [n for n in made.graph.nodes if n.op == "scatter-add"]
    assert [n.outputs[0].dtype for n in adding] == ["float32"]
    (note,) = [text for text in made.file.whole.warnings if "16-bit" in text]
    assert note.startswith("1 scatter of 16-bit numbers adds in float32")
    exact = step(table.astype(jnp.float32), seen, weights.astype(jnp.float32))
    found = made.compile()(table, seen, weights)
    off, written = (
        float(jnp.max(jnp.abs(x.astype(jnp.float32) - exact) / exact))
        for x in (found, step(table, seen, weights))
    )
    assert 4.0 * off < written  # sums in 16 bits round each time


@pytest.mark.parametrize(
    ("updates", "unique", "dtype"),
    [(4 * 256, False, "float32"), (4 * 256 - 1, False, "bfloat16"), (4 * 256, True, "bfloat16")],
)
def test_sums_that_go_on_growing_are_added_as_they_are_written(
    updates: int, unique: bool, dtype: str
) -> None:
    def step(table: Any, rows: Any, added: Any) -> Any:
        return table.at[rows].add(added, unique_indices=unique)

    types = (((4, 8), "bfloat16"), ((updates,), "int32"), ((updates, 8), "bfloat16"))
    found = trace(step, *(jax.ShapeDtypeStruct(*each) for each in types))
    adding = [n for n in found.graph.nodes if n.op == "scatter-add"]
    assert [n.outputs[0].dtype for n in adding] == [dtype]
    assert len(found.warnings) == (dtype == "float32")


def test_scatters_in_loops_are_counted() -> None:
    def step(table: Any, rows: Any, added: Any) -> Any:
        return jax.lax.scan(lambda t, i: (t.at[i].add(added), None), table, rows)[0]

    types = (((4, 8), "bfloat16"), ((3, 2048), "int32"), ((2048, 8), "bfloat16"))
    found = trace(step, *(jax.ShapeDtypeStruct(*each) for each in types))
    assert [text.split(" of ")[0] for text in found.warnings] == ["1 scatter"]
