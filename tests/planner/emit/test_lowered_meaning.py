# pyright: basic
"""Any lowered plan, run on logical devices with NumPy, gives the numbers of its program."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from ir import interpret, interpret_lowered
from ir.interpret import without_meaning
from ir.trace import Traced, trace
from tests.helpers_exhaustive import usual
from tests.planner.emit.models import MODELS
from tests.planner.emit.plans import MESHES, lowered, random_decisions


def constants_of(traced: Traced) -> dict[str, np.ndarray]:
    """Captured arrays, also those of bodies, by the digest of their content."""
    found: dict[str, np.ndarray] = {}

    def collect(program):
        for item, const in zip(program.graph.inputs, program.consts, strict=False):
            found[item.digest] = np.asarray(const)
        for binding in program.bindings:
            for body in binding.bodies:
                collect(body)

    collect(traced.program)
    return found


@pytest.mark.parametrize("seed", usual([0, 1], [0]))
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_random_plan_computes_the_same(name: str, mesh: str, seed: int) -> None:
    function, args = MODELS[name]
    traced = trace(function, *args)
    if any(item.type.dtype.startswith("key") for item in traced.graph.inputs):
        pytest.skip("NumPy has no random keys")
    constants = constants_of(traced)
    if without_meaning(traced.graph, constants):
        pytest.skip(f"NumPy has no {without_meaning(traced.graph, constants)}")
    decisions = random_decisions(traced.graph, MESHES[mesh], seed)
    plan = lowered(traced, decisions)
    consts = [np.asarray(const) for const in traced.program.consts]
    arrays = [*consts, *map(np.asarray, jax.tree.leaves(args))]
    expected = interpret(traced.graph, arrays, constants)
    found = interpret_lowered(plan, arrays, constants)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


def assert_close(x: np.ndarray, y: np.ndarray) -> None:
    """Equal shapes and types, and values up to the rounding of sums in another order."""
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    if x.dtype.kind in "biu":
        np.testing.assert_array_equal(x, y)
        return
    tolerance = 2e-5 if x.dtype.itemsize >= 4 else 1e-2
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    scale = float(np.abs(wide_y[np.isfinite(wide_y)]).max(initial=0.0)) or 1.0
    np.testing.assert_allclose(wide_x, wide_y, tolerance, tolerance * scale)
