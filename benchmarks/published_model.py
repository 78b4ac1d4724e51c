# pyright: basic
"""A decoder-only transformer of any published sizes, as a loss that the planner traces.

Gated models are Llama's kind: RMSNorm, rotary positions, grouped queries, SwiGLU. Others are GPT's:
LayerNorm, learned positions, GELU. Layers are scanned. Norms and activations keep their inputs
only, as fused kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

FP8 = "float8_e4m3fn"
KERNEL: Any = "cudnn"  # implementation of `jax.nn.dot_product_attention`
again = partial(jax.checkpoint, prevent_cse=False)  # keeps the inputs only
fused = partial(again, static_argnums=(0,))  # of a method
policies = jax.checkpoint_policies
ALTERNATE = ("q", "core", "up")  # torchtitan saves every second product


def _products_and_kernels(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in ("dot_general", "dot_product_attention_fwd_wrapper")


SAVED: dict[str, Any] = {
    "alternate": policies.save_only_these_names(*ALTERNATE),
    "full": policies.nothing_saveable,
    "minimal": _products_and_kernels,
    "offload": policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(ALTERNATE),
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes and precision of a model, and what its backward pass recomputes.

    dtype: of activations, and of products unless it is float8, whose activations are bfloat16.
    flash: whether attention is a kernel; else scores reach memory.
    bias: whether products and norms have biases.
    dropout: rate on attention's probabilities and on both branches.
    recompute: none; selective (attention's scores); alternate (all but every second product);
        offload (the same, and these are in the memory of the host); minimal (all but products and
        the kernel of attention, MaxText's `minimal_flash`); full (the layer).
    wide_weights: parameters are float32, as fully sharded training keeps them; else they have the
        type of the activations, and the optimizer's state has a float32 copy.
    wide_gradients: gradients of weights leave their product as float32.
    one_hot: embeddings are a product with rows of zeros and a one, not looked up.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    vocab: int
    seq: int
    dtype: str = "bfloat16"
    flash: bool = True
    bias: bool = False
    dropout: float = 0.0
    recompute: str = "none"
    wide_weights: bool = False
    wide_gradients: bool = False
    one_hot: bool = False

    @property
    def activations(self) -> str:
        """Type of the activations."""
        return "bfloat16" if self.dtype == FP8 else self.dtype

    def parameters(self) -> Any:
        """Shapes of the parameters; those of layers are stacked."""
        m, h, g, f = self.hidden, self.heads, self.kv_heads, self.ffn
        d = m // h
        each = {"q": (m, h, d), "k": (m, g, d), "v": (m, g, d), "o": (h, d, m)}
        each |= {"up": (m, f), "down": (f, m), "attn_norm": (m,), "mlp_norm": (m,)}
        if self.gated:
            each |= {"gate": (m, f)}
        if self.bias:
            each |= {"q_bias": (h, d), "k_bias": (g, d), "v_bias": (g, d), "o_bias": (m,)}
            each |= {"up_bias": (f,), "down_bias": (m,), "attn_shift": (m,), "mlp_shift": (m,)}
        ends = {"tok": (self.vocab, m), "norm": (m,), "head": (m, self.vocab)}
        if not self.gated:
            ends |= {"pos": (self.seq, m)}
        dtype = jnp.float32 if self.wide_weights else self.activations
        stacked = {name: jax.ShapeDtypeStruct((self.layers, *s), dtype) for name, s in each.items()}
        return {name: jax.ShapeDtypeStruct(s, dtype) for name, s in ends.items()} | {
            "layers": stacked
        }

    def batch(self, sequences: int) -> Any:
        """Shapes of a batch."""
        tokens = jax.ShapeDtypeStruct((sequences, self.seq), jnp.int32)
        found = {"tokens": tokens, "labels": tokens}
        if self.dropout:
            found["key"] = jax.eval_shape(lambda: jax.random.key(0))
        return found

    def products(self, spec: str, x: Any, *weights: Any) -> Any:
        """`jnp.einsum` of activations and each of some weights, in the model's precision."""
        return _products(spec, self.dtype == FP8, self.wide_gradients, x, weights)

    @fused
    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        """RMSNorm or LayerNorm, in float32."""
        wide = x.astype(jnp.float32)
        if not self.gated:
            wide -= jnp.mean(wide, axis=-1, keepdims=True)
        wide *= jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-5)
        found = wide.astype(x.dtype) * scale.astype(x.dtype)
        return found if shift is None else found + shift.astype(x.dtype)

    @fused
    def rotary(self, x: Any) -> Any:
        """Rotary positions."""
        frequency = 500000.0 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
        angle = jnp.arange(x.shape[1])[:, None, None] * frequency
        sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def attention(self, q: Any, k: Any, v: Any, key: Any) -> Any:
        """Causal attention of grouped queries, as a kernel or with scores in memory."""
        if self.flash:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=KERNEL)
        core = again(self.scores) if self.recompute == "selective" else self.scores
        return core(q, k, v, key)

    def scores(self, q: Any, k: Any, v: Any, key: Any) -> Any:
        """Attention with scores in memory."""
        q = q.reshape(*k.shape[:3], -1, k.shape[-1]) * k.shape[-1] ** -0.5
        scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k)
        probs = again(self.softmax)(scores)
        probs = self.drop(probs, key, 0)
        return jnp.einsum("bgrqk,bkgd->bqgrd", probs, v).reshape(*k.shape[:2], -1, k.shape[-1])

    def softmax(self, scores: Any) -> Any:
        """Causal softmax in float32."""
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        wide = jnp.where(causal, scores.astype(jnp.float32), -jnp.inf)
        return jax.nn.softmax(wide, axis=-1).astype(scores.dtype)

    def drop(self, x: Any, key: Any, place: int) -> Any:
        """Dropout with a mask of one byte for each element."""
        if not self.dropout:
            return x
        bits = jax.random.bits(jax.random.fold_in(key, place), x.shape, jnp.uint8)
        kept = bits >= round(256 * self.dropout)
        return jnp.where(kept, x * (1.0 / (1.0 - self.dropout)), 0).astype(x.dtype)

    @fused
    def activation(self, up: Any, gate: Any, bias: Any) -> Any:
        """SwiGLU, or GELU of a sum with its bias."""
        if gate:
            return up * jax.nn.silu(gate[0])
        return jax.nn.gelu(up if bias is None else up + bias.astype(up.dtype))

    def layer(self, x: Any, given: Any) -> Any:
        """One layer."""
        p, key = given

        def biased(y: Any, name: str) -> Any:
            return y + p[name].astype(y.dtype) if self.bias else y

        y = self.norm(x, p["attn_norm"], p.get("attn_shift"))
        qkv = self.products("bsm,mhd->bshd", y, *(p[w] for w in "qkv"))
        q, k, v = (biased(part, f"{w}_bias") for w, part in zip("qkv", qkv, strict=True))
        q = checkpoint_name(q, "q")
        if self.gated:
            q, k = self.rotary(q), self.rotary(k)
        core = checkpoint_name(self.attention(q, k, v, key), "core")
        (y,) = self.products("bshd,hdm->bsm", core, p["o"])
        x = x + self.drop(biased(y, "o_bias"), key, 1)
        y = self.norm(x, p["mlp_norm"], p.get("mlp_shift"))
        names = ("up", "gate") if self.gated else ("up",)
        up, *gate = self.products("bsm,mf->bsf", y, *(p[w] for w in names))
        y = self.activation(checkpoint_name(up, "up"), gate, p.get("up_bias"))
        (y,) = self.products("bsf,fm->bsm", y, p["down"])
        return x + self.drop(biased(y, "down_bias"), key, 2), None

    def embedded(self, table: Any, tokens: Any) -> Any:
        """Rows of the embedding."""
        if not self.one_hot:
            return table[tokens].astype(self.activations)
        rows = jax.nn.one_hot(tokens, self.vocab, dtype=self.activations)
        return jnp.einsum("bsv,vm->bsm", rows, table.astype(self.activations))

    def loss(self, params: Any, batch: Any) -> Any:
        """Mean cross entropy of the next token."""
        x = self.embedded(params["tok"], batch["tokens"])
        if not self.gated:
            x = x + params["pos"].astype(x.dtype)
        layer: Any = self.layer
        if self.recompute in SAVED:
            policy = SAVED[self.recompute]
            layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        keys = jax.random.split(batch["key"], self.layers) if self.dropout else None
        scanned: Any = jax.lax.scan(layer, x, (params["layers"], keys))
        x = scanned[0]
        y = self.norm(x, params["norm"], None)
        spec, wide = "bsm,mv->bsv", self.wide_gradients
        logits: Any = _products(spec, False, wide, y, (params["head"],))
        return self.entropy(logits[0], batch["labels"])

    @fused
    def entropy(self, logits: Any, labels: Any) -> Any:
        """Mean cross entropy, in float32."""
        wide = logits.astype(jnp.float32)
        picked = jnp.take_along_axis(wide, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - picked)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _products(spec: str, fp8: bool, wide: bool, x: Any, weights: Any) -> Any:
    return _forward(spec, fp8, wide, x, weights)[0]


