# pyright: basic
"""Models on which pipelines are searched: losses with shapes of their parameters and batch.

GPTs and a mixture of experts as a scan over layers, and a Wide-ResNet as a chain of unequal blocks;
in mixed precision where `dtype` is a half type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Case = tuple[Callable[..., Any], Any, Any]


def _float(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _tokens(batch: int, sequence: int) -> dict[str, jax.ShapeDtypeStruct]:
    one = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    return {"x": one, "y": one}


def _norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * gain


def _attention(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    sequence = x.shape[1]
    q, k, v = jnp.einsum("bsm,mthd->tbshd", _norm(x, p["g1"]), p["qkv"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones((sequence, sequence), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(x.dtype)
    return x + jnp.einsum("bhqk,bkhd,hdm->bqm", shares, v, p["o"])


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
    return losses.mean()


def gpt(
    layers: int, width: int, vocabulary: int, sequence: int, batch: int, dtype: str = "float16"
) -> Case:
    """A decoder of equal layers with 16 heads."""
    heads, n = 16, layers
    stack = {
        "qkv": _float(n, width, 3, heads, width // heads),
        "o": _float(n, heads, width // heads, width), "up": _float(n, width, 4 * width),
        "down": _float(n, 4 * width, width), "g1": _float(n, width), "g2": _float(n, width),
    }  # fmt: skip
    ends = {"embed": _float(vocabulary, width), "head": _float(width, vocabulary)}

    def loss(params: Any, batch: Any) -> jax.Array:
        params = jax.tree.map(lambda a: a.astype(dtype), params)

        def block(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
            x = _attention(x, p)
            return x + jax.nn.gelu(_norm(x, p["g2"]) @ p["up"]) @ p["down"], None

        x, _ = jax.lax.scan(block, params["embed"][batch["x"]], params["layers"])
        return _cross_entropy(x @ params["head"], batch["y"])

    return loss, {"layers": stack, **ends}, _tokens(batch, sequence)


def moe(layers: int = 16, width: int = 1024, experts: int = 16, batch: int = 256) -> Case:
    """A decoder with one of 16 experts for each token, chosen by one-hot products."""
    n, heads, inner, sequence, dtype = layers, 16, 4 * width, 1024, "float16"
    stack = {
        "qkv": _float(n, width, 3, heads, width // heads),
        "o": _float(n, heads, width // heads, width), "g1": _float(n, width),
        "g2": _float(n, width), "router": _float(n, width, experts),
        "up": _float(n, experts, width, inner), "down": _float(n, experts, inner, width),
    }  # fmt: skip
    ends = {"embed": _float(32000, width), "head": _float(width, 32000)}
    capacity = 2 * sequence // experts

    def loss(params: Any, batch: Any) -> jax.Array:
        params = jax.tree.map(lambda a: a.astype(dtype), params)

        def block(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
            x = _attention(x, p)
            y = _norm(x, p["g2"])
            logits = (y @ p["router"]).astype(jnp.float32)
            chosen = jax.nn.one_hot(jnp.argmax(logits, -1), experts)
            place = ((jnp.cumsum(chosen, 1) - 1) * chosen).sum(-1).astype(int)
            sent = chosen[..., None] * jax.nn.one_hot(place, capacity)[:, :, None, :]
            sent = sent.astype(x.dtype)
            gate = (jax.nn.softmax(logits) * chosen).sum(-1).astype(x.dtype)
            t = jnp.einsum("bsec,bsm->ebcm", sent, y)
            t = jax.nn.gelu(jnp.einsum("ebcm,emf->ebcf", t, p["up"]))
            t = jnp.einsum("ebcf,efm->ebcm", t, p["down"])
            return x + jnp.einsum("bsec,ebcm->bsm", sent, t) * gate[..., None], None

        x, _ = jax.lax.scan(block, params["embed"][batch["x"]], params["layers"])
        return _cross_entropy(x @ params["head"], batch["y"])

    return loss, {"layers": stack, **ends}, _tokens(batch, sequence)


def wide_resnet(channels: int = 320, batch: int = 512, size: int = 224) -> Case:
    """A residual network of 3, 4, 6 and 3 blocks, each group with twice the channels."""
    params: list[Any] = [_float(7, 7, 3, channels)]
    strides: list[int] = []
    before = channels
    for group, count in enumerate((3, 4, 6, 3)):
        now = channels * 2**group
        for block in range(count):
            one = {"a": _float(3, 3, before, now), "b": _float(3, 3, now, now),
                   "ga": _float(now), "gb": _float(now)}  # fmt: skip
            if before != now:
                one["skip"] = _float(1, 1, before, now)
            params.append(one)
            strides.append(2 if block == 0 and group else 1)
            before = now
    params.append(_float(before, 1000))
    images = {"x": _float(batch, size, size, 3), "y": jax.ShapeDtypeStruct((batch,), jnp.int32)}

    def conv(x: jax.Array, w: jax.Array, stride: int) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
        x = x - x.mean((1, 2), keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean((1, 2), keepdims=True) + 1e-5) * gain

    def loss(params: Any, batch: Any) -> jax.Array:
        x = conv(batch["x"], params[0], 2)
        window = (1, 3, 3, 1), (1, 2, 2, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *window, "SAME")
        for stride, p in zip(strides, params[1:-1], strict=True):
            y = jax.nn.relu(norm(conv(x, p["a"], stride), p["ga"]))
            y = norm(conv(y, p["b"], 1), p["gb"])
            x = jax.nn.relu(y + (conv(x, p["skip"], stride) if "skip" in p else x))
        return _cross_entropy(x.mean((1, 2)) @ params[-1], batch["y"])

    return loss, params, images
