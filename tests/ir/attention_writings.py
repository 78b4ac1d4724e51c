# pyright: basic
"""Attention as programs write it out, and what looks like it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Array = Any
B, T, H, G, D = 2, 16, 4, 2, 8


def operands(
    *shapes: tuple[int, ...], seed: int = 0, dtype: Any = jnp.bfloat16
) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def nanogpt(q: Array, k: Array, v: Array) -> Array:
    """Heads first, a mask that is cut out of a larger one."""
    mask = jnp.tril(jnp.ones((2 * T, 2 * T))).reshape(1, 1, 2 * T, 2 * T)
    att = (q @ jnp.swapaxes(k, -2, -1)) * (1.0 / math.sqrt(k.shape[-1]))
    att = jnp.where(mask[:, :, :T, :T] == 0, float("-inf"), att)
    return jax.nn.softmax(att, axis=-1) @ v


def rotated(x: Array) -> Array:
    """Rotary positions, in float32."""
    angle = jnp.arange(T)[:, None] / 10000 ** (jnp.arange(0, D, 2) / D)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def llama(q: Array, k: Array, v: Array) -> Array:
    """Rotary positions, grouped heads by repetition, softmax in float32."""
    q, k = rotated(q), rotated(k)
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores = scores / D**0.5 + jnp.where(jnp.tril(jnp.ones((T, T), bool)), 0.0, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def grouped(q: Array, k: Array, v: Array) -> Array:
    """Grouped heads by a dimension of their own, softmax by hand."""
    q = q.reshape(B, T, G, H // G, D) * D**-0.5
    scores = jnp.einsum("btgrd,bsgd->bgrts", q, k).astype(jnp.float32)
    mask = jnp.arange(T)[:, None] >= jnp.arange(T)[None, :]
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    e = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    weights = (e / jnp.sum(e, -1, keepdims=True)).astype(v.dtype)
    return jnp.einsum("bgrts,bsgd->btgrd", weights, v).reshape(B, T, H, D)


def window(q: Array, k: Array, v: Array) -> Array:
    """A sliding window of five keys, in a recomputed body of a loop over two layers."""
    t, s = jnp.arange(T)[:, None], jnp.arange(T)[None, :]
    mask = (s <= t) & (t - s < 5)

    @jax.checkpoint
    def layer(q: Array, _: None) -> tuple[Array, None]:
        scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) * 0.3
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30)).astype(q.dtype)
        return jnp.einsum("bhts,bshd->bthd", weights, v), None

    return jax.lax.scan(layer, q, None, length=2)[0]


def biased(q: Array, k: Array, v: Array, bias: Array) -> Array:
    """A learned bias of each head."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5 + bias
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def relative(q: Array, k: Array, v: Array, table: Array) -> Array:
    """T5's bias: a learned float32 number for each head and bucket of distances."""
    far = jnp.arange(T)[None, :] - jnp.arange(T)[:, None]
    bucket = jnp.where(far > 0, 4, 0) + jnp.minimum(jnp.abs(far), 3)
    bias = jnp.transpose(table[bucket], (2, 0, 1))[None]
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores + bias).astype(q.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def padded(q: Array, k: Array, v: Array, lengths: Array) -> Array:
    """A mask of keys that depends on the batch, added to the scores; the last row has none."""
    seen = jnp.arange(T)[None, :] < lengths[:, None]
    hidden = jnp.where(seen, 0.0, -1e9).astype(q.dtype)[:, None, None, :]
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5 + hidden
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


SLOPES = np.float32(2.0) ** -np.arange(1, H + 1)
FAR = np.arange(T)[None, :] - np.arange(T)[:, None]


def alibi(q: Array, k: Array, v: Array) -> Array:
    """ALiBi: numbers of a thousand and more, computed from positions, under a causal mask."""
    positions = jnp.where(jnp.arange(T) < T // 2, 0, 500) + jnp.arange(T)
    far = positions[None, :] - positions[:, None]
    bias = jnp.asarray(SLOPES)[:, None, None] * far
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) * D**-0.5
    scores = jnp.where(far <= 0, scores + bias, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(v.dtype), v)


def alibi_of_keys(q: Array, k: Array, v: Array) -> Array:
    """ALiBi by positions of keys alone, late ones of a long text: 16 bits round it by up to 8."""
    places = 9000 + jnp.arange(T)
    bias = SLOPES.reshape(G, H // G)[None, :, :, None, None] * places
    scores = jnp.einsum("btgrd,bsgd->bgrts", q.reshape(B, T, G, H // G, D), k).astype(jnp.float32)
    scores = (scores + bias) * 0.3 + jnp.where(FAR <= 0, 0.0, -1e30)
    weights = jax.nn.softmax(scores).astype(v.dtype)
    return jnp.einsum("bgrts,bsgd->btgrd", weights, v).reshape(B, T, H, D)


def alibi_and_mask(q: Array, k: Array, v: Array) -> Array:
    """ALiBi that is kept as an array with -inf where a mask hides keys, taken from the scores."""
    array = np.where(FAR <= 0, -SLOPES[:, None, None] * FAR, np.inf).astype(np.float32)
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores * D**-0.5 - array).astype(v.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def alibi_in_short(q: Array, k: Array, v: Array) -> Array:
    """ALiBi in 16 bits, and a mask whose number they round to more than -1e9."""
    bias = (SLOPES[:, None, None] * jnp.asarray(FAR)).astype(q.dtype)
    scores = (q @ jnp.swapaxes(k, -2, -1)) * D**-0.5 + bias
    return jax.nn.softmax(scores + jnp.where(FAR <= 0, 0, -1e9).astype(q.dtype)) @ v


def alibi_of_lengths(q: Array, k: Array, v: Array, lengths: Array) -> Array:
    """ALiBi beside a mask of the batch, whose last row sees no key."""
    seen = jnp.arange(T)[None, :] < lengths[:, None]
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)
    scores = scores - SLOPES[:, None, None] * np.abs(FAR)
    scores = jnp.where(seen[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(v.dtype), v)


def alibi_of_slopes(q: Array, k: Array, v: Array, slopes: Array) -> Array:
    """ALiBi with learned slopes."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) * D**-0.5
    scores = jnp.where(FAR <= 0, scores + 40 * jnp.square(slopes)[:, None, None] * FAR, -1e30)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(v.dtype), v)


def late(q: Array, k: Array, v: Array) -> Array:
    """The output is divided after the second product, in float32."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) * D**-0.5
    scores = jnp.where(FAR <= 0, scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = jnp.swapaxes(weights.sum(-1), 1, 2)[..., None]
    out = jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v)
    return (out.astype(jnp.float32) / total).astype(v.dtype)


def late_grouped(q: Array, k: Array, v: Array) -> Array:
    """The same with grouped heads, by a product with the reciprocal, in 16 bits and a loop."""

    def layer(q: Array, _: None) -> tuple[Array, None]:
        split = q.reshape(B, T, G, H // G, D) * D**-0.5
        scores = jnp.einsum("btgrd,bsgd->bgrts", split, k)
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        scale = 1 / jnp.sum(weights, -1, keepdims=True)
        out = jnp.einsum("bgrts,bsgd->bgrtd", weights, v) * scale
        return jnp.transpose(out, (0, 3, 1, 2, 4)).reshape(B, T, H, D), None

    return jax.lax.scan(layer, q, None, length=2)[0]


def early_reciprocal(q: Array, k: Array, v: Array) -> Array:
    """Weights by a product with the reciprocal of their sum."""
    weights = jnp.exp((q @ jnp.swapaxes(k, -2, -1)).astype(jnp.float32) / D)
    return (weights * jnp.sum(weights, -1, keepdims=True) ** -1).astype(v.dtype) @ v


def flax(x: Array) -> Array:
    """`flax.nnx.MultiHeadAttention` with a causal mask."""
    model = nnx.MultiHeadAttention(
        H, H * D, decode=False, dtype=x.dtype, param_dtype=x.dtype, rngs=nnx.Rngs(0)
    )
    return model(x, mask=nnx.make_causal_mask(x[..., 0]))


def equinox(x: Array) -> Array:
    """`equinox.nn.MultiheadAttention` with a causal mask, over a batch."""
    model = eqx.nn.MultiheadAttention(H, H * D, dtype=x.dtype, key=jax.random.key(0))
    mask = jnp.tril(jnp.ones((T, T), bool))
    return jax.vmap(lambda row: model(row, row, row, mask=mask))(x)


def haiku(x: Array) -> Array:
    """`haiku.MultiHeadAttention` with a causal mask."""

    def run(x: Array) -> Array:
        init = hk.initializers.VarianceScaling(1.0)
        mask = jnp.tril(jnp.ones((1, 1, T, T)))
        return hk.MultiHeadAttention(H, D, w_init=init, model_size=H * D)(x, x, x, mask)

    model = hk.without_apply_rng(hk.transform(run))
    shapes = jax.eval_shape(model.init, jax.random.key(0), x.astype(jnp.float32))
    params = jax.tree.map(lambda p: jnp.sin(jnp.arange(p.size)).reshape(p.shape), shapes)
    return model.apply(jax.tree.map(lambda p: 0.2 * p.astype(x.dtype), params), x)


FIRST, LENGTH = (B, H, T, D), (B, T, H, D)
FEW = (B, T, G, D)
Case = tuple[Callable[..., Array], tuple[Array, ...], str]
# function, arguments, and what is recognised
WRITINGS: dict[str, Case] = {
    "nanogpt": (nanogpt, operands(FIRST, FIRST, FIRST), "causal, 2 x 4 heads,"),
    "llama": (llama, operands(LENGTH, FEW, FEW), "causal, 2 x 4 heads on 2,"),
    "grouped": (grouped, operands(LENGTH, FEW, FEW), "causal, 2 x 4 heads on 2,"),
    "window": (window, operands(LENGTH, LENGTH, LENGTH), "causal, window 5, 2 x 4 heads,"),
    "bias": (biased, operands(LENGTH, LENGTH, LENGTH, (1, H, T, T)), "bias, 2 x 4 heads,"),
    "relative": (
        relative, (*operands(LENGTH, LENGTH, LENGTH), *operands((8, H), dtype=jnp.float32)),
        "bias, 2 x 4 heads,",
    ),
    "padded": (
        padded, (*operands(LENGTH, LENGTH, LENGTH), jnp.array([9, 0])), "mask, 2 x 4 heads,",
    ),
    "alibi": (alibi, operands(*[LENGTH] * 3), "causal, bias, 2 x 4 heads,"),
    "alibi of keys": (
        alibi_of_keys, operands(LENGTH, FEW, FEW), "causal, bias, 2 x 4 heads on 2,",
    ),
    "alibi and mask": (alibi_and_mask, operands(*[LENGTH] * 3), "causal, bias, 2 x 4 heads,"),
    "alibi in short": (alibi_in_short, operands(*[FIRST] * 3), "causal, bias, 2 x 4 heads,"),
    "alibi of lengths": (
        alibi_of_lengths, (*operands(*[LENGTH] * 3), jnp.array([9, 0])), "mask, bias, 2 x 4",
    ),
    "alibi of slopes": (
        alibi_of_slopes, (*operands(*[LENGTH] * 3), *operands((H,), dtype=jnp.float32)),
        "causal, bias, 2 x 4 heads,",
    ),
    "late": (late, operands(*[LENGTH] * 3), "causal, 2 x 4 heads,"),
    "late grouped": (late_grouped, operands(LENGTH, FEW, FEW), "2 x 4 heads on 2,"),
    "early reciprocal": (early_reciprocal, operands(*[FIRST] * 3), "2 x 4 heads,"),
    "xla": (
        lambda *qkv: jax.nn.dot_product_attention(*qkv, is_causal=True, implementation="xla"),
        operands(LENGTH, FEW, FEW), "causal, 2 x 4 heads on 2,",
    ),
    "no mask": (jax.nn.dot_product_attention, operands(LENGTH, FEW, FEW), "2 x 4 heads on 2,"),
    "float16": (
        grouped, operands(LENGTH, FEW, FEW, dtype=jnp.float16), "causal, 2 x 4 heads on 2,",
    ),
    "flax": (flax, operands((B, T, H * D)), "causal, 2 x 4 heads,"),
    "equinox": (equinox, operands((B, T, H * D)), "causal, 2 x 4 heads,"),
    "haiku": (haiku, operands((B, T, H * D)), "causal, 2 x 4 heads,"),
}  # fmt: skip


def _attend(q: Array, k: Array, v: Array, change: Callable[[Array], Array]) -> Array:
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5
    return jnp.einsum("bhts,bshd->bthd", change(scores), v)


def _changed(change: Callable[[Array], Array]) -> Callable[..., Array]:
    return lambda q, k, v: _attend(q, k, v, change)


def _dropped(scores: Array) -> Array:
    weights = jax.nn.softmax(scores)
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    return jnp.where(kept, weights / 0.9, 0).astype(scores.dtype)


def _shown(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
    return jnp.einsum("bhts,bshd->bthd", weights, v), weights


def _temperature(q: Array, k: Array, v: Array, heat: Array) -> Array:
    return _attend(q, k, v, lambda z: jax.nn.softmax(z * heat))


def _divided(change: Callable[[Array], Array]) -> Callable[..., Array]:
    def run(q: Array, k: Array, v: Array) -> Array:
        weights = jnp.exp(jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5)
        return jnp.einsum("bhts,bshd->bthd", weights, v) / change(weights)

    return run


def _dropped_late(q: Array, k: Array, v: Array) -> Array:
    weights = jnp.exp(jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5)
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    out = jnp.einsum("bhts,bshd->bthd", jnp.where(kept, weights, 0).astype(v.dtype), v)
    return out / jnp.swapaxes(weights.sum(-1), 1, 2)[..., None]


def _weakly_masked(q: Array, k: Array, v: Array, lengths: Array) -> Array:
    """The mask's number does not absorb the bias of a row that sees no key."""
    hidden = jnp.where(jnp.arange(T)[None, :] < lengths[:, None], 0.0, -1e9)[:, None, None]
    bias = SLOPES[:, None, None] * FAR
    return _attend(q, k, v, lambda z: jax.nn.softmax(z + bias + hidden).astype(v.dtype))


def _later(q: Array, k: Array, v: Array) -> Array:
    """Sees the keys after a query, the last one none."""
    mask = jnp.arange(T)[:, None] < jnp.arange(T)[None, :]
    return _attend(q, k, v, lambda z: jax.nn.softmax(jnp.where(mask, z, -1e9)))


_QKV = operands(LENGTH, LENGTH, LENGTH)
_SQUARE = operands(*[(B, T, T, D)] * 3)  # as many heads as queries
# function, arguments, and why it is left as it is; empty where it is no attention at all
LOOK_ALIKES: dict[str, Case] = {
    "dropout": (_changed(_dropped), _QKV, "dropout"),
    "float32": (
        _changed(jax.nn.softmax),
        operands(LENGTH, LENGTH, LENGTH, dtype=jnp.float32), "its operands are float32",
    ),
    "soft cap": (
        _changed(lambda z: jax.nn.softmax(jnp.tanh(z / 9) * 9)), _QKV, "soft cap",
    ),
    "weights returned": (_shown, _QKV, "results of the program"),
    "temperature": (_temperature, (*_QKV, *operands(())), "no constant number"),
    "weak mask": (_weakly_masked, (*_QKV, jnp.array([9, 0])), "adds more than"),
    "late dropout": (_dropped_late, _QKV, "dropout"),
    "late sum of queries": (
        _divided(lambda w: jnp.swapaxes(w.sum(2), 1, 2)[..., None]), _QKV, "",
    ),
    "late sum elsewhere": (_divided(lambda w: w.sum(-1)[..., None]), _SQUARE, ""),
    "late sum of squares": (
        _divided(lambda w: jnp.swapaxes((w * w).sum(-1), 1, 2)[..., None]), _QKV, "",
    ),
    "mask without keys": (_later, _QKV, "without any key"),
    "small mask": (
        _changed(lambda z: jax.nn.softmax(jnp.where(z.shape[0] > z, z, -9.0))),
        _QKV, "fills in more",
    ),
    "odd heads": (
        _changed(jax.nn.softmax), operands(*[(B, T, H, 12)] * 3), "multiple of 8",
    ),
    "over queries": (_changed(lambda z: jax.nn.softmax(z, axis=2)), _QKV, ""),
    "no softmax": (_changed(lambda z: z / z.sum(-1, keepdims=True)), _QKV, ""),
    "linear attention": (
        lambda q, k, v: jnp.einsum(
            "bthd,bhde->bthe", jax.nn.softmax(q), jnp.einsum("bshd,bshe->bhde", k, v)
        ), _QKV, "",
    ),
    "another sum": (
        _changed(lambda z: jnp.exp(z) / jnp.exp(2 * z).sum(-1, keepdims=True)),
        _QKV, "",
    ),
}  # fmt: skip
