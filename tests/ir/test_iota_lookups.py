# pyright: basic
"""Indices that count along a dimension become batch dimensions of the lookup."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import interpret
from ir.evaluate import plain_program
from ir.ops.build import fields
from ir.trace import trace
from planner import plan
from tests.planner.programs import array, slow_machine

X, AT = array(8, 5, 6), np.array([4, -1, 0, 2, 3, -5, 1, 7], np.int32)  # one is out of range
LOGITS, TOKENS = array(8, 4, 16, seed=1), np.arange(32, dtype=np.int32).reshape(8, 4) % 19


def read(x: Any, i: Any) -> Any:
    return x[jnp.arange(8), i]


def read_with_numpy(x: Any, i: Any) -> Any:
    return x[np.arange(8), i]


def read_turned(x: Any, i: Any) -> Any:
    return x.swapaxes(0, 1)[i, jnp.arange(8)]


def read_filled(x: Any, i: Any) -> Any:
    return x.at[jnp.arange(8), i].get(mode="fill", fill_value=7.0)


def of_a_grid(x: Any, i: Any) -> Any:
    return x[jnp.arange(8)[:, None], jnp.arange(4)[None, :], i]


def two_left(x: Any, i: Any) -> Any:
    return x[jnp.arange(8), i % 5, i % 6]


def differentiated(x: Any, i: Any) -> Any:
    return jax.grad(lambda x: (x[jnp.arange(8), i] ** 2).sum())(x)


def written(x: Any, i: Any) -> Any:
    return x.at[jnp.arange(8), i].set(jnp.cos(x[:, 0]))


def multiplied(x: Any, i: Any) -> Any:
    return x.at[jnp.arange(8), i].multiply(2.0)


CASES = {
    fn.__name__: (fn, x, i, batch)
    for fn, x, i, batch in (
        (read, X, AT, (0,)), (read_with_numpy, X, AT, (0,)), (read_turned, X, AT, (1,)),
        (read_filled, X, AT, (0,)), (of_a_grid, LOGITS, TOKENS, (0, 1)), (two_left, X, AT, (0,)),
        (differentiated, X, AT, (0,)), (written, X, AT, (0,)), (multiplied, X, AT, (0,)),
    )
}  # fmt: skip


def batch_dims(fn: Any, *args: Any) -> set[Any]:
    nodes = trace(fn, *args).graph.nodes
    numbers = [fields(n.attr("dimension_numbers")) for n in nodes if n.op.startswith(LOOKUPS)]
    return {found["operand_batching_dims"] for found in numbers}


LOOKUPS = ("gather", "scatter")


@pytest.mark.parametrize("name", CASES)
def test_the_batch_is_seen_and_the_values_are_the_same(name: str) -> None:
    fn, x, i, batch = CASES[name]
    assert batch_dims(fn, x, i) == {batch}
    want, traced = jax.jit(fn)(x, i), trace(fn, x, i)
    (got,) = plain_program(traced.program)(*traced.program.consts, x, i)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    (by_numpy,) = interpret(traced.graph, [*map(np.asarray, traced.program.consts), x, i])
    np.testing.assert_allclose(by_numpy, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["read", "of_a_grid", "written"])
def test_it_is_split_over_the_batch_without_collectives_and_runs_equally(name: str) -> None:
    fn, x, i, batch = CASES[name]
    split = ",".join("8" if d == batch[0] and x.shape[d] == 8 else "-" for d in range(x.ndim))
    pins = (("x", f"[{split}]"), ("i", "[8,...]"))
    found = plan(fn, x, i, cluster=slow_machine(), pins=pins, baselines=False)
    assert found.collectives == ()
    np.testing.assert_allclose(found.compile()(x, i), jax.jit(fn)(x, i), rtol=1e-5)


def other_values(x: Any, i: Any) -> Any:
    return x[jnp.arange(8)[::-1], i]


def fewer(x: Any, i: Any) -> Any:
    return x[jnp.arange(4), i[:4]]


def nothing_left(x: Any, i: Any) -> Any:
    return x[jnp.arange(8)[:, None], jnp.arange(5)[None, :]] + i[0]


def only_by_arguments(x: Any, i: Any) -> Any:
    return x[i, i]


@pytest.mark.parametrize("fn", [other_values, fewer, nothing_left, only_by_arguments])
def test_other_indices_stay_as_they_are(fn: Any) -> None:
    assert batch_dims(fn, X, AT) == {()}


def test_one_dimension_of_the_indices_is_a_batch_once() -> None:
    square = array(8, 8, 5)
    fn = lambda x, i: x[jnp.arange(8), jnp.arange(8), i]  # noqa: E731
    assert batch_dims(fn, square, AT) == {(0,)}
    found = plan(fn, square, AT, cluster=slow_machine(), baselines=False)
    np.testing.assert_allclose(found.compile()(square, AT), jax.jit(fn)(square, AT), rtol=1e-5)
