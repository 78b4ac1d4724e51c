# pyright: basic
"""Llama 3: RMSNorm, RoPE, grouped queries, SwiGLU; scanned layers with recomputation."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

WIDE = partial(jax.tree.map, lambda leaf: leaf.astype(jnp.float32))  # for moments and updates
ADAMW = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95, weight_decay=0.1))


class Llama(namedtuple("Llama", "vocab seq hidden heads kv_heads ffn layers batch dtype")):
    def init(self, key):
        n, m, h, g, f = self.layers, self.hidden, self.heads, self.kv_heads, self.ffn
        d = m // h
        shapes = {"q": (m, h, d), "k": (m, g, d), "v": (m, g, d), "o": (h, d, m)}
        shapes |= {"gate": (m, f), "up": (m, f), "down": (f, m)}
        tok_key, head_key, *keys = jax.random.split(key, 2 + len(shapes))
        normal = jax.nn.initializers.normal(0.02, self.dtype)
        layers = {w: normal(k, (n, *shapes[w])) for w, k in zip(shapes, keys, strict=True)}
        layers |= {w: jnp.ones((n, m), self.dtype) for w in ("attn_norm", "mlp_norm")}
        tok, head = normal(tok_key, (self.vocab, m)), normal(head_key, (m, self.vocab))
        tokens, labels = jax.random.randint(key, (2, self.batch, self.seq), 0, self.vocab)
        params = {"tok": tok, "layers": layers, "norm": jnp.ones(m, self.dtype), "head": head}
        return params, {"tokens": tokens, "labels": labels}

    def norm(self, x, scale):
        mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
        return (x * jax.lax.rsqrt(mean + 1e-5)).astype(x.dtype) * scale

    def rope(self, x):
        frequency = 500000.0 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
        angle = jnp.arange(x.shape[1])[:, None, None] * frequency
        sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def layer(self, x, p):
        y = self.norm(x, p["attn_norm"])
        q = self.rope(jnp.einsum("bsm,mhd->bshd", y, p["q"]))
        k = self.rope(jnp.einsum("bsm,mgd->bsgd", y, p["k"]))
        v = jnp.einsum("bsm,mgd->bsgd", y, p["v"])
        q = q.reshape(*k.shape[:3], -1, k.shape[-1]) * k.shape[-1] ** -0.5
        scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k).astype(jnp.float32)
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        probs = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(x.dtype)
        heads = jnp.einsum("bgrqk,bkgd->bqgrd", probs, v).reshape(*x.shape[:2], self.heads, -1)
        x = x + jnp.einsum("bshd,hdm->bsm", heads, p["o"])
        y = self.norm(x, p["mlp_norm"])
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

    def loss(self, params, batch):
        x = params["tok"][batch["tokens"]]
        x, _ = jax.lax.scan(jax.checkpoint(self.layer), x, params["layers"])
        logits = (self.norm(x, params["norm"]) @ params["head"]).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = ADAMW.update(WIDE(grads), opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        opt_state = make(lambda params: ADAMW.init(WIDE(params)), params)
        return train_step, (params, opt_state, batch), {"donate_argnums": (0, 1)}


LLAMA_8B = Llama(128256, 8192, 4096, 32, 8, 14336, 32, 8, "bfloat16")
LLAMA_70B = LLAMA_8B._replace(hidden=8192, heads=64, ffn=28672, layers=80)
small = Llama(256, 32, 128, 16, 8, 256, 2, 8, "float32").target
llama3_8b = partial(LLAMA_8B.target, jax.eval_shape)
llama3_70b = partial(LLAMA_70B.target, jax.eval_shape)
