# pyright: basic
"""Transformers of Alpa's tests, written anew: BERT with and without a head, a layer of experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.oracles.helpers import Step
from tests.oracles.models import (
    dense,
    dense_params,
    dropout,
    floats,
    ints,
    key,
    norm,
    norm_params,
    squared,
    training,
)

# --- 4.2: encoders -----------------------------------------------------------------------------


def attention_params(width: int) -> Any:
    return {"qkv": dense_params(width, 3 * width), "out": dense_params(width, width)}


def attention(x: Any, p: Any, heads: int, mask: Any, drop: Callable[[Any], Any]) -> Any:
    batch, seq, width = x.shape
    # Each head has its own columns of the kernel, as in Alpa's model.
    qkv = dense(x, p["qkv"]).reshape(batch, seq, heads, 3, width // heads)
    q, k, v = (qkv[:, :, :, i] for i in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    scores = jnp.where(mask[:, None, None, :] > 0, scores, -1e10)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", drop(jax.nn.softmax(scores)), v)
    return dense(mixed.reshape(batch, seq, width), p["out"])


def encoder_params(width: int) -> Any:
    return {
        "attention": attention_params(width), "norm1": norm_params(width),
        "up": dense_params(width, 4 * width), "down": dense_params(4 * width, width),
        "norm2": norm_params(width),
    }  # fmt: skip


def encoder(x: Any, p: Any, heads: int, mask: Any, rng: Any) -> Any:
    """A layer of BERT: normalised after each half, dropout in three places."""
    first, second, third = jax.random.split(rng, 3)
    mixed = attention(x, p["attention"], heads, mask, lambda s: dropout(s, first))
    x = norm(x + dropout(mixed, second), p["norm1"])
    up = jax.nn.gelu(dense(x, p["up"]))
    return norm(x + dropout(dense(up, p["down"]), third), p["norm2"])


def bert(layers: int, batch: int, seq: int, width: int, heads: int, *, remat: bool = False) -> Step:
    """Encoder layers on given hidden states."""
    layer = jax.checkpoint(encoder, static_argnums=2) if remat else encoder

    def apply(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for p, rng in zip(params, jax.random.split(batch["key"], layers), strict=True):
            x = layer(x, p, heads, batch["mask"], rng)
        return x

    inputs = {
        "x": floats(batch, seq, width), "y": floats(batch, seq, width), "mask": ints(batch, seq),
        "key": key(),
    }  # fmt: skip
    return training(squared(apply), [encoder_params(width) for _ in range(layers)], inputs)


def cross_entropy(logits: Any, labels: Any) -> Any:
    picked = jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)
    return -jnp.sum(picked, axis=-1)


def tied_embedding(vocab: int, width: int, batch: int, seq: int) -> Step:
    """Look-up and projection by one table."""

    def loss(params: Any, batch: Any) -> Any:
        table = params["embedding"]
        return jnp.sum(cross_entropy(table[batch["x"]] @ table.T, batch["y"]))

    inputs = {"x": ints(batch, seq), "y": ints(batch, seq)}
    return training(loss, {"embedding": floats(vocab, width)}, inputs)


def masked_language(layers: int, batch: int, seq: int, width: int, heads: int, vocab: int) -> Step:
    """BERT with embeddings and a masked-language head on the same table."""

    def loss(params: Any, batch: Any) -> Any:
        rngs = jax.random.split(batch["key"], layers + 1)
        table = params["word"]
        x = table[batch["ids"]] + params["position"][batch["position_ids"]]
        x = dropout(norm(x + params["type"][batch["type_ids"]], params["norm"]), rngs[-1])
        for p, rng in zip(params["layers"], rngs[:-1], strict=True):
            x = encoder(x, p, heads, batch["mask"], rng)
        x = norm(jax.nn.gelu(dense(x, params["transform"])), params["head_norm"])
        logits = x @ table.T + params["head_bias"]
        kept = jnp.where(batch["y"] > 0, 1.0, 0.0)
        return jnp.sum(kept * cross_entropy(logits, batch["y"])) / jnp.sum(kept)

    params = {
        "word": floats(vocab, width), "position": floats(seq, width), "type": floats(2, width),
        "norm": norm_params(width), "layers": [encoder_params(width) for _ in range(layers)],
        "transform": dense_params(width, width), "head_norm": norm_params(width),
        "head_bias": floats(vocab),
    }  # fmt: skip
    names = ("ids", "position_ids", "type_ids", "mask", "y")
    return training(loss, params, {name: ints(batch, seq) for name in names} | {"key": key()})


# --- 4.3: experts ------------------------------------------------------------------------------


def top2(gates: Any, capacity: int) -> Any:
    """Combine weights [group, token, expert, slot] of the two best experts of each token."""
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), -1), experts)
    weights = [jnp.sum(gates * m, -1) for m in (first, second)]
    before = jnp.cumsum(first, -2) - first
    after = jnp.cumsum(second, -2) - second + jnp.sum(first, -2, keepdims=True)
    total: Any = 0.0
    for chosen, queue, weight in zip((first, second), (before, after), weights, strict=True):
        kept = chosen * (queue < capacity)
        slot = jnp.sum(queue * kept, -1).astype(jnp.int32)
        share = weight * jnp.sum(kept, -1) / (weights[0] + weights[1])
        placed = jax.nn.one_hot(slot, capacity)
        total = total + jnp.einsum("gse,gsc->gsec", share[..., None] * kept, placed)
    return total


def moe_layer(batch: int, seq: int, width: int, heads: int, group: int, experts: int) -> Step:
    """Attention and a routed perceptron with residuals."""

    def apply(params: Any, batch: Any) -> Any:
        x = batch["x"]
        mixed = attention(x, params["attention"], heads, batch["mask"], lambda s: s)
        x = norm(x + mixed, params["norm1"])
        tokens = x.reshape(-1, group, width)
        gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", tokens, params["gate"]))
        combine = top2(gates, 2 * group // experts)
        sent = jnp.einsum("gsec,gsm->egcm", jnp.where(combine > 0, 1.0, 0.0), tokens)
        hidden = jax.nn.relu(jnp.einsum("egcm,emh->egch", sent, params["up"]))
        back = jnp.einsum("egch,ehm->gecm", hidden, params["down"])
        out = jnp.einsum("gsec,gecm->gsm", combine, back).reshape(x.shape)
        return norm(out + x, params["norm2"])

    params = {
        "attention": attention_params(width), "norm1": norm_params(width),
        "gate": floats(width, experts), "up": floats(experts, width, 4 * width),
        "down": floats(experts, 4 * width, width), "norm2": norm_params(width),
    }  # fmt: skip
    shape = (batch, seq, width)
    return training(
        squared(apply), params, {"x": floats(*shape), "y": floats(*shape), "mask": ints(batch, seq)}
    )
