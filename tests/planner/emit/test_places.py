# pyright: basic
"""Reads and writes at computed places: what NumPy makes of them, in both emissions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import Mesh
from ir.interpret import interpret
from ir.trace import trace
from planner import plan
from planner.emit import compile_plan
from planner.emit.jit import EMISSIONS
from tests.helpers_exhaustive import usual
from tests.planner.emit.places import Case, draw
from tests.planner.emit.plans import CUBE, LINE, lowered, random_decisions

GRIDS = (CUBE, LINE, Mesh((("x", 4), ("y", 2))), Mesh((("x", 2),)), Mesh((("x", 3),)))


def check(case: Case, emission: str, seed: int) -> None:
    """Holds random decisions against the meaning of the graph, which has no compiler."""
    traced, mesh = trace(case.function, *case.arguments[0]), GRIDS[seed % len(GRIDS)]
    decisions = random_decisions(traced.graph, mesh, seed)
    run = compile_plan(traced, lowered(traced, decisions), emission=emission)
    consts = [np.asarray(const) for const in traced.program.consts]
    for arguments in case.arguments:
        expected = interpret(traced.graph, (*consts, *arguments))
        for x, y in zip(run(*arguments), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(x), y, err_msg=", ".join(case.ops))


@pytest.mark.parametrize("seed", usual(range(6), range(3)))
@pytest.mark.parametrize("emission", EMISSIONS)
def test_random_places(emission: str, seed: int) -> None:
    check(draw(seed), emission, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6, 300))
@pytest.mark.parametrize("emission", EMISSIONS)
def test_more_random_places(emission: str, seed: int) -> None:
    check(draw(seed), emission, seed)


def one_row(x, i, u):
    return jnp.tanh(jnp.cumsum(x, 0).at[i].set(u)).sum(1)


def clamped_rows(x, i, u):
    rows = lax.dynamic_slice_in_dim(x, i[0] + 14, 8, 0)
    return jnp.tanh(rows - u[:, :1]).sum(1)


def one_of_a_slice(x, i, u):
    rows = lax.dynamic_slice_in_dim(x, i[0], 8, 0)
    return rows.at[i + 7].max(u, mode="drop").sum(1)


def applied(x, i, u):
    return jnp.sort(x, 0).at[i + 15].apply(lambda y: y * 2 + 1).sum(1) + u.sum()


PROGRAMS = (one_row, clamped_rows, one_of_a_slice, applied)


@pytest.mark.parametrize("emission", EMISSIONS)
@pytest.mark.parametrize("place", usual([2, 9], [9]))
@pytest.mark.parametrize("function", PROGRAMS)
def test_one_place_that_another_shard_has(function, place: int, emission: str) -> None:
    """XLA for CPU merges the slice that it makes of one place with that of the shard."""
    x = (np.arange(16 * 8.0) % 9 - 4).reshape(16, 8).astype(np.float32)
    args = x, np.array([place], np.int32), -np.ones((1, 8), np.float32)
    with jax.disable_jit():
        expected = np.asarray(function(*args))
    for mesh in ((8,), (2, 4)):
        found = plan(
            function, *args, cluster="8xhost", mesh=mesh, baselines=False, emission=emission,
            substitutions=False,
        )  # fmt: skip
        np.testing.assert_allclose(found.compile()(*args), expected, rtol=1e-5, atol=1e-5)
