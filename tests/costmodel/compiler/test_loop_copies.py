# pyright: basic
"""What loops copy: slices into stacks, and carries that are not written in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import ComputeModel, OpWork, op_seconds, parse_cluster
from costmodel.compiler import analyse
from ir import lookup
from ir.analysis import flatten, operand_types
from ir.trace import trace
from planner import plan

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
TRIPS = 4


def looped(body: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], Any]:
    return lambda x: jax.lax.scan(lambda x, _: body(x), x, None, length=TRIPS)


def moved(body: Callable[[Any], tuple[Any, Any]]) -> dict[str, float]:
    """Op -> how often its bytes move in a round beside what it reads and writes."""
    flat = flatten(trace(looped(body), X).graph)
    found = analyse(flat).moved
    return {flat.ops[i].node.op: sum(times for *_, times in rows) for i, rows in found.items()}


def product(x: Any) -> tuple[Any, Any]:
    y = x @ x
    return x + y, y


def alone(x: Any) -> tuple[Any, Any]:
    return x + 1.0, jnp.sin(x)


def read_by_others(x: Any) -> tuple[Any, Any]:
    y = jnp.sin(x)
    return (y @ y) * 0.1 + x, y


def shift(x: Any) -> tuple[Any, Any]:
    return x + jnp.roll(x, 1, 0), None


def reshaped(x: Any) -> tuple[Any, Any]:
    return (x.reshape(-1) * 0.5 + 1.0).reshape(x.shape), None


def layers(x: Any) -> tuple[Any, Any]:
    return x + jnp.tanh(x @ x), None


def written_over(x: Any) -> tuple[Any, Any]:
    row = jax.lax.dynamic_slice(x, (3, 0), (1, 64))
    return jax.lax.dynamic_update_slice(x, jnp.sin(row) + row, (3, 0)), None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (product, {"dot_general": 3.0}),  # zeros, read, written
        (alone, {"sin": 1.0}),  # zeros: the fusion writes in its place
        (read_by_others, {"sin": 2.0}),  # zeros, and written once more
        (layers, {}),  # added up in place
        (written_over, {}),  # one slice of it, in place
        (reshaped, {}),  # the same elements in the same order
    ],
)
def test_what_moves(body: Any, expected: dict[str, float]) -> None:
    assert moved(body) == expected


def test_a_carry_whose_neighbours_are_read_is_copied() -> None:
    assert sum(moved(shift).values()) == 2.0


def test_the_copies_are_in_the_price() -> None:
    settings: dict[str, Any] = {"cluster": "1xh100", "baselines": False, "substitutions": False}
    large = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    kept = plan(looped(lambda x: (jnp.tanh(x @ x), x @ x)), large, **settings)
    left = plan(looped(lambda x: (jnp.tanh(x @ x), None)), large, **settings)
    compute = kept.analysed.builder.cache.compute
    added_s = TRIPS * float(compute.memory_s(3.0 * 4 * large.size))
    assert kept.step_s - left.step_s >= 0.9 * added_s


def test_a_scalar_product_that_a_loop_moves_has_a_price():
    """A product of factors of one element each has one strategy, and no table of ways."""
    one = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    flat = flatten(trace(lambda x: jnp.tensordot(x, x, 2), one).graph)
    (op,) = flat.ops
    record, types = lookup(op.node.op), operand_types(flat, op)
    spec = record.factors(types, op.node.outputs, dict(op.node.attrs))
    work = OpWork(op.node, record, types, spec, (0,), (0,), 1, (("result", 0, 3.0),))
    compute = ComputeModel(parse_cluster("1xv100-16gb"))
    alone = op_seconds(replace(work, moved=()), {}, compute)
    assert np.all(op_seconds(work, {}, compute) > alone)
