# pyright: basic
"""The solver against every choice there is, on graphs traced from JAX, under memory limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel import CollectiveModel, ComputeModel, ReshardModel, parse_cluster
from ir.analysis.flatten import flatten
from ir.trace import trace
from planner.common.stop import Stop
from planner.sharding.problem.build import Builder
from planner.sharding.problem.facts import Facts
from planner.sharding.problem.records import MenuCache
from planner.sharding.search.mesh_shapes import mesh_of
from planner.solver.problem import IntraProblem
from planner.solver.solve import SolveOptions, solve
from tests.planner.solver.brute_force import MOST, brute_force

# From what the fastest plan needs down to less than any plan does.
TIGHTNESS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0, -0.1)
TOLERANCE = SolveOptions().tolerance
FEW = 500_000  # choices of a drawn graph


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def problem_of(
    fn: Callable[..., Any], args: Sequence[Any], mesh: tuple[int, ...], donate: tuple[int, ...] = ()
) -> IntraProblem:
    """The problem of a function on a mesh of H100, without a memory limit."""
    traced = trace(fn, *args, donate_argnums=donate)
    cluster = parse_cluster(f"{math.prod(mesh)}xh100")
    named, flat = mesh_of(mesh), flatten(traced.graph)
    cache = MenuCache(
        named, ReshardModel(cluster, named, CollectiveModel(cluster)), ComputeModel(cluster)
    )
    heads = len(traced.program.consts)
    ties = tuple((a + heads, b) for a, b in traced.tied)
    donated = frozenset(a + heads for a in traced.donated)
    builder = Builder(Facts(flat, ties, donated), cache, 1e18)
    return builder.build().problem


def choices(problem: IntraProblem) -> int:
    return math.prod(len(cost) for cost in problem.node_cost)


def least_peak(problem: IntraProblem) -> float:
    return problem.peak([int(np.argmin(use)) for use in problem.usage])


def agree(problem: IntraProblem) -> None:
    """Both find equally good plans, or both none, at every limit."""
    most, least = problem.peak(brute_force(problem).choice), least_peak(problem)
    for part in TIGHTNESS:
        limited = replace(problem, limit=least + part * (most - least) - (part < 0))
        exact, found = brute_force(limited), solve(limited)
        assert bool(found.choice) == bool(exact.choice)
        if not exact.choice:
            assert found.stop is Stop.INFEASIBLE
            continue
        assert limited.is_feasible(found.choice)
        assert found.cost == limited.cost(found.choice)
        assert exact.cost * (1 - 1e-9) <= found.cost <= exact.cost * (1 + TOLERANCE)
        assert found.bound <= exact.cost * (1 + 1e-9)


def two_products(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1) @ w2


def residual(x: Any, w: Any) -> Any:
    return x + jnp.tanh(x @ w)


def chain(a: Any, b: Any, c: Any) -> Any:
    return jnp.einsum("ij,jk,kl->il", a, b, c)


def attention_scores(q: Any, k: Any) -> Any:
    return jnp.einsum("bqd,bkd->bqk", q, k).max(-1)


def convolution(x: Any, kernel: Any) -> Any:
    return jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME")).sum((2, 3))


def descent(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)


GRAPHS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "two products": (
        two_products,
        (floats(4096, 1024), floats(1024, 4096), floats(4096, 1024)),
        (),
    ),
    "small batch": (two_products, (floats(32, 4096), floats(4096, 8192), floats(8192, 4096)), ()),
    "residual": (residual, (floats(2048, 2048), floats(2048, 2048)), ()),
    "chain": (chain, (floats(512, 8192), floats(8192, 512), floats(512, 8192)), ()),
    "attention scores": (attention_scores, (floats(4, 1024, 64), floats(4, 1024, 64)), ()),
    "convolution": (convolution, (floats(8, 64, 32, 32), floats(128, 64, 3, 3)), ()),
    "descent": (descent, (floats(4096, 4096), floats(1024, 4096)), (0,)),
}


@pytest.mark.parametrize(("name", "mesh"), [
    pytest.param(name, mesh, id=f"{name}-{mesh}",
                 marks=[pytest.mark.exhaustive] if (name, mesh) == ("descent", (2,)) else [])
    for name in sorted(GRAPHS) for mesh in ((2,), (4,))
])  # fmt: skip
def test_the_solver_agrees_with_every_choice(name: str, mesh: tuple[int, ...]) -> None:
    fn, args, donate = GRAPHS[name]
    problem = problem_of(fn, args, mesh, donate)
    assert choices(problem) <= MOST
    agree(problem)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda a, b: a @ b, (floats(1024, 4096), floats(4096, 1024))),
        (lambda a: jnp.sum(jax.nn.relu(a.T)), (floats(4096, 4096),)),
    ],
    ids=["product", "sum"],
)
def test_the_solver_agrees_with_every_choice_on_two_axes(fn: Any, args: Any) -> None:
    problem = problem_of(fn, args, (2, 2))
    assert choices(problem) <= MOST
    agree(problem)


# --- graphs that are drawn ---------------------------------------------------------------------

SIZES = (96, 1024, 4096)
Recipe = tuple[tuple[str, int, int], ...]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Recipe]:
    """Shapes of arguments, and ops as (name, operand, other operand); all matrices."""
    shapes = draw(st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES)),
                           min_size=1, max_size=3))  # fmt: skip
    known: list[tuple[int, int]] = list(shapes)
    ops: list[tuple[str, int, int]] = []
    for _ in range(draw(st.integers(3, 5))):
        options = [("relu", i, i) for i in range(len(known))]
        options += [("transpose", i, i) for i in range(len(known))]
        options += [("reduce", i, i) for i in range(len(known))]
        pairs = [(i, j) for i in range(len(known)) for j in range(len(known))]
        options += [("add", i, j) for i, j in pairs if known[i] == known[j]]
        options += 2 * [("matmul", i, j) for i, j in pairs if known[i][1] == known[j][0]]
        op, i, j = draw(st.sampled_from(options))
        ops.append((op, i, j))
        made = {
            "transpose": known[i][::-1], "reduce": (1, known[i][1]),
            "matmul": (known[i][0], known[j][1]),
        }  # fmt: skip
        known.append(made.get(op, known[i]))
    return list(known[: len(shapes)]), tuple(ops)


RUN: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda x, _: jax.nn.relu(x),
    "transpose": lambda x, _: x.T,
    "reduce": lambda x, _: jnp.sum(x, 0, keepdims=True),
    "add": jnp.add,
    "matmul": jnp.matmul,
}


@settings(max_examples=40)
@given(programs(), st.sampled_from([2, 4]))
def test_the_solver_agrees_on_drawn_graphs(
    program: tuple[list[tuple[int, int]], Recipe], devices: int
) -> None:
    shapes, ops = program

    def fn(*args: Any) -> Any:
        values = list(args)
        for name, i, j in ops:
            values.append(RUN[name](values[i], values[j]))
        return values[-1]

    problem = problem_of(fn, [floats(*shape) for shape in shapes], (devices,))
    assume(choices(problem) <= FEW)
    agree(problem)
