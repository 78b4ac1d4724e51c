# pyright: basic
"""Mixture of experts: GPT blocks, every second MLP routed top-2 with capacity (after GShard)."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.adafactor(1e-3, min_dim_size_to_factor=32)


class MoE(namedtuple("MoE", "vocab seq hidden heads experts ffn group layers batch dtype")):
    def init(self, key):
        m, h, e, f = self.hidden, self.heads, self.experts, self.ffn
        normal, layers = jax.nn.initializers.normal(0.02), []
        for i, keys in enumerate(jax.random.split(key, (self.layers, 5))):
            experts = {"up": (e, m, f), "down": (e, f, m), "router": (m, e)}
            mlp = experts if i % 2 else {"up": (m, f), "down": (f, m)}
            shapes = {"qkv": (m, 3, h, m // h), "out": (h, m // h, m), **mlp}
            p = {w: normal(k, shapes[w]) for w, k in zip(shapes, keys, strict=False)}
            layers.append(p | {"norm1": jnp.ones(m), "norm2": jnp.ones(m)})
        tokens, labels = jax.random.randint(key, (2, self.batch, self.seq), 0, self.vocab)
        params = {"tok": normal(key, (self.vocab, m)), "layers": layers}
        return params, {"tokens": tokens, "labels": labels}

    def norm(self, x, scale):
        return jax.nn.standardize(x.astype(jnp.float32)).astype(x.dtype) * scale

    def route(self, logits, capacity):
        logits = logits.astype(jnp.float32)
        gates, experts = jax.lax.top_k(logits, 2)
        chosen = jax.nn.one_hot(experts, self.experts)  # [group, token, choice, expert]
        queue = jnp.concatenate([chosen[:, :, 0], chosen[:, :, 1]], axis=1)  # first choices first
        rank = jnp.stack(jnp.split(jnp.cumsum(queue, axis=1) - 1, 2, axis=1), axis=2)
        slot = jax.nn.one_hot(jnp.sum(rank * chosen, axis=-1, dtype=int), capacity)  # beyond: zeros
        balance = jnp.mean(chosen[:, :, 0].mean(1) * jax.nn.softmax(logits).mean(1))
        combine = jnp.einsum("gskc,gske->gsec", slot * jax.nn.softmax(gates)[..., None], chosen)
        return combine, balance * self.experts**2  # [group, token, expert, slot], scalar

    def mlp(self, x, p):
        if "router" not in p:
            return jax.nn.gelu(x @ p["up"]) @ p["down"], 0.0
        x = x.reshape(-1, self.group, self.hidden)
        combine, balance = self.route(x @ p["router"], capacity=2 * self.group // self.experts)
        y = jnp.einsum("gsec,gsm->egcm", (combine > 0).astype(x.dtype), x)
        y = jax.nn.gelu(jnp.einsum("egcm,emf->egcf", y, p["up"]))
        y = jnp.einsum("egcf,efm->egcm", y, p["down"])
        y = jnp.einsum("gsec,egcm->gsm", combine.astype(x.dtype), y)
        return y.reshape(-1, self.seq, self.hidden), balance

    def loss(self, params, batch):
        params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        x, total = params["tok"][batch["tokens"]], 0.0
        for p in params["layers"]:
            q, k, v = jnp.einsum("bsm,mthd->tbshd", self.norm(x, p["norm1"]), p["qkv"])
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
            probs = jax.nn.softmax(scores, where=jnp.tril(jnp.ones((self.seq, self.seq), bool)))
            heads = jnp.einsum("bhqk,bkhd->bqhd", probs.astype(x.dtype), v)
            x = x + jnp.einsum("bqhd,hdm->bqm", heads, p["out"])
            y, balance = self.mlp(self.norm(x, p["norm2"]), p)
            x, total = x + y, total + balance
        logits = jnp.einsum("bsm,vm->bsv", x, params["tok"], preferred_element_type=jnp.float32)
        targets = jax.nn.one_hot(batch["labels"], self.vocab)
        return optax.softmax_cross_entropy(logits, targets).mean() + 0.01 * total

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


MOE_10B = MoE(32000, 1024, 1536, 16, 32, 8 * 1536, 2048, 16, 64, "bfloat16")
small = MoE(256, 32, 64, 8, 8, 128, 32, 2, 8, "float32").target
moe_10b = partial(MOE_10B.target, jax.eval_shape)
