# pyright: basic
"""Small programs that meet every way in which an op is emitted; sizes divide by eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def numbers(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, high, shape).astype(np.int32)


def mlp(w1, w2, x):
    loss = lambda w1, w2: jnp.mean((jax.nn.gelu(x @ w1) @ w2) ** 2)  # noqa: E731
    return jax.value_and_grad(loss, (0, 1))(w1, w2)


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)


def dropout(x, key):
    first, second = jax.random.split(key)
    keep = jax.random.bernoulli(first, 0.7, x.shape)
    noise = jax.random.normal(second, x.shape)
    return jnp.where(keep, x / 0.7, 0) + noise, jax.random.fold_in(key, 3), keep.sum()


def random_words(keys):
    draw = jax.vmap(lambda key: jax.random.bits(key, (8, 16), jnp.uint32))
    small = jax.random.bits(keys[0], (16, 8), jnp.uint8)
    return draw(keys), small, keys, jax.random.permutation(keys[1], 16)


def embedding(table, tokens, x):
    def loss(table):
        return jnp.sum(jnp.tanh(table[tokens]) * x)

    return jax.value_and_grad(loss)(table)


def lookup_modes(table, tokens):
    far = tokens - 8  # out of range at both ends
    return (
        table.at[far].get(mode="fill", fill_value=7.0),
        table.at[far].get(mode="clip"),
        jnp.take_along_axis(table[:8], tokens % 8, axis=1),
        table.at[far].get(mode="drop"),
    )


def scatter_modes(table, tokens, rows):
    far = tokens - 8
    return (
        table.at[far].add(rows),
        table.at[far].add(rows, mode="clip"),
        table.at[tokens[:, 0]].set(rows[:, 0], mode="drop"),
        table.at[far].max(rows),
        table.at[far].multiply(rows, mode="clip"),
        jnp.zeros(16, jnp.int32).at[tokens.ravel()].add(1),
    )


def batched_gather(x, index):
    def loss(x):
        picked = jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0]
        return jnp.sum(jnp.sin(picked))

    return jax.value_and_grad(loss)(x)


def convolution(x, kernel):
    def loss(x, kernel):
        y = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )  # fmt: skip
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(jax.nn.relu(y) ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, kernel)


def scan(w, x):
    def loss(w):
        def step(carry, layer):
            x, total = carry
            x = jnp.tanh(x @ layer) + x
            return (x, total + jnp.sum(x)), (jnp.mean(x, 0), x[0])

        (x_last, total), (means, firsts) = lax.scan(step, (x, 0.0), w)
        return jnp.sum(x_last) + total + jnp.sum(means * means) + jnp.sum(firsts), means

    (loss_value, means), gradient = jax.value_and_grad(loss, has_aux=True)(w)
    backwards = lax.scan(lambda c, a: (c + a, c * a), jnp.zeros((8, 8)), w, reverse=True)
    return loss_value, means, gradient, backwards


def remat_scan(w, x):
    def loss(w):
        @jax.checkpoint
        def layer(x, w):
            return jnp.sin(jnp.sin(x @ w) @ w.T), None

        return jnp.sum(lax.scan(layer, x, w)[0] ** 2)

    return jax.value_and_grad(loss)(w)


def remat_policy(w, x):
    keep_dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    def loss(w):
        shift = jnp.arange(8.0) + jnp.ones((8, 8))
        inner = jax.checkpoint(lambda w: jnp.sin(x @ w + shift) + 2.0, policy=keep_dots)
        return jnp.sum(inner(w) * inner(2 * w))

    return jax.value_and_grad(loss)(w)


def while_loop(x, limit):
    def unfinished(state):
        i, _, total = state
        return (i < 4) & (jnp.sum(total) < limit)

    def step(state):
        i, x, total = state
        return i + 1, x * 1.5, total + jnp.sum(x, 0)

    return lax.while_loop(unfinished, step, (0, x, jnp.zeros(x.shape[1])))


def branches(x, y, which):
    first = lax.cond(which > 1, lambda x, y: (x @ y, 1.0), lambda x, y: (x - y, 2.0), x, y)
    second = lax.switch(which, [jnp.sin, jnp.cos, lambda x: x + jnp.arange(8.0)], x)
    return first, second


def sorting(x):
    values, places = lax.top_k(x, 4)
    ordered = jnp.sort(x, axis=0)
    return values, places, ordered, jnp.argmax(x, 1), jnp.cumsum(x, 0), jnp.argsort(x, axis=1)


def reductions(x, n):
    flags = x > 0
    return (
        jnp.max(x, 0), jnp.min(x, 1), jnp.sum(n, 0), jnp.max(n), jnp.any(flags, 0),
        jnp.all(flags, 1), jnp.prod(x, 1), jnp.std(x), jax.nn.logsumexp(x, axis=1),
        jnp.sum(x, dtype=jnp.bfloat16),
    )  # fmt: skip


def layouts(x):
    turned = x.reshape(4, 2, 16).transpose(2, 0, 1).reshape(16, 8)
    padded = jnp.pad(x, ((0, 0), (1, 7)))
    parts = jnp.split(padded, 3, axis=1)
    tiled = jnp.tile(x, (2, 1))
    cut = lax.dynamic_slice(x, (2, 0), (4, 16))
    put = lax.dynamic_update_slice(x, cut, (1, 0))
    stacked = jnp.stack([x, x + 1], 1)
    return turned, padded, parts[1], tiled, put, stacked, x[::-1], x[:, 4:12], cut[None]


def positions(x):
    line = jnp.arange(16.0)
    grid = lax.broadcasted_iota(jnp.int32, (8, 16), 0) * 2 + 1
    eye = jnp.eye(8, 16)
    hot = jax.nn.one_hot(jnp.arange(8) % 4, 16)
    return x * line + grid, eye @ x.T, hot + line, jnp.full((8, 8), 3.0), line[::-1] + x


def constants(x):
    return x + jnp.asarray(TABLE), x * jnp.asarray(TABLE[0]), jax.random.normal(KEY, (8, 16))


TABLE = floats(8, 16)
KEY = jax.random.key(5)


def integers(x, n):
    words = lax.bitcast_convert_type(x, jnp.int32)
    shifted = (words >> 3) & 0xFF
    return shifted.sum(0), n // 3, n % 5, n.astype(jnp.float32) @ x.T, (n > 3).astype(jnp.int8)


def solves(a, b):
    stable = a + 8 * jnp.eye(8)
    lower = jnp.tril(stable)
    solved = lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)
    return solved, jnp.linalg.cholesky(stable @ jnp.swapaxes(stable, -1, -2))


def momentum(params, moments, x):
    def loss(params):
        hidden = jnp.tanh(x @ params["w"] + params["b"])
        return jnp.mean(hidden @ params["w"].T)

    value, gradient = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradient)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value


def _state() -> dict[str, np.ndarray]:
    return {"w": floats(16, 8), "b": floats(8)}


Model = tuple[Callable[..., Any], tuple[Any, ...]]
MODELS: dict[str, Model] = {
    "attention": (attention, tuple(floats(8, 8, 4, 2, seed=n) for n in range(3))),
    "batched_gather": (batched_gather, (floats(8, 4, 16), numbers(16, 8, 4))),
    "branches": (branches, (floats(8, 8), floats(8, 8, seed=1), np.int32(2))),
    "constants": (constants, (floats(8, 16),)),
    "convolution": (convolution, (floats(8, 8, 8, 4), floats(3, 3, 2, 16))),
    "dropout": (dropout, (floats(8, 16), jax.random.key(1))),
    "embedding": (embedding, (floats(16, 8), numbers(16, 8, 4), floats(8, 4, 8))),
    "integers": (integers, (floats(8, 16), numbers(9, 8, 16))),
    "layouts": (layouts, (floats(8, 16),)),
    "lookup_modes": (lookup_modes, (floats(16, 8), numbers(32, 8, 8))),
    "mlp": (mlp, (floats(16, 32), floats(32, 8), floats(8, 16))),
    "momentum": (momentum, (_state(), _state(), floats(8, 16))),
    "positions": (positions, (floats(8, 16),)),
    "random_words": (random_words, (jax.random.split(jax.random.key(2), 8),)),
    "reductions": (reductions, (floats(8, 16), numbers(9, 8, 16))),
    "remat_policy": (remat_policy, (floats(8, 8), floats(8, 8, seed=1))),
    "remat_scan": (remat_scan, (floats(2, 8, 8), floats(8, 8))),
    "scan": (scan, (floats(3, 8, 8) / 3, floats(8, 8))),
    "scatter_modes": (scatter_modes, (floats(16, 8), numbers(32, 8, 4), floats(8, 4, 8))),
    "solves": (solves, (floats(8, 8, 8), floats(8, 8, 8, seed=1))),
    "sorting": (sorting, (floats(8, 16),)),
    "while_loop": (while_loop, (floats(8, 16) ** 2, np.float32(100.0))),
}
