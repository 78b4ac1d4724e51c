# pyright: basic
"""Pads before windows and crops after convolutions are padding of the op, and mean the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import interpret
from ir.trace import trace

X = np.random.default_rng(0).normal(size=(2, 2, 16)).astype("float32")
W = np.random.default_rng(1).normal(size=(2, 2, 3)).astype("float32")
NARROW = ((0, 0), (0, 0), (1, 1))


def conv(x: Any, w: Any, padding: Any = "VALID", step: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (step,), padding)


def pool(x: Any, fill: float, fn: Any, step: int = 2) -> Any:
    return lax.reduce_window(x, np.float32(fill), fn, (1, 1, 3), (1, 1, step), "VALID")


def _slope(fn: Any) -> Any:
    return jax.grad(lambda *args: jnp.sum(fn(*args) ** 2), argnums=(0, 1))


WHOLE = {
    "padded": lambda x, w: conv(jnp.pad(x, NARROW), w),
    "padded, with gradients": _slope(lambda x, w: conv(jnp.pad(x, NARROW), w)),
    "cropped": lambda x, w: conv(x, w, [(2, 2)])[..., 1:17],
    "spread": lambda x, w: conv(lax.pad(x, np.float32(0), [(0, 0, 0)] * 2 + [(2, 1, 1)]), w),
    "sum": jax.grad(lambda x, _: jnp.sum(lax.reduce_window(
        x, np.float32(0), lax.add, (1, 1, 3), (1, 1, 2), "SAME") ** 2), argnums=0),
    "maximum": lambda x, _: pool(jnp.pad(x, NARROW, constant_values=-np.inf), -np.inf, lax.max),
}  # fmt: skip
AS_WRITTEN = {
    "other channels": lambda x, w: conv(jnp.pad(x, ((0, 0), (0, 1), (1, 1)))[:, 1:], w),
    "other numbers": lambda x, w: conv(jnp.pad(x, NARROW, constant_values=1.0), w),
    "zeros of a maximum": lambda x, _: pool(jnp.pad(x, NARROW), -np.inf, lax.max),
    "read twice": lambda x, w: (lambda y: (y, y[..., 1:17]))(conv(x, w, [(2, 2)])),
    "strided": lambda x, w: conv(x, w, [(3, 3)], 2)[..., 1:9],
    "more than padding": lambda x, w: conv(x, w, [(0, 0)])[..., 1:13],
}


def _ops(fn: Any) -> tuple[Any, set[str]]:
    traced = trace(fn, X, W)
    return traced, {node.op for node in traced.graph.nodes}


def _equal(traced: Any, fn: Any) -> None:
    consts = [np.asarray(x) for x in traced.program.consts]
    found = interpret(traced.graph, [*consts, X, W])
    for x, y in zip(found, jax.tree.leaves(fn(X, W)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_one_op_is_left_and_means_the_same(name: str) -> None:
    traced, ops = _ops(WHOLE[name])
    assert "pad" not in ops
    cut = [n for n in traced.graph.nodes if n.op == "slice"
           and n.outputs[0].shape != traced.graph.type_of(n.inputs[0]).shape]  # fmt: skip
    assert not cut
    _equal(traced, WHOLE[name])


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_other_pads_and_crops_stay(name: str) -> None:
    traced, ops = _ops(AS_WRITTEN[name])
    assert ops & {"pad", "slice"}
    _equal(traced, AS_WRITTEN[name])
