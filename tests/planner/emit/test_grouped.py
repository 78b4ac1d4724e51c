# pyright: basic
"""Grouped products on eight devices, in every way to split them, however unequal groups are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import GroupedWork, fetched_of
from ir import GROUPED, NEAR, TILE_STEPS, Mesh, grouped_sizes, interpret_lowered
from ir.analysis.decisions import Decisions
from ir.strategy import strategies
from ir.table import lookup
from ir.trace import Traced, trace
from planner import plan, verify
from planner.emit.compilers import has_plugin
from planner.emit.group_tiles import bounds
from planner.emit.hlo import count_collectives, trips_of
from planner.emit.jit import compile_plan
from planner.emit.row_exchange import block_rows
from tests.planner.emit.plans import CUBE, decisions_of, lowered

PAIR = Mesh((("x", 2), ("y", 4)))
ROWS, GROUPS = 64, 8
LOADS = {
    "balanced": (8,) * 8,
    "skewed": (1, 0, 30, 5, 0, 20, 7, 1),
    "all to one": (0, 0, 0, 0, 0, 64, 0, 0),
    "rows left over": (3, 9, 0, 0, 11, 2, 6, 4),
}
# two axes and three; rows and groups both, so that a device has some rows of some groups
SPLITS = (
    (PAIR, ("m", "g")), (CUBE, ("k", "g", "n")),
    (CUBE, ("near", "n", "near")),
)  # fmt: skip
# the same roles on other axes, or with others; rows near on both axes: `test_many_tiles`
MORE_SPLITS = (
    (PAIR, ("m", "")), (PAIR, ("g", "g")), (PAIR, ("m", "k")), (PAIR, ("near", "near")),
    (PAIR, ("", "m")), (PAIR, ("", "g")), (PAIR, ("g", "m")), (CUBE, ("n", "m", "g")),
    (PAIR, ("", "k")), (PAIR, ("n", "n")), (PAIR, ("", "near")), (PAIR, ("near", "k")),
)  # fmt: skip


# What does not hang on the way; rows that are near are exchanged.
NEAR_OR_BOTH = [("near", "near"), pytest.param(("m", "g"), marks=pytest.mark.exhaustive)]


def arguments(load: str, dtype: Any = np.float32) -> tuple[Any, ...]:
    """Rows, matrices, sizes, and the gradient of the product."""
    rng = np.random.default_rng(1)
    shapes = ((ROWS, 16), (GROUPS, 16, 8), (ROWS, 8))
    x, w, seed = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    sizes = np.array(LOADS[load], np.int32)
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype), sizes, jnp.asarray(seed, dtype)


def with_gradients(x: Any, w: Any, sizes: Any, seed: Any) -> Any:
    out, pull = jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, sizes), x, w)
    return out, pull(seed)


def split(traced: Traced, mesh: Mesh, roles: tuple[str, ...]) -> Decisions:
    """Decisions that split grouped products as the roles say, and nothing else."""
    return decisions_of((GROUPED,), traced, mesh, roles)


def check(mesh: Mesh, roles: tuple[str, ...], each: list[Any], rtol: float = 1e-5) -> None:
    """One compiled plan on each of some arguments, against the program on one device."""
    traced = trace(with_gradients, *each[0])
    given = lowered(traced, split(traced, mesh, roles))
    plan = compile_plan(traced, given)
    alone = jax.jit(with_gradients)
    if each[0][0].dtype == np.float32 and np.isfinite(each[0][0]).all():
        consts = [np.asarray(x) for x in traced.program.consts]
        meant = interpret_lowered(given, [*consts, *map(np.asarray, each[0])])
        for x, y in zip(meant, jax.tree.leaves(alone(*each[0])), strict=True):
            np.testing.assert_allclose(x, y, 1e-4, 1e-4)
    for args in each:
        pairs = zip(jax.tree.leaves(plan(*args)), jax.tree.leaves(alone(*args)), strict=True)
        for found, expected in pairs:
            found, expected = (np.asarray(x, np.float32) for x in (found, expected))
            np.testing.assert_allclose(found, expected, rtol, 1e-5 + rtol, err_msg=f"{args[2]}")


def cases() -> Iterator[Any]:
    for splits, marks in ((SPLITS, ()), (MORE_SPLITS, pytest.mark.exhaustive)):
        for mesh, roles in splits:
            yield pytest.param(mesh, roles, id="-".join(roles), marks=marks)


@pytest.mark.parametrize(("mesh", "roles"), list(cases()))
def test_products_and_gradients(mesh: Mesh, roles: tuple[str, ...]) -> None:
    check(mesh, roles, [arguments(load) for load in LOADS])


@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("roles", NEAR_OR_BOTH)
def test_many_tiles(roles: tuple[str, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 rows, two at once: the loop runs as long as there are tiles with rows."""
    monkeypatch.setattr("ir.ops.grouped._TILES", (4, 4))
    monkeypatch.setattr("planner.emit.group_tiles.TILES_AT_ONCE", 2)
    each = [arguments(load, dtype) for load in LOADS]
    check(PAIR, roles, each, 1e-5 if dtype == jnp.float32 else 4e-2)


