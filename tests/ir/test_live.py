# pyright: basic
"""Which arguments results depend on, against derivatives and against changed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import live_inputs
from ir.trace import trace


def swapped(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Only a and, by way of b, c reach the result; d goes round alone."""

    def body(carry: Any, x: Any) -> Any:
        p, q, r, s = carry
        return (p + q, r * x, r, s * 2.0), s

    return lax.scan(body, (a, b, c, d), jnp.arange(3.0))[0][0]


def slices(a: Any, b: Any, c: Any, d: Any) -> Any:
    return lax.scan(lambda carry, x: (carry + x[0], d * x[1]), 0.0, (a[None], b[None]))[0] + 0 * c


def branch(a: Any, b: Any, c: Any, d: Any) -> Any:
    return lax.cond(a > 0, lambda b, c, d: b, lambda b, c, d: d, b, c, d)


def again(a: Any, b: Any, c: Any, d: Any) -> Any:
    return jax.checkpoint(lambda a, b, c: (a * b, c))(a, b, c)[0]


def whiled(a: Any, b: Any, c: Any, d: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * b), (0, a))[1]


@pytest.mark.parametrize(
    ("fn", "live"), [(swapped, "abc"), (slices, "ac"), (branch, "abd"), (again, "ab"),
                     (whiled, "ab"), (lambda a, b, c, d: (b, 2.0), "b")],
)  # fmt: skip
def test_what_is_not_live_changes_nothing(fn: Callable[..., Any], live: str) -> None:
    args = [jnp.float32(k) for k in (1.0, 2.0, 3.0, 4.0)]
    found = live_inputs(trace(fn, *args).graph)
    assert {"abcd"[v] for v in found} == set(live)
    want = jax.tree.leaves(fn(*args))
    for v in set(range(4)) - found:
        others = [*args[:v], jnp.float32(-7.0), *args[v + 1 :]]
        np.testing.assert_array_equal(want, jax.tree.leaves(fn(*others)))


def test_effects_keep_what_they_read() -> None:
    def fn(a: Any, b: Any) -> Any:
        jax.debug.print("{}", b)
        return a

    assert live_inputs(trace(fn, 1.0, 2.0).graph) == {0, 1}
