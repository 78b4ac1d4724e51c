# pyright: basic
"""Programs that rewrites pay for, and one that they do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp

S = jax.ShapeDtypeStruct


def linear_attention(params, batch):
    """Attention without a softmax, as it is often written: the scores first."""
    q, k, v = (jnp.einsum("bsd,de->bse", batch["x"], params[name]) for name in "qkv")
    scores = jnp.einsum("bse,bte->bst", q, k)
    y = jnp.einsum("bst,bte->bse", scores, v)
    return jnp.mean((y - batch["y"]) ** 2)


ATTENTION = (
    {name: S((32, 32), jnp.float32) for name in "qkv"},
    {name: S((8, 512, 32), jnp.float32) for name in "xy"},
)


def attention_twice(params, batch):
    """Two layers of such attention, written out."""
    x = batch["x"]
    for layer in params:
        q, k, v = (jnp.einsum("bsd,de->bse", x, layer[name]) for name in "qkv")
        scores = jnp.einsum("bse,bte->bst", q, k)
        x = x + jnp.tanh(jnp.einsum("bst,bte->bse", scores, v))
    return jnp.mean((x - batch["y"]) ** 2)


def added(w, u, v, x):
    """A weight with a low-rank correction that is added before it is used."""
    return x @ (w + u @ v)


def apart(w, u, v, x):
    """The same with the correction kept apart."""
    return x @ w + (x @ u) @ v


def low_rank(width: int, rank: int, rows: int):
    return (
        S((width, width), jnp.float32), S((width, rank), jnp.float32),
        S((rank, width), jnp.float32), S((rows, width), jnp.float32),
    )  # fmt: skip


def cells(params, xs, steps: int = 6):
    """A recurrent cell with four gates of their own weights, scanned over time."""

    def cell(carry, x):
        h, c = carry
        i, f, g, o = (x @ w + h @ u for w, u in params)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros(xs.shape[1:], xs.dtype)
    (h, _), _ = jax.lax.scan(cell, (zeros, zeros), xs)
    return jnp.sum(h * h)


CELLS = (
    [(S((64, 64), jnp.float32), S((64, 64), jnp.float32)) for _ in range(4)],
    S((6, 8, 64), jnp.float32),
)


def numbers(tree, seed: int = 0):
    """Small random arrays of the given shapes."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    arrays = [
        0.1 * jax.random.normal(k, s.shape, s.dtype) for k, s in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)
