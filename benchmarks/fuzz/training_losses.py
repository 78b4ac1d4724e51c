# pyright: basic
"""Random losses: a small model with noise, and what it makes of the errors of its examples.

Each draw of the table is a function of the same few arguments, so that all of them combine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

Array = Any
CLASSES = 5
WIDTHS = (2, 4, 6)
TABLE = np.linspace(-1.0, 1.0, 8 * 64, dtype=np.float32).reshape(8, 64)  # that losses capture


def arguments(
    draw: np.random.Generator, batch: int, layers: int, widths: tuple[int, ...] = WIDTHS,
    most_tokens: int = 3,
) -> tuple[Any, Any]:  # fmt: skip
    """Parameters and a batch that every loss takes.

    Args:
        draw: random numbers.
        batch: examples.
        layers: number of layers.
        widths: features of a token, one of which is drawn.
        most_tokens: largest number of tokens in an example.
    """
    time, width = int(draw.integers(1, most_tokens + 1)), int(draw.choice(widths))

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return jnp.asarray(draw.standard_normal(shape) * scale, jnp.float32)

    params = {
        "in": normal(width, width, scale=0.7), "out": normal(width, CLASSES, scale=0.7),
        "layers": {"w": normal(layers, width, width, scale=0.5), "b": normal(layers, width)},
        "temperature": jnp.float32(1.3),
    }  # fmt: skip
    mask = draw.integers(0, 2, (batch, time))
    mask[draw.integers(0, batch), 0] = 1
    batch_of = {
        "x": normal(batch, time, width), "mask": jnp.asarray(mask, jnp.float32),
        "y": jnp.asarray(draw.integers(0, CLASSES, (batch, time)), jnp.int32),
        "weight": jnp.asarray(draw.uniform(0.1, 2.0, batch), jnp.float32),
        "key": jax.random.key(int(draw.integers(0, 1000))), "rate": jnp.float32(0.75),
    }  # fmt: skip
    return params, batch_of


# --- noise: (activations [B, T, W], key, batch) -> activations ------------------------------------


def _none(h: Array, key: Array, b: Any) -> Array:
    return h


def _dropout(h: Array, key: Array, b: Any) -> Array:
    return jnp.where(jax.random.bernoulli(key, b["rate"], h.shape), h / b["rate"], 0.0)


def _per_token(h: Array, key: Array, b: Any) -> Array:
    return h * jax.random.bernoulli(key, 0.8, h.shape[:2])[..., None]


def _flattened(h: Array, key: Array, b: Any) -> Array:
    rows = h.reshape(-1, h.shape[-1])
    return (rows * jax.random.bernoulli(key, 0.7, rows.shape)).reshape(h.shape)


def _per_feature(h: Array, key: Array, b: Any) -> Array:
    return h * jax.random.bernoulli(key, 0.7, h.shape[-1:])


def _gaussian(h: Array, key: Array, b: Any) -> Array:
    return h + 0.1 * jax.random.normal(key, h.shape)


def _time_first(h: Array, key: Array, b: Any) -> Array:
    turned = jnp.moveaxis(h, 1, 0)
    return jnp.moveaxis(turned * jax.random.bernoulli(key, 0.7, turned.shape), 0, 1)


def _key_each(h: Array, key: Array, b: Any) -> Array:
    keys = jax.random.split(key, h.shape[0])
    return h * jax.vmap(lambda k: jax.random.bernoulli(k, 0.7, h.shape[1:]))(keys)


def _folded_each(h: Array, key: Array, b: Any) -> Array:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(h.shape[0]))
    return h * jax.vmap(lambda k: jax.random.uniform(k, h.shape[1:]))(keys)


def _sixteen_bits(h: Array, key: Array, b: Any) -> Array:
    return h + 0.1 * jax.random.uniform(key, h.shape, jnp.bfloat16).astype(h.dtype)


def _old_key(h: Array, key: Array, b: Any) -> Array:
    return _dropout(h, jax.random.wrap_key_data(jax.random.key_data(key)), b)


def _gumbel(h: Array, key: Array, b: Any) -> Array:
    picked = jax.random.categorical(key, h)
    return h + jax.nn.one_hot(picked, h.shape[-1])


@jax.custom_vjp
def _masked(h: Array, key: Array) -> Array:
    return h * jax.random.bernoulli(key, 0.7, h.shape)


_masked.defvjp(
    lambda h, key: (_masked(h, key), key),
    lambda key, g: (g * jax.random.bernoulli(key, 0.7, g.shape), None),
)


def _own_derivative(h: Array, key: Array, b: Any) -> Array:
    return _masked(h, key)


def _captured(h: Array, key: Array, b: Any) -> Array:
    return h + TABLE[: h.shape[1], : h.shape[2]] * jax.random.uniform(key, h.shape)


NOISE = {
    "none": _none, "dropout": _dropout, "per token": _per_token, "flattened": _flattened,
    "per feature": _per_feature, "gaussian": _gaussian, "time first": _time_first,
    "key each": _key_each, "folded each": _folded_each, "16 bits": _sixteen_bits,
    "old key": _old_key, "categorical": _gumbel, "own derivative": _own_derivative,
    "captured": _captured,
}  # fmt: skip


# --- bodies: how the layers are written -----------------------------------------------------------

Layer = Callable[[Array, Any, Array], Array]


def _written_out(layer: Layer, h: Array, p: Any, key: Array) -> Array:
    for i in range(p["w"].shape[0]):
        h = layer(h, jax.tree.map(lambda a, i=i: a[i], p), jax.random.fold_in(key, i))
    return h


def _scanned(layer: Layer, h: Array, p: Any, key: Array) -> Array:
    keys = jax.random.split(key, p["w"].shape[0])
    return lax.scan(lambda h, x: (layer(h, *x), None), h, (p, keys))[0]


def _scanned_again(layer: Layer, h: Array, p: Any, key: Array) -> Array:
    return _scanned(jax.checkpoint(layer), h, p, key)


def _again_inside(layer: Layer, h: Array, p: Any, key: Array) -> Array:
    part = jax.checkpoint(layer)
    return _scanned(jax.checkpoint(lambda h, p, key: part(jnp.sin(h), p, key)), h, p, key)


def _again_written_out(layer: Layer, h: Array, p: Any, key: Array) -> Array:
    wave, part = jax.checkpoint(jnp.sin), jax.checkpoint(layer)
    return _written_out(jax.checkpoint(lambda h, p, key: part(wave(h), p, key)), h, p, key)


def _split_as_it_goes(layer: Layer, h: Array, p: Any, key: Array) -> Array:
    def step(carry: Any, x: Any) -> Any:
        h, key = carry
        key, own = jax.random.split(key)
        return (layer(h, x, own), key), None

    return lax.scan(step, (h, key), p)[0][0]


BODIES = {
    "written out": _written_out, "scanned": _scanned, "scanned, again": _scanned_again,
    "again, parts again": _again_inside, "written out, again": _again_written_out,
    "keys carried": _split_as_it_goes,
}  # fmt: skip


# --- reductions: (errors [B, T], batch, logits, parameters) -> loss -------------------------------


def _mean(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return e.mean()


def _sum(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return 0.02 * e.sum()


def _valid(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return (e * b["mask"]).sum() / b["mask"].sum()


def _valid_or_one(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return (e * b["mask"]).sum() / jnp.maximum(b["mask"].sum(), 1)


def _where(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return jnp.mean(e, where=b["mask"] > 0)


def _weighted(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return jnp.average(e.mean(axis=1), weights=b["weight"])


def _shares(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return jnp.sum(b["weight"] / b["weight"].sum() * e.sum(axis=1))


def _counted(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return e.sum() / jnp.ones_like(e).sum()


def _penalised_sum(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return 0.02 * e.sum() + 0.01 * jnp.sum(p["out"] ** 2)


def _penalised_valid(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return _valid(e, b, logits, p) + 0.01 * jnp.sum(p["layers"]["w"] ** 2)


def _two_terms(e: Array, b: Any, logits: Array, p: Any) -> Array:
    z = jax.nn.logsumexp(logits, axis=-1) ** 2
    return _valid(e, b, logits, p) + 1e-2 * z.mean() + 1e-2 * _valid_or_one(z, b, logits, p)


def _root(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return jnp.sqrt(jnp.mean(e**2))


def _learned_weights(e: Array, b: Any, logits: Array, p: Any) -> Array:
    weight = jax.nn.sigmoid(logits[..., 0] * p["temperature"])
    return (e * weight).sum() / weight.sum()


def _stopped_weights(e: Array, b: Any, logits: Array, p: Any) -> Array:
    weight = lax.stop_gradient(jax.nn.sigmoid(logits[..., 0]))
    return (e * weight).sum() / weight.sum()


def _tempered(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return _valid(e, b, logits, p) * jnp.exp(-p["temperature"]) + p["temperature"]


def _by_class(e: Array, b: Any, logits: Array, p: Any) -> Array:
    each = jax.nn.one_hot(b["y"], CLASSES)
    return jnp.sum((e[..., None] * each).sum((0, 1)) / jnp.maximum(each.sum((0, 1)), 1))


def _numbered(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return 0.01 * jnp.sum(e.sum(axis=1) * jnp.arange(e.shape[0]))


def _perplexity(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return jnp.exp(0.1 * _valid(e, b, logits, p))


def _drawn_weights(e: Array, b: Any, logits: Array, p: Any) -> Array:
    kept = jax.random.bernoulli(jax.random.fold_in(b["key"], 7), 0.6, e.shape)
    return jnp.sum(e * kept) / jnp.maximum(kept.sum(), 1)


def _worst(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return e.max()


def _contrast(e: Array, b: Any, logits: Array, p: Any) -> Array:
    flat = logits.reshape(logits.shape[0], -1)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(flat @ flat.T)))


def _normed(e: Array, b: Any, logits: Array, p: Any) -> Array:
    return jnp.mean((e - e.mean()) ** 2 / (e.var() + 1.0))


REDUCTIONS = {
    "mean": _mean, "sum": _sum, "valid": _valid, "valid or one": _valid_or_one, "where": _where,
    "weighted": _weighted, "shares": _shares, "counted": _counted,
    "penalised sum": _penalised_sum, "penalised valid": _penalised_valid,
    "two terms": _two_terms, "root": _root, "learned weights": _learned_weights,
    "stopped weights": _stopped_weights, "tempered": _tempered, "by class": _by_class,
    "numbered": _numbered, "perplexity": _perplexity, "drawn weights": _drawn_weights,
}  # fmt: skip
# No micro-batches give these; refused, never wrong.
WHOLE_ONLY = {"worst": _worst, "contrast": _contrast, "normed": _normed}


# --- errors: (logits [B, T, C], labels [B, T]) -> [B, T] -----------------------------------------


def _entropy(logits: Array, y: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def _one_hot(logits: Array, y: Array) -> Array:
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(y, CLASSES))


def _squares(logits: Array, y: Array) -> Array:
    return jnp.mean((logits - jax.nn.one_hot(y, CLASSES)) ** 2, axis=-1)


ERRORS = {"entropy": _entropy, "one hot": _one_hot, "squares": _squares}


# --- norms: activations [B, T, W] -> activations --------------------------------------------------


def _by_variance(h: Array) -> Array:
    return (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-2)


def _by_deviation(h: Array) -> Array:
    return h / (h.std((1, 2), keepdims=True) + 0.5)


NORMS: dict[str, Callable[[Array], Array]] = {
    "none": lambda h: h, "variance": _by_variance, "deviation": _by_deviation,
}  # fmt: skip


# --- heads: (activations [B, T, W], parameters) -> logits [B, T, C] -------------------------------

HEADS: dict[str, Callable[[Array, Any], Array]] = {
    "own": lambda h, p: h @ p["out"],
    "tied": lambda h, p: (h @ p["in"].T) @ p["out"],
    "tied slice": lambda h, p: h @ p["in"].T[:, :CLASSES] @ p["out"][:CLASSES],
}  # fmt: skip


def random_loss(
    draw: np.random.Generator, has_aux: bool, norm: str = "none", head: str = "own"
) -> tuple[Callable[..., Any], str, bool]:
    """A loss of (parameters, batch), what it is made of, and whether no micro-batches give it.

    Args:
        draw: random numbers.
        has_aux: whether it also returns metrics.
        norm: of each layer's input, one of `NORMS`.
        head: what makes logits, one of `HEADS`.
    """
    noise = str(draw.choice(list(NOISE)))
    body = str(draw.choice(list(BODIES)))
    error = str(draw.choice(list(ERRORS)))
    table = WHOLE_ONLY if draw.random() < 0.05 else REDUCTIONS
    reduction = str(draw.choice(list(table)))

    def layer(h: Array, p: Any, key: Array, b: Any) -> Array:
        return NOISE[noise](h + jnp.tanh(NORMS[norm](h) @ p["w"] + p["b"]), key, b)

    def loss(params: Any, batch: Any) -> Any:
        h = jnp.tanh(batch["x"] @ params["in"])
        h = BODIES[body](
            lambda h, p, key: layer(h, p, key, batch), h, params["layers"], batch["key"]
        )
        logits = HEADS[head](h, params)
        e = ERRORS[error](logits, batch["y"])
        value = table[reduction](e, batch, logits, params)
        if not has_aux:
            return value
        return value, {
            "each": e, "tokens": batch["mask"].sum(), "right": _right(logits, batch),
            "norm": jnp.sum(params["out"] ** 2),
        }  # fmt: skip

    what = f"{reduction} of {error}, layers {body}, noise {noise}, norm {norm}, head {head}"
    return loss, what, table is WHOLE_ONLY


def _right(logits: Array, b: Any) -> Array:
    hit = (logits.argmax(-1) == b["y"]) * b["mask"]
    return hit.sum() / jnp.maximum(b["mask"].sum(), 1)
