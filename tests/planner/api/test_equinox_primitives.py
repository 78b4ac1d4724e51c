# pyright: basic
"""Primitives of Equinox and Lineax in a plan: seen through, none of them whole on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner import plan
from tests.planner.programs import array, slow_machine

eqxi: Any = pytest.importorskip("equinox.internal", reason="needs Equinox")
X = array(16, 8)


def checks(x: Any) -> Any:
    x = eqxi.nontraceable(eqxi.nonbatchable(jnp.sin(x)))
    chosen = eqxi.unvmap_any(x > 0.5) & eqxi.unvmap_all(x < 9)
    return jnp.where(chosen, x * eqxi.unvmap_max(jnp.arange(3)), x)


def loop(**settings: Any) -> Callable[..., Any]:
    """A loop that writes a row of a buffer in each of four iterations."""

    def body(carry: Any) -> Any:
        i, x, rows = carry
        return i + 1, jnp.sin(x), rows.at[i].set(x.sum(0))

    def fn(x: Any) -> Any:
        start = 0, x, jnp.zeros((4, x.shape[-1]))
        _, last, rows = eqxi.while_loop(
            lambda c: c[0] < 4, body, start, max_steps=4, buffers=lambda c: c[2], **settings
        )
        return last.sum() + jnp.square(rows).sum()

    return fn


def solved(x: Any) -> Any:
    """By a linear operator that is a function, as in implicit layers."""
    lineax: Any = pytest.importorskip("lineax", reason="needs Lineax")

    def product(v: Any) -> Any:
        return 3.0 * v + jnp.tanh(x) * v.sum(0)

    operator = lineax.FunctionLinearOperator(product, jax.eval_shape(lambda: x))
    return lineax.linear_solve(operator, x, lineax.LU(), throw=False).value


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "checks": (checks, X),
    "lax": (loop(kind="lax"), X),
    "batched": (jax.vmap(loop(kind="lax")), X[:, None]),
    "bounded": (jax.grad(loop(kind="bounded", base=2)), X),
    "solved": (solved, array(4, 8)),
    "checkpointed": (jax.grad(loop(kind="checkpointed")), X),
}


@pytest.mark.parametrize("name", CASES)
def test_it_runs_as_under_jit_and_nothing_is_whole(name: str) -> None:
    fn, x = CASES[name]
    found = plan(fn, x, cluster=slow_machine(8), baselines=False)
    np.testing.assert_allclose(found.compile()(x), jax.jit(fn)(x), rtol=1e-4, atol=1e-5)
    assert not [text for text in found.file.whole.warnings if "whole on every device" in text]