def test_the_compiled_text_says_how_many_steps_of_tiles_are_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """XLA does not know where the loop over tiles ends; a reader would assume eight steps."""
    for module in ("planner.emit.group_tiles", "costmodel.grouped"):
        monkeypatch.setattr(f"{module}.TILES_AT_ONCE", 2)
    args = arguments("balanced")
    traced = trace(lambda x, w, sizes: jax.lax.ragged_dot(x, w, sizes), *args[:3])
    plan = compile_plan(traced, lowered(traced, split(traced, PAIR, ("m", ""))))
    text = plan.lower_as_planned().compile().as_text()
    loop_of_tiles = re.compile(rf' while\(.*{TILE_STEPS}[0-9]+/while"')
    (loop,) = (line for line in text.splitlines() if loop_of_tiles.search(line))
    sizes = grouped_sizes(tuple(item.type for item in traced.graph.inputs), _attrs(traced))
    assert sizes is not None
    work = GroupedWork(sizes, "float32", {"m": np.array([2.0])})
    steps = int(np.ceil(work.tiles / work.at_once)[0])
    assert trips_of(loop, 8) == steps > 1


def _attrs(traced: Traced) -> dict[str, Any]:
    (node,) = (node for node in traced.graph.nodes if node.op == GROUPED)
    return dict(node.attrs)


@pytest.mark.parametrize(
    "roles", [("", "near"), pytest.param(("m", ""), marks=pytest.mark.exhaustive)]
)
def test_rows_of_others_do_not_count(roles: tuple[str, ...]) -> None:
    """What is infinite or not a number in one group stays there, also in the gradients."""
    x, w, sizes, seed = arguments("skewed")
    args = x.at[10].set(np.inf), w, sizes, seed.at[40].set(np.nan)
    check(PAIR, roles, [args])
    found = jax.tree.leaves(jax.jit(with_gradients)(*args))
    assert all(0 < int(np.isfinite(x).sum()) < x.size for x in found)


@pytest.mark.parametrize("roles", NEAR_OR_BOTH)
def test_sizes_beyond_the_rows_end_with_them(roles: tuple[str, ...]) -> None:
    x, w, _, seed = arguments("balanced")
    each = [(x, w, np.array(s, np.int32), seed) for s in ((60, 3, 9, 1, 2, 0, 5, 7), (70,) * 8)]
    check(PAIR, roles, each)


def test_a_group_of_a_negative_size_is_empty() -> None:
    first, end = bounds(jnp.array([2, -1, 3]), jnp.int32(0), 8)
    assert [list(range(a, b)) for a, b in zip(first, end, strict=True)] == [[0, 1], [], [1, 2, 3]]
    assert (end >= first).all()


@pytest.mark.parametrize(
    "roles", [("m", "g"), *(pytest.param(r, marks=pytest.mark.exhaustive)
                            for r in (("m", ""), ("near", "near")))]
)  # fmt: skip
def test_matrices_of_other_groups_do_not_count(roles: tuple[str, ...]) -> None:
    """What is not finite in a matrix is so in the rows of its group, whatever a dense product does.

    docs/how-to/limits.md states where XLA's dense product differs.
    """
    x, w, sizes, _ = arguments("rows left over")
    w = w.at[1, 3, 2].set(np.nan).at[5, :, 4].set(np.inf)
    traced = trace(jax.lax.ragged_dot, x, w, sizes)
    found = np.asarray(
        compile_plan(traced, lowered(traced, split(traced, PAIR, roles)))(x, w, sizes)
    )
    expected = np.zeros_like(found)
    start = 0
    for group, size in enumerate(sizes):
        rows = slice(start, start := start + int(size))
        expected[rows] = np.asarray(x[rows] @ w[group])
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    assert np.isnan(found[:, 2]).sum() == sizes[1]
    dense = np.asarray(jax.jit(jax.lax.ragged_dot)(x, w, sizes))
    assert np.isnan(dense[:, 2]).all()
    np.testing.assert_allclose(found[:, [0, 1, 3]], dense[:, [0, 1, 3]], 1e-4, 1e-4)


