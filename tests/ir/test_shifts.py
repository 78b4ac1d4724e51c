# pyright: basic
"""Shifts: read from what `jnp.roll` and padded slices become, and split with borders exchanged."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import interpret
from ir.trace import trace
from planner import plan

FIELD = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")


def sliced_slope(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.concatenate([x[-5:], x])[:-5] * FIELD))(x)


def slope(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.roll(x, 3, 0) * FIELD))(x)


SHIFTS = {
    "roll": (lambda x: jnp.roll(x, 3, 0), (0, 3, True)),
    "long roll": (lambda x: jnp.roll(x, 13, 0), (0, -3, True)),
    "roll back": (lambda x: jnp.roll(x, -1, 1), (1, -1, True)),
    "gradient of a roll": (slope, (0, -3, True)),
    "zeros come in": (lambda x: jnp.pad(x[:-2], ((2, 0), (0, 0))), (0, 2, False)),
    "zeros at the end": (lambda x: jnp.pad(x[2:], ((0, 2), (0, 0))), (0, -2, False)),
    "padded around the end, then sliced": (
        lambda x: jnp.pad(x, ((1, 1), (0, 0)), mode="wrap")[2:],
        (0, -1, True),
    ),
    "far around the end": (
        lambda x: jnp.concatenate([x[-5:], x, x[:3]])[:-8],
        (0, 5, True),
    ),
    "its gradient": (sliced_slope, (0, -5, True)),
    "beside zeros": (
        lambda x: jnp.concatenate([jnp.zeros((2, 8), "float32"), x])[:-2],
        (0, 2, False),
    ),
    "padded with zeros, then sliced": (
        lambda x: jnp.pad(x, ((0, 0), (1, 1)))[:, 2:],
        (1, -1, False),
    ),
    "one pad": (lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, -1, 0))), (1, 1, False)),
}
OTHERS = {
    "ones come in": lambda x: jnp.pad(x[:-2], ((2, 0), (0, 0)), constant_values=1.0),
    "longer": lambda x: jnp.pad(x[:-2], ((3, 0), (0, 0))),
    "other rows": lambda x: jnp.pad(x[1:-1], ((2, 0), (0, 0))),
    "in order": lambda x: jnp.concatenate([x[:5], x[5:]]),
    "around the end, and one element more": lambda x: jnp.pad(x, ((1, 1), (0, 0)), mode="wrap")[1:],
    "in order again": lambda x: jnp.pad(x, ((1, 1), (0, 0)), mode="wrap")[1:-1],
    "twice the start": lambda x: jnp.concatenate([x[:3], x])[:-3],
    "other dimensions": lambda x: jnp.concatenate([x[:, -1:], x], 1)[1:, :-1],
    "of two": lambda x: jnp.concatenate([x[5:], jnp.tanh(x)[:5]]),
    "some left out": lambda x: jnp.concatenate([x[6:], x[:5]]),
}


def found(fn: Any) -> list[tuple[Any, ...]]:
    nodes = trace(fn, FIELD).graph.nodes
    return [(n.attr("axis"), n.attr("by"), n.attr("wraps")) for n in nodes if n.op == "shift"]


@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_is_read(name: str) -> None:
    fn, expected = SHIFTS[name]
    assert found(fn) == [expected]
    program = trace(fn, FIELD).program
    (value,) = interpret(program.graph, [*program.consts, FIELD])
    np.testing.assert_array_equal(value, np.asarray(fn(FIELD)))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_shift_is_left(name: str) -> None:
    assert found(OTHERS[name]) == []


def stencil(x: Any) -> Any:
    """Rounds of a two-dimensional stencil, around the end and with zeros at the border."""

    def rounds(x: Any, _: Any) -> Any:
        near = sum(jnp.roll(x, by, axis) for by in (1, -1) for axis in (0, 1))
        return 0.2 * near + 0.1 * lax.pad(x, 0.0, ((2, -2, 0), (0, 0, 0))), None

    return lax.scan(rounds, x, None, length=4)[0]


@pytest.mark.parametrize("spec", ["[8,-]", "[2,4]", "[-,8]"])
def test_fields_split_in_space_exchange_their_borders(spec: str) -> None:
    field = np.random.default_rng(1).normal(size=(64, 32)).astype("float32")
    split = plan(stencil, field, cluster="8xh100", baselines=False, pins=(("x", spec),))
    np.testing.assert_array_equal(
        np.asarray(jax.jit(stencil)(field)),
        np.asarray(split.bind(stencil, field).compile()(field)),
    )


def fields(state: Any) -> Any:
    return {"x": stencil(state["x"])}


def test_halos_are_chosen_and_send_borders_only() -> None:
    """A device sends one or two rows a shift; gathering fields sends thousands."""
    state = {"x": jax.ShapeDtypeStruct((8192, 8192), "float32")}
    pins = (("state/*", "[8,-]"),)
    found = plan(fields, state, cluster="8xh100", baselines=False, pins=pins, donate_argnums=(0,))
    rows = found.file.programs[0].collectives
    assert {row.kind for row in rows} == {"collective-permute"}
    borders = 4 * (1 + 1 + 2) * 8192 * 4  # rounds, rows, elements, bytes of each
    assert sum(row.bytes for row in rows) == borders
