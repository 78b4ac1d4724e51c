# pyright: basic
"""Rows that devices exchange, on eight devices, however often each row is looked up."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.experts_model import small
from costmodel.exchanged_rows import KERNELS
from ir import EXCHANGE, EXCHANGED, NEAR, Mesh, Sharding, interpret_lowered, replicated
from ir.analysis.decisions import Decisions
from ir.trace import Traced, trace
from planner.emit.compilers import compile_for_mesh, devices_for, has_plugin
from planner.emit.hlo import count_collectives
from planner.emit.jit import compile_plan
from planner.emit.scheduled.instructions import HloProgram
from planner.emit.scheduled.kernels import FREE
from tests.helpers_exhaustive import usual
from tests.planner.api.test_experts import LOADS, with_gradients
from tests.planner.api.test_experts import arguments as experts
from tests.planner.emit.plans import CUBE, LINE, decisions_by, decisions_of, lowered

PAIR = Mesh((("x", 2), ("y", 4)))
TOKENS, ROWS = 16, 48
RNG = np.random.default_rng(5)
LOOKUPS = {
    "an order": RNG.permutation(ROWS) % TOKENS,
    "in place": np.arange(ROWS) * TOKENS // ROWS,
    "all of one": np.full(ROWS, 5),
    "skewed": np.minimum(RNG.geometric(0.3, ROWS) - 1, TOKENS - 1),
    "some beyond": RNG.integers(-3, TOKENS + 4, ROWS),
    "none there": np.full(ROWS, TOKENS),
}
SPLITS = (
    (LINE, (EXCHANGE,)), (PAIR, (EXCHANGE, EXCHANGE)), (PAIR, ("", EXCHANGE)),
    (PAIR, (EXCHANGE, "w1")), (CUBE, (EXCHANGE, "w1", EXCHANGE)),
)  # fmt: skip


# Over two axes, and over two of three beside a split of the rows themselves.
OFTEN = (SPLITS[1], SPLITS[4])


def split(traced: Traced, mesh: Mesh, roles: tuple[str, ...]) -> Decisions:
    """Decisions that split lookups as the roles say, and nothing else."""
    return decisions_of(EXCHANGED, traced, mesh, roles)


def arguments(lookup: str, dtype: Any = np.float32) -> tuple[Any, ...]:
    """A table, lookups, and rows to be added."""
    rng = np.random.default_rng(2)
    table, rows = (rng.normal(size=(n, 8)).astype(np.float32) for n in (TOKENS, ROWS))
    return jnp.asarray(table, dtype), LOOKUPS[lookup].astype(np.int32), jnp.asarray(rows, dtype)


def both(mode: str) -> Any:
    def run(table: Any, index: Any, rows: Any) -> Any:
        found = table.at[index].get(mode=mode, wrap_negative_indices=False)
        return found, table.at[index].add(rows, mode=mode, wrap_negative_indices=False)

    return run


def check(mesh: Mesh, roles: tuple[str, ...], mode: str, dtype: Any = np.float32) -> None:
    run, first = both(mode), arguments("an order", dtype)
    traced = trace(run, *first)
    given = lowered(traced, split(traced, mesh, roles))
    plan, alone = compile_plan(traced, given), jax.jit(run)
    for lookup in LOOKUPS:
        args = arguments(lookup, dtype)
        expected = [np.asarray(x, np.float32) for x in alone(*args)]
        found = [np.asarray(x, np.float32) for x in plan(*args)]
        np.testing.assert_array_equal(found[0], expected[0], lookup)
        tolerance = 1e-5 if dtype == np.float32 else 0.1
        np.testing.assert_allclose(found[1], expected[1], tolerance, tolerance, err_msg=lookup)
    if dtype == np.float32 and mode == "fill":
        consts = [np.asarray(x) for x in traced.program.consts]
        meant = interpret_lowered(given, [*consts, *map(np.asarray, args)])
        for x, y in zip(meant, expected, strict=True):
            np.testing.assert_allclose(x, y, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("mesh", "roles"),
    [pytest.param(*one, marks=[pytest.mark.exhaustive] * (one not in OFTEN)) for one in SPLITS],
    ids=["-".join(r) for _, r in SPLITS],
)
def test_lookups_and_additions(mesh: Mesh, roles: tuple[str, ...]) -> None:
    check(mesh, roles, "fill")


@pytest.mark.parametrize("dtype", usual([jnp.bfloat16, jnp.float16, jnp.int32], [jnp.bfloat16]))
def test_types(dtype: Any) -> None:
    check(LINE, (EXCHANGE,), "clip", dtype)


def test_compiled_collectives_are_those_that_are_priced() -> None:
    """One round of blocks; later ones are in a loop, which the compiled text tells by a name.

    Numbers of rows are sent once, as both have the same lookups.
    """
    args = arguments("an order")
    traced = trace(both("fill"), *args)
    plan = compile_plan(traced, lowered(traced, split(traced, LINE, (EXCHANGE,))))
    text = plan.lower_as_planned().compile().as_text()
    found = [c for c in count_collectives(text, unknown_trips=50) if c.kind == "all-to-all"]
    written = [w for w in plan.written or () if w.step.kind == "all-to-all"]
    sent = sum(w.count * w.type.nbytes for w in written)
    assert sent == 2 * (ROWS // 8) * (4 + 8 * 4)  # numbers and rows, of both
    blocks = 8 * -(-ROWS // 64)  # of rows of equal numbers for every device
    assert sum(c.count * c.bytes for c in found) == blocks * (4 + 2 * 8 * 4)


@pytest.mark.exhaustive
@pytest.mark.skipif(not has_plugin(), reason="needs XLA's GPU compiler")
@pytest.mark.parametrize("adds", [False, True])
def test_kernels_beside_a_lookup_are_those_of_the_gpu_compiler(adds: bool) -> None:
    """All that the entry runs but the lookup itself, collectives and the loop of later rounds."""

    def run(table: Any, index: Any, rows: Any) -> Any:
        at = table.at[index]
        settings: Any = {"mode": "fill", "wrap_negative_indices": False}
        return at.add(rows, **settings) if adds else at.get(**settings)

    shapes = ((8192, 4096), "bfloat16"), ((16384,), "int32"), ((16384, 4096), "bfloat16")
    traced = trace(run, *(jax.ShapeDtypeStruct(*each) for each in shapes))

    def split_first(state: Sharding) -> bool:
        return not state.dims or state.dims[0] == ("x",)

    def choose(_types: Any, _op: Any, menu: Any) -> Any:
        exchanged = [s for s in menu if s.roles == (EXCHANGE,)]
        first = (s for s in menu if all(map(split_first, (*s.operands, *s.results))))
        return exchanged[0] if exchanged else next(first, menu[0])

    graph = traced.graph
    ranks = [item.type.rank for item in graph.inputs]
    inputs = [Sharding((("x",), *((),) * (rank - 1))) for rank in ranks]
    outputs = [Sharding((("x",), ()))]
    given = decisions_by(graph, LINE, inputs, outputs, choose, lambda raw: raw)
    devices = devices_for("gpu-aot", 8, 8, "h100")
    text = compile_for_mesh(compile_plan(traced, lowered(traced, given), devices=devices)).text
    entry = HloProgram(text, 8).entry.instructions.values()
    sent = ("-start", "-done", "while")
    kernels = [i for i in entry if i.opcode not in FREE and not i.opcode.endswith(sent)]
    assert len(kernels) - 1 == KERNELS


@pytest.mark.exhaustive
def test_experts_that_tokens_are_sent_to() -> None:
    """A layer of the sorted form, rows exchanged and matrices fetched, however tokens choose."""
    model = small("ragged")
    run = with_gradients(model)
    traced = trace(run, *experts(model, "balanced"))
    used: list[str] = []

    def choose(_types: Any, op: Any, menu: Any) -> Any:
        (found,) = [s for s in menu if s.roles[0] in (EXCHANGE, NEAR)] or [menu[0]]
        used.append(found.roles[0])
        return found

    inputs = [replicated(item.type.rank) for item in traced.graph.inputs]
    outputs = [replicated(traced.graph.type_of(o).rank) for o in traced.graph.outputs]
    given = decisions_by(traced.graph, LINE, inputs, outputs, choose, lambda raw: raw)
    plan, alone = compile_plan(traced, lowered(traced, given)), jax.jit(run)
    assert (used.count(EXCHANGE), used.count(NEAR)) == (4, 9)
    for load in LOADS:
        args = experts(model, load)
        for x, y in zip(jax.tree.leaves(plan(*args)), jax.tree.leaves(alone(*args)), strict=True):
            scale = max(1.0, float(np.abs(np.asarray(y)).max()))  # of terms that may cancel
            np.testing.assert_allclose(
                np.asarray(x), np.asarray(y), 2e-4, 2e-4 * scale, err_msg=load
            )
