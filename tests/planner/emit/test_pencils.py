# pyright: basic
"""Fourier transforms of planes and cubes split along their first dimension, on eight devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import FFT, PENCILS, Mesh, replicated
from ir.trace import trace
from planner import plan
from planner.result.verify.verify import verify
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import decisions_by, lowered

MESH = Mesh((("x", 2), ("y", 4)))

SETTINGS: Any = {"cluster": "8xh100", "mesh": (2, 4), "baselines": False}


def filtered(x: Any) -> Any:
    """Real to complex and back, with a gradient."""

    def energy(x: Any) -> Any:
        y = jnp.fft.rfftn(x)
        return jnp.sum(jnp.fft.irfftn(y * jnp.abs(y), x.shape) ** 2)

    return jax.value_and_grad(energy)(x)


def complex_waves(x: Any) -> Any:
    """Each of a batch; forward and inverse."""
    return jnp.abs(jnp.fft.ifft2(jnp.fft.fft2(x * 1j) * 2.0 + 1.0))


CASES = {
    "plane": (filtered, (16, 12)), "cube": (filtered, (8, 6, 10)),
    "batch": (complex_waves, (2, 16, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shards_give_what_one_device_gives(name: str) -> None:
    """Where all transforms are split, in each of the ways."""
    fn, shape = CASES[name]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    traced = trace(fn, x)
    graph, seen = traced.graph, set[tuple[str, ...]]()
    for number in range(3):

        def choose(_types: Any, op: Any, menu: Any, number: int = number) -> Any:
            ways = [s for s in menu if op.node.op == FFT and PENCILS in s.roles]
            found = ways[number % len(ways)] if ways else menu[0]
            seen.add(found.roles)
            return found

        inputs = [replicated(item.type.rank) for item in graph.inputs]
        outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
        choice = decisions_by(graph, MESH, inputs, outputs, choose, lambda raw: raw)
        report = check_numerics(traced, lowered(traced, choice), (x,))
        assert report.ok, report
    assert len([roles for roles in seen if PENCILS in roles]) == 3


def test_large_planes_are_exchanged_not_gathered() -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), "float32")
    found = plan(lambda x: jnp.abs(jnp.fft.rfft2(x)), x, pins=(("x", "[8,-]"),), **SETTINGS)
    rows = found.file.programs[0].collectives
    assert {row.kind for row in rows} == {"all-to-all"}
    assert sum(row.bytes for row in rows) == 2 * 7 / 8 * 4096 * 2056 * 8 / 8
    report = verify(found, compiler="host")
    assert report.ok, report
