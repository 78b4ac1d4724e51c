# pyright: basic
"""How two graphs differ, in one sentence that helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ir import Graph
from ir.differences import differences
from ir.trace import trace
from tests.planner.programs import X, array, struct


def graph(fn: Callable[..., Any], *args: Any) -> Graph:
    return trace(fn, *args).graph


HELD, OTHER = array(8, 16), array(8, 16, seed=1)


def twice(x):
    return x * 2


def loop(count: int) -> Callable[[Any], Any]:
    return lambda x: jax.lax.fori_loop(0, count, lambda _, x: x + 1, x)


def body(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: fn(x), x)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (lambda x: x * 2, lambda y: y * 2, ("'x'", "missing")),
        (lambda p: p["a"] + p["b"], lambda p: p["a"], ("'p/b'", "missing")),
        (lambda p: p["a"], lambda p: p["a"] + p["c"], ("'p/b'", "missing")),
        (lambda x: x * HELD, lambda x: x * OTHER, ("captured constant", "content")),
        (lambda x: (x, x), lambda x: x, ("2 results", "1")),
        (lambda x: x * 2, lambda x: x + 2, ("operation 0", "mul", "add", "test_differences.py:")),
        (lambda x: x * 2, lambda x: x * 3, ("operation 0, mul", "number 2.0", "number 3.0")),
        (lambda x: x.sum(0), lambda x: x.sum(0, keepdims=True).sum(0), ("operation",)),
        (lambda x: x[:4], lambda x: x[4:], ("operation 0, slice", "was (4, 16) and is (8, 16)")),
        (lambda x: x * 2 + 1, lambda x: x * 2, ("2 operations", "1")),
        (lambda x: (x * 2, x * 3), lambda x: (x * 2, x * 2), ("operation",)),
        (loop(3), loop(4), ("length of operation 0, scan", "was 3 and is 4")),
        (body(jnp.sin), body(jnp.cos), ("in a body of operation 0, scan", "was sin", "is cos")),
    ],
)
def test_the_first_difference_that_helps(a: Any, b: Any, words: tuple[str, ...]) -> None:
    args = X
    if words[0] == "'p/b'":
        planned, given = graph(a, {"a": X, "b": X}), graph(b, {"a": X, "c": X})
    else:
        planned, given = graph(a, args), graph(b, args)
    found = differences(planned, given)
    for word in words:
        assert word in found
    assert "\n" not in found


def test_argument_of_another_type() -> None:
    planned = graph(twice, X)
    assert differences(planned, graph(twice, struct(4, 16))) == (
        "argument 'x' was f32[8,16] in the plan and is f32[4,16]"
    )
    assert "bf16[8,16]" in differences(planned, graph(twice, struct(8, 16, dtype=jnp.bfloat16)))


def test_argument_that_is_new() -> None:
    found = differences(graph(twice, X), graph(lambda x, y: x * 2 + y, X, X))
    assert found == "argument 'y' is not in the plan"


def test_results_in_another_order_differ() -> None:
    def pair(x):
        return x * 2, x + 1

    def swapped(x):
        a, b = x * 2, x + 1
        return b, a

    assert "result" in differences(graph(pair, X), graph(swapped, X))
