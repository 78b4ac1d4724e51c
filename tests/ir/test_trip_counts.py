# pyright: basic
"""Iterations of `while` loops, against loops that run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir.errors import TraceError
from ir.evaluate import plain_program
from ir.graph import Graph, Node
from ir.regions import ASSUMED_ITERATIONS
from ir.trace import trace
from ir.trip_counts import iterations_if_unknown, known_iterations, runs_of

TESTS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
X = jnp.ones((4,))


def loop_of(fn: Callable[..., Any], *args: Any) -> Node:
    (node,) = [n for n in trace(fn, *args).graph.nodes if n.op == "while"]
    return node


def counting(test: Any, start: int, step: int, bound: int, dtype: str) -> Callable[..., Any]:
    first = np.dtype(dtype).type(start)

    def fn(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, runs, x = carry
            return i + np.dtype(dtype).type(step), runs + 1, jnp.sin(x)

        return lax.while_loop(lambda carry: test(carry[0], bound), body, (first, 0, x))

    return fn


def test_random_counts_are_those_that_run() -> None:
    rng, checked = np.random.default_rng(0), 0
    for _ in range(60):
        name = rng.choice(sorted(TESTS))
        start, bound = (int(n) for n in rng.integers(-9, 10, 2))
        step = int(rng.integers(1, 4)) * (1 if name in ("<", "<=") else -1)
        fn = counting(TESTS[name], start, step, bound, str(rng.choice(["int8", "int32"])))
        expected, i = 0, start
        while TESTS[name](i, bound):
            i, expected = i + step, expected + 1
        assert known_iterations(loop_of(fn, X)) == expected, (name, start, step, bound)
        checked += expected > 0
    assert checked > 10
    _, runs, _ = counting(operator.lt, -3, 2, 8, "int32")(X)
    assert known_iterations(loop_of(counting(operator.lt, -3, 2, 8, "int32"), X)) == int(runs)


def until(test: Any, body: Any, *start: Any) -> Callable[..., Any]:
    return lambda x: lax.while_loop(test, body, (*start, x))


KNOWN: dict[str, tuple[Callable[..., Any], int]] = {
    "bound first": (until(lambda c: lax.gt(7, c[0]), lambda c: (c[0] + 1, c[1] * 2), 0), 7),
    "bound is carried": (
        until(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1], c[2] * 2), 0, 5),
        5,
    ),
    "step is carried": (
        until(lambda c: c[0] < 9, lambda c: (c[1] + c[0], c[1], c[2] * 2), 0, 2),
        5,
    ),
    "down": (until(lambda c: c[0] > 0, lambda c: (c[0] - 2, c[1] * 2), 9), 5),
    "never": (until(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1] * 2), 3), 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_loops(name: str) -> None:
    fn, expected = KNOWN[name]
    node = loop_of(fn, X)
    assert known_iterations(node) == expected
    assert runs_of(node) == expected


UNKNOWN: dict[str, Callable[..., Any]] = {
    "by value": lambda x: lax.while_loop(lambda c: c.sum() > 1, lambda c: c / 2, x),
    "two tests": until(
        lambda c: (c[0] < 9) & (c[1].sum() > 0), lambda c: (c[0] + 1, c[1] - 1), 0
    ),
    "step by value": until(
        lambda c: c[0] < 9, lambda c: (c[0] + c[1].astype(int).max(), c[1]), 0
    ),
    "bound changes": until(
        lambda c: c[0] < c[1], lambda c: (c[0] + 2, c[1] + 1, c[2]), 0, 5
    ),
    "start by value": lambda x: lax.while_loop(
        lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1]), (x.astype(int).max(), x)
    ),
    "away from the bound": until(lambda c: c[0] < 9, lambda c: (c[0] - 1, c[1] * 2), 0),
    "floats": until(lambda c: c[0] < 0.9, lambda c: (c[0] + 0.1, c[1] * 2), 0.0),
    "batched": lambda x: jax.vmap(
        lambda y: lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 2), (y, y))
    )(x.astype(int)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_loops(name: str) -> None:
    node = loop_of(UNKNOWN[name], X)
    assert known_iterations(node) is None
    assert runs_of(node) == ASSUMED_ITERATIONS


def halved(x: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() > 1, lambda c: c / 2, x)


def stated(number: object, fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        with jax.named_scope(f"iterations={number}"):
            return fn(x)

    return run


SCOPES: dict[str, Callable[..., Any]] = {
    "around": stated(50, halved),
    "nearest": stated(3, stated(50, halved)),
    "around what it calls": stated(50, jax.jit(halved)),
    "in a loop": stated(50, lambda x: lax.scan(lambda c, _: (halved(c), None), x, length=2)[0]),
    "around a branch": stated(50, lambda x: lax.cond(x[0] > 0, halved, lambda x: x, x)),
    "mapped": jax.vmap(stated(50, lambda x: halved(x[None]))),
    "among layers": lambda x: stated(50, halved)(jax.named_scope("layer")(jnp.sin)(x)),
}


def loops(graph: Graph) -> list[Node]:
    inner = [loop for node in graph.nodes for body in node.bodies for loop in loops(body)]
    return [*inner, *(node for node in graph.nodes if node.op == "while")]


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_states_iterations(name: str) -> None:
    program = trace(SCOPES[name], X).program
    (node,) = loops(program.graph)
    assert known_iterations(node) is None
    assert runs_of(node) == iterations_if_unknown(program.graph) == 50
    again = trace(plain_program(program), *program.consts, X)  # as rewriting does
    assert [runs_of(loop) for loop in loops(again.graph)] == [50]


def test_a_scope_holds_for_loops_inside_it_alone() -> None:
    def run(x: Any) -> Any:
        return halved(stated(50, halved)(x)) + stated(7, jax.jit(halved))(x)

    graph = trace(run, X).graph
    assert sorted(map(runs_of, loops(graph))) == [7, ASSUMED_ITERATIONS, 50]
    assert iterations_if_unknown(graph) == ASSUMED_ITERATIONS  # no one number is that of all
    counted = until(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 2), 0)
    assert runs_of(loop_of(stated(50, counted), X)) == 9


@pytest.mark.parametrize("number", ["many", "0", "-3", ""])
def test_a_scope_without_a_number_is_an_error(number: str) -> None:
    with pytest.raises(TraceError, match="whole number above 0"):
        trace(stated(number, halved), X)