def _forward(spec: str, fp8: bool, wide: bool, x: Any, weights: Any) -> Any:
    del wide
    narrow = [w.astype(x.dtype) for w in weights]
    if not fp8:
        return tuple(jnp.einsum(spec, x, w) for w in narrow), (x, weights)
    small = x.astype(FP8)
    found = [_of_float8(spec, small, w.astype(FP8), x.dtype) for w in narrow]
    return tuple(found), (small, weights)


def _backward(spec: str, fp8: bool, wide: bool, kept: Any, slopes: Any) -> Any:
    left, right, out = spec.replace("->", ",").split(",")
    to_x, to_w = f"{out},{right}->{left}", f"{left},{out}->{right}"
    x, weights = kept
    dtype = slopes[0].dtype
    found = jnp.dtype(jnp.float32 if wide else dtype)
    narrow = [w.astype(dtype) for w in weights]
    if fp8:
        small = [slope.astype(FP8) for slope in slopes]
        grads = [_of_float8(to_w, x, slope, found) for slope in small]
        parts = [
            _of_float8(to_x, s, w.astype(FP8), dtype) for s, w in zip(small, narrow, strict=True)
        ]
    else:
        grads = [jnp.einsum(to_w, x, slope, preferred_element_type=found) for slope in slopes]
        parts = [jnp.einsum(to_x, slope, w) for slope, w in zip(slopes, narrow, strict=True)]
    cast = tuple(g.astype(w.dtype) for g, w in zip(grads, weights, strict=True))
    return sum(parts[1:], parts[0]), cast


def _of_float8(spec: str, a: Any, b: Any, dtype: Any) -> Any:
    """Product of float8 arrays, whose kernels apply scales that are known before the step."""
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.dtype(dtype))


_products.defvjp(_forward, _backward)


def adam(*, copies: bool) -> optax.GradientTransformation:
    """AdamW in float32.

    Args:
        copies: whether the state has a float32 copy of each parameter, which is narrower.
    """

    def init(params: Any) -> Any:
        wide = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return (wide, wide, wide) if copies else (wide, wide)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], grads)
        square = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state[1], grads)
        owned = state[2] if copies else params
        step = jax.tree.map(
            lambda m, v, p: -3e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), mean, square, owned
        )
        if not copies:
            return step, (mean, square)
        new = jax.tree.map(jnp.add, owned, step)
        change = jax.tree.map(lambda n, p: n - p.astype(jnp.float32), new, params)
        return change, (mean, square, new)

    updating: Any = update
    return optax.GradientTransformation(init, updating)
