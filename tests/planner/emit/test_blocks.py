# pyright: basic
"""Grouped products and lookups in blocks with sizes and rows of their own, on eight devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import EXCHANGE, EXCHANGED, GROUPED, NEAR, Mesh, interpret_lowered
from ir.trace import trace
from planner.emit.jit import compile_plan
from tests.helpers_exhaustive import usual
from tests.planner.emit.plans import CUBE, decisions_of, lowered

PAIR = Mesh((("x", 2), ("y", 4)))
BLOCKS, ROWS, GROUPS = 4, 16, 8
LOADS = {
    "balanced": ((2,) * 8,) * BLOCKS,
    "skewed": (
        (1, 0, 9, 0, 0, 4, 2, 0), (0, 0, 0, 0, 0, 0, 15, 1), (2,) * 8, (3,) * 4 + (1,) * 4,
    ),
    "all to one": ((0, 0, 0, 0, 0, 16, 0, 0),) * BLOCKS,
    "rows left over": ((0,) * 8, (1, 0, 3, 0, 0, 0, 2, 4), (16,) + (0,) * 7, (0, 5) * 2 + (0,) * 4),
}  # fmt: skip
SPLITS = (
    (PAIR, ("b", NEAR)), (PAIR, ("b", "m")), (PAIR, (NEAR, "b")), (PAIR, ("", NEAR)),
    (CUBE, ("b", NEAR, "n")), (CUBE, ("m", "b", "g")), (CUBE, ("b", "k", NEAR)),
)  # fmt: skip
OFTEN = SPLITS[:1] + SPLITS[3:5]
BY_ROWS = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), [1], [0])
RNG = np.random.default_rng(3)
TOKENS, WIDTH = 8, 6
LOOKUPS = {
    "an order": np.stack([RNG.permutation(ROWS) % TOKENS for _ in range(BLOCKS)]),
    "skewed": np.minimum(RNG.geometric(0.3, (BLOCKS, ROWS)) - 1, TOKENS - 1),
    "some beyond": RNG.integers(-3, TOKENS + 4, (BLOCKS, ROWS)),
    "all of one": np.full((BLOCKS, ROWS), 5),
}
MOVED = (
    (PAIR, ("i0", EXCHANGE)), (PAIR, (EXCHANGE, "i0")), (PAIR, ("", EXCHANGE)),
    (CUBE, ("i0", EXCHANGE, "w2")),
)  # fmt: skip


def products(x: Any, w: Any, sizes: Any, seed: Any) -> Any:
    out, pull = jax.vjp(lambda x, w: jax.lax.ragged_dot_general(x, w, sizes, BY_ROWS), x, w)
    return out, pull(seed)


def each_block(x: Any, w: Any, sizes: Any, seed: Any) -> Any:
    """The same, block by block in products without blocks."""
    out, pull = jax.vjp(
        lambda x, w: jnp.stack([jax.lax.ragged_dot(x[b], w, sizes[b]) for b in range(BLOCKS)]), x, w
    )
    return out, pull(seed)


@pytest.mark.parametrize(
    ("mesh", "roles"),
    [pytest.param(*one, marks=[pytest.mark.exhaustive] * (one not in OFTEN)) for one in SPLITS],
    ids=["-".join(r) for _, r in SPLITS],
)
@pytest.mark.parametrize("dtype", usual([np.float32, jnp.bfloat16], [np.float32]))
def test_products_and_gradients(mesh: Mesh, roles: tuple[str, ...], dtype: Any) -> None:
    rng = np.random.default_rng(1)
    shapes = ((BLOCKS, ROWS, 16), (GROUPS, 16, 8), (BLOCKS, ROWS, 8))
    x, w, seed = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    sizes = [np.array(load, np.int32) for load in LOADS.values()]
    traced = trace(products, x, w, sizes[0], seed)
    given = lowered(traced, decisions_of((GROUPED,), traced, mesh, roles))
    plan, alone = compile_plan(traced, given), jax.jit(each_block)
    tolerance = 1e-5 if dtype == np.float32 else 4e-2
    for each in sizes:
        args = x, w, each, seed
        expected = [np.asarray(y, np.float32) for y in jax.tree.leaves(alone(*args))]
        found = [np.asarray(y, np.float32) for y in jax.tree.leaves(plan(*args))]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, tolerance, 3 * tolerance, err_msg=str(each))
        if dtype == np.float32:
            consts = [np.asarray(c) for c in traced.program.consts]
            meant = interpret_lowered(given, [*consts, *map(np.asarray, args)])
            for a, b in zip(meant, expected, strict=True):
                np.testing.assert_allclose(a, b, 1e-4, 1e-4)


def moved(mode: str) -> Any:
    def run(table: Any, index: Any, rows: Any) -> Any:
        return jax.vmap(one)(table, index, rows)

    def one(table: Any, index: Any, rows: Any) -> Any:
        found = table.at[index].get(mode=mode, wrap_negative_indices=False)
        return found, table.at[index].add(rows, mode=mode, wrap_negative_indices=False)

    return run


@pytest.mark.parametrize("mode", usual(["fill", "clip"], ["fill"]))
@pytest.mark.parametrize(("mesh", "roles"), MOVED, ids=["-".join(r) for _, r in MOVED])
def test_lookups_and_additions(mesh: Mesh, roles: tuple[str, ...], mode: str) -> None:
    rng = np.random.default_rng(2)
    shapes = ((BLOCKS, TOKENS, WIDTH), (BLOCKS, ROWS, WIDTH))
    table, rows = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    run, first = moved(mode), (table, LOOKUPS["an order"].astype(np.int32), rows)
    traced = trace(run, *first)
    adds = tuple({"i0": "b0"}.get(role, role) for role in roles)
    looked_up, added = (
        decisions_of((op,), traced, mesh, r) for op, r in zip(EXCHANGED, (roles, adds), strict=True)
    )
    split = {place: r for place, r in added.ops.items() if any(r)}
    given = lowered(traced, replace(looked_up, ops={**looked_up.ops, **split}))
    plan, alone = compile_plan(traced, given), jax.jit(run)
    for name, index in LOOKUPS.items():
        args = table, index.astype(np.int32), rows
        expected, found = (jax.tree.map(np.asarray, f(*args)) for f in (alone, plan))
        np.testing.assert_array_equal(found[0], expected[0], name)
        np.testing.assert_allclose(found[1], expected[1], 1e-5, 1e-5, err_msg=name)
    if mode == "fill":
        meant = interpret_lowered(given, [*map(np.asarray, traced.program.consts), *args])
        for a, b in zip(meant, expected, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)