@pytest.mark.parametrize("roles", [("", ""), ("", "n"), ("g", "g")])
def test_no_rows(roles: tuple[str, ...]) -> None:
    """Rows there are none of; their gradient is zero in every group."""
    _, w, sizes, _ = arguments("balanced")
    args = jnp.ones((0, 16)), w, np.zeros_like(sizes), jnp.ones((0, 8))
    traced = trace(with_gradients, *args)
    out, (rows, matrices) = compile_plan(traced, lowered(traced, split(traced, PAIR, roles)))(*args)
    assert (out.shape, rows.shape) == ((0, 8), (0, 16))
    np.testing.assert_array_equal(matrices, np.zeros(w.shape))


def test_compiled_exchanges_are_those_that_are_priced() -> None:
    """One round, in which this compiler sends a block to every device; loops have later ones.

    Matrices are fetched once: the compiler merges the exchanges of the product and its gradient.
    """
    args = arguments("balanced")
    traced = trace(with_gradients, *args)
    plan = compile_plan(traced, lowered(traced, split(traced, PAIR, ("near", "near"))))
    text = plan.lower_as_planned().compile().as_text()
    found = [c for c in count_collectives(text, unknown_trips=50) if c.kind == "all-to-all"]
    written = [w for w in plan.written or () if w.step.kind == "all-to-all"]
    room = int(fetched_of(GROUPS, np.array(8.0)))
    assert sum(w.count * w.type.nbytes for w in written) == 3 * room * 16 * 8 * 4
    assert sum(c.count * c.bytes for c in found) == 2 * 8 * block_rows(room, 8) * 16 * 8 * 4


def test_forms_with_batches_keep_rows_and_groups_whole() -> None:
    numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (0,))), (1,), (1,))

    def run(x: Any, w: Any, sizes: Any) -> Any:
        return jax.lax.ragged_dot_general(x, w, sizes, numbers)

    shapes = ((2, 8, 4), (2, 2, 4, 6))
    graph = trace(run, *(jnp.ones(s) for s in shapes), jnp.array([3, 5])).graph
    for node in graph.nodes:
        if node.op == GROUPED:
            types = tuple(map(graph.type_of, node.inputs))
            spec = lookup(GROUPED).factors(types, node.outputs, dict(node.attrs))
            roles = {role for s in strategies(spec, Mesh((("x", 2),))) for role in s.roles}
            assert roles == {"", "b0", "k0", "n3"}
            return
    raise AssertionError("no grouped product was traced")


@pytest.mark.exhaustive
@pytest.mark.skipif(not has_plugin(), reason="needs XLA's GPU compiler")
def test_matrices_are_fetched_beside_rows_of_own_groups() -> None:
    """In the schedule of XLA for GPUs, of a product as wide as those of Mixtral over two hosts."""
    shapes = (262144, 4096), (16, 4096, 14336)
    args = (*(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes),
            jax.ShapeDtypeStruct((16,), jnp.int32))  # fmt: skip
    found = plan(
        lambda rows, matrices, sizes: jnp.tanh(jax.lax.ragged_dot(rows, matrices, sizes)), *args,
        cluster="16xh100", mesh={"x": 16}, pins=(("rows", "[x,-]"), ("matrices", "[x,-,-]")),
        baselines=False, substitutions=False,
    )  # fmt: skip
    assert (NEAR,) in found.decisions.ops.values()
    overlap = verify(found, compiler="gpu-aot").overlap
    assert overlap is not None
    fetch = max(overlap.collectives, key=lambda c: c.seconds)
    assert fetch.kind == "ragged-all-to-all"
    assert fetch.beside_s > 0.8 * fetch.seconds
