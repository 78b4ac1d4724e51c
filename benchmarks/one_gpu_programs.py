# pyright: basic
"""Training steps and inference of one GPU, for `benchmarks one-gpu`; nothing is allocated here.

`PROGRAMS[name]()` gives a function, the shapes of its arguments, and the limit below which integer
arguments lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.experts_model import Experts
from benchmarks.published_model import Transformer, adam
from examples import encoder_decoder, gpt, llama, lstm, moe, recommender, unet, vit, wide_resnet

Made = tuple[Callable[..., Any], tuple[Any, ...], int]

# Llama of 1.1 B: sizes of TinyLlama (Zhang et al., arXiv:2401.02385) with attention as a kernel.
LLAMA_1B = Transformer(22, 2048, 32, 4, 5632, gated=True, vocab=32000, seq=4096, wide_weights=True)
GPT2_MEDIUM = Transformer(24, 1024, 16, 16, 4096, gated=False, vocab=50304, seq=1024, bias=True,
                          flash=False, wide_weights=True)  # fmt: skip
# Six layers of Llama 2 7B and of Llama 3 8B, which fill the device with products.
LLAMA_7B = replace(LLAMA_1B, layers=6, hidden=4096, kv_heads=32, ffn=11008)
LLAMA_8B = replace(LLAMA_7B, kv_heads=8, ffn=14336, seq=8192)
DENSE = Transformer(8, 1024, 16, 8, 2048, gated=True, vocab=32000, seq=2048)


def _step(model: Any, sequences: int, vocab: int) -> Made:
    """A training step with AdamW of a model with `parameters`, `batch` and `loss`."""
    optimizer, params = adam(copies=False), model.parameters()

    def train_step(params: Any, state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(model.loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    state = jax.eval_shape(optimizer.init, params)
    return train_step, (params, state, model.batch(sequences)), vocab


def _example(model: Any, limit: int) -> Made:
    fn, args, _ = model.target(jax.eval_shape)
    return fn, args, limit


def _forward(model: Transformer, sequences: int) -> Made:
    """The loss alone."""
    shapes = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.bfloat16), model.parameters())
    return model.loss, (shapes, model.batch(sequences)), model.vocab


def _stencil(side: int, steps: int) -> Made:
    """Steps of the heat equation in three dimensions, periodic, seven points."""

    def advance(field: Any) -> Any:
        def one(field: Any, _: Any) -> Any:
            near = sum(jnp.roll(field, s, axis) for axis in range(3) for s in (-1, 1))
            return field + 0.1 * (near - 6.0 * field), None

        return jax.lax.scan(one, field, None, length=steps)[0]

    return advance, (jax.ShapeDtypeStruct((side,) * 3, jnp.float32),), 1


def _decode(model: Transformer, sequences: int, keys: int) -> Made:
    """One new token of each sequence with a cache of keys and values."""
    m, h, g, n = model.hidden, model.heads, model.kv_heads, model.layers
    d = m // h
    shapes = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.bfloat16), model.parameters())
    cache = jax.ShapeDtypeStruct((2, n, sequences, keys, g, d), jnp.bfloat16)

    def step(params: Any, cache: Any, tokens: Any) -> Any:
        def layer(x: Any, given: Any) -> Any:
            p, kv = given
            y = model.norm(x, p["attn_norm"], None)
            q = jnp.einsum("bm,mhd->bhd", y, p["q"]).reshape(-1, g, h // g, d)
            k, v = (jnp.einsum("bm,mgd->bgd", y, p[w])[:, None] for w in "kv")
            k, v = jnp.concatenate([kv[0], k], 1), jnp.concatenate([kv[1], v], 1)
            scores = jnp.einsum("bgrd,bkgd->bgrk", q, k).astype(jnp.float32) * d**-0.5
            probs = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
            y = jnp.einsum("bgrk,bkgd->bgrd", probs, v).reshape(-1, h, d)
            x = x + jnp.einsum("bhd,hdm->bm", y, p["o"])
            y = model.norm(x, p["mlp_norm"], None)
            return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], (k[:, 0], v[:, 0])

        x, new = jax.lax.scan(
            layer, params["tok"][tokens], (params["layers"], jnp.moveaxis(cache, 1, 0))
        )
        logits = model.norm(x, params["norm"], None) @ params["head"]
        return jnp.argmax(logits, axis=-1), new

    return step, (shapes, cache, jax.ShapeDtypeStruct((sequences,), jnp.int32)), model.vocab


def _experts(form: str, **changes: Any) -> Made:
    dense = replace(DENSE, **changes)
    model = Experts(dense, 64, 16, 2, 0, 2048, form)
    return _step(model, 8, dense.vocab)


PROGRAMS: dict[str, Callable[[], Made]] = {
    "llama-1b": lambda: _step(LLAMA_1B, 4, 32000),
    "llama-1b selective": lambda: _step(replace(LLAMA_1B, recompute="alternate"), 4, 32000),
    "llama-1b full": lambda: _step(replace(LLAMA_1B, recompute="full"), 4, 32000),
    "llama-1b offload": lambda: _step(replace(LLAMA_1B, recompute="offload"), 4, 32000),
    "llama-1b long": lambda: _step(replace(LLAMA_1B, seq=32768, recompute="full"), 1, 32000),
    "llama-7b six layers": lambda: _step(LLAMA_7B, 2, 32000),
    "llama-8b six layers": lambda: _step(LLAMA_8B, 1, 32000),
    "llama-8b full": lambda: _step(replace(LLAMA_8B, recompute="full"), 1, 32000),
    "gpt2-medium": lambda: _step(replace(GPT2_MEDIUM, recompute="selective"), 16, 50304),
    "gpt2-medium kernel": lambda: _step(replace(GPT2_MEDIUM, flash=True), 16, 50304),
    "gpt2-medium float32": lambda: _step(replace(GPT2_MEDIUM, dtype="float32"), 8, 50304),
    "llama-1b forward": lambda: _forward(LLAMA_1B, 8),
    "llama-1b decode": lambda: _decode(LLAMA_1B, 64, 2048),
    "experts slots": lambda: _experts("slots"),
    "experts ragged": lambda: _experts("ragged"),
    "experts onehot": lambda: _experts("onehot", seq=1024),
    "gpt dropout": lambda: _example(
        gpt.GPT(32000, 1024, 1024, 16, 12, 16, "bfloat16", True), 32000),
    "llama written": lambda: _example(
        llama.Llama(32000, 2048, 2048, 16, 8, 5632, 8, 4, "bfloat16"), 32000),
    "moe": lambda: _example(
        moe.MoE(32000, 1024, 1024, 16, 16, 4096, 2048, 4, 16, "bfloat16"), 32000),
    "t5": lambda: _example(
        encoder_decoder.T5(32000, 512, 512, 1024, 16, 4096, 6, 16, "bfloat16"), 32000),
    "vit": lambda: _example(vit.ViT(224, 16, 768, 12, 12, 1000, 128, "bfloat16"), 1000),
    "wide-resnet": lambda: _example(
        wide_resnet.WideResNet(224, (3, 4, 6, 3), 64, 2, 1000, 64, "bfloat16"), 1000),
    "wide-resnet float32": lambda: _example(
        wide_resnet.WideResNet(224, (3, 4, 6, 3), 64, 2, 1000, 32, "float32"), 1000),
    "unet": lambda: _example(unet.UNet(64, 128, (1, 2, 2), 2, 32, 64, "bfloat16"), 1000),
    "lstm": lambda: _example(lstm.LSTM(32000, 64, 1024, 2, 256, "bfloat16"), 32000),
    "dlrm": lambda: _example(
        recommender.DLRM(26, 1_000_000, 64, 13, (512, 256), (1024, 1024, 512, 256), 8192,
                         "bfloat16"), 1_000_000),
    "stencil": lambda: _stencil(512, 20),
}  # fmt: skip
