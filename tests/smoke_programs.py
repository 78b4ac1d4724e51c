# pyright: basic
"""Small programs that together hold what versions of JAX write in different words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 16)).astype(np.float32)
W = (RNG.normal(size=(3, 16, 16)) / 4).astype(np.float32)


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return x * 2.0


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 3.0 * tangents[0]))


@jax.custom_vjp
def halved(x: Any) -> Any:
    return x / 2.0


halved.defvjp(lambda x: (halved(x), x), lambda x, ct: (ct * jnp.cos(x),))


def stacked(w: Any, x: Any) -> Any:
    """A scan over checkpointed layers, with a constant, a carry and stacked results."""
    keep = jax.checkpoint_policies.dots_saveable

    def layer(c: Any, row: Any) -> Any:
        return lax.max(lax.dot(c, row), c) + x, lax.reduce_max(c, (1,))

    after, ys = lax.scan(jax.checkpoint(layer, policy=keep), x, w, reverse=True)
    return after, ys


def looped(x: Any) -> Any:
    """While, counted loops, branches and a batched loop."""

    def test(c: Any) -> Any:
        return (c[0] < 3) & (c[1][0, 0] < 9.0)

    _, y = lax.while_loop(test, lambda c: (c[0] + 1, c[1] * 1.5 + x), (0, x))
    y = lax.fori_loop(0, 3, lambda i, c: c + i * x, y)
    y = lax.cond(x[0, 0] > 0, lambda a: a * x, lambda a: a - x, y)
    rows = jax.vmap(lambda r: lax.while_loop(lambda c: c.sum() < 4.0, lambda c: c + 1.0, r))(x)
    return y, rows


def picked(x: Any, i: Any) -> Any:
    """Lookups, updates, orders, sums, keys and bits."""
    best, where = lax.top_k(x, 3)
    drawn = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), 7), 0.5, x.shape)
    taken = x.at[i].set(2.0)[::-1].at[:, where[0]].add(1.0)
    return best, lax.cumsum(taken, 1), lax.sort(x, dimension=0), lax.argmax(x, 1, jnp.int32), drawn


def derived(x: Any) -> Any:
    """Calls with derivatives of their own, and nested jit."""
    return halved(jax.jit(lambda a: doubled(a) + 1.0)(x)).sum()


def trained(w: Any, x: Any) -> Any:
    """A step with the gradient of a scan and of calls with derivatives of their own."""

    def loss(w: Any) -> Any:
        after, ys = stacked(w, x)
        return derived(after) + (after**2).mean() + ys.sum()

    value, slope = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * slope


INDICES = np.array([1, 6, 9, -3], np.int32)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "derived": (derived, (X,)),
    "looped": (looped, (X,)),
    "picked": (picked, (X, INDICES)),
    "stacked": (stacked, (W, X)),
    "trained": (trained, (W, X)),
}
