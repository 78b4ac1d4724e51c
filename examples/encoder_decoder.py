# pyright: basic
"""Encoder-decoder transformer (like T5): relative positions, cross attention, tied embeddings."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.adafactor(1e-2, min_dim_size_to_factor=32, weight_decay_rate=1e-4)


class T5(namedtuple("T5", "vocab source goal hidden heads ffn layers batch dtype")):
    def init(self, key):
        n, m, f, h, d = self.layers, self.hidden, self.ffn, self.heads, self.hidden // self.heads
        keys, normal = iter(jax.random.split(key, 16 * n + 4)), jax.nn.initializers.normal(0.05)

        def layer(*names):
            p = {w: normal(next(keys), (3, m, h, d)) for w in names}
            p |= {f"{w}_out": normal(next(keys), (h, d, m)) for w in names}
            p |= {"up": normal(next(keys), (m, f)), "down": normal(next(keys), (f, m))}
            return p | {f"{w}_norm": jnp.ones(m) for w in names} | {"norm": jnp.ones(m)}

        params = {"norms": jnp.ones((2, m)), "near": normal(next(keys), (2, 65, h))}
        params |= {"tok": normal(key, (self.vocab, m)), "encoder": [layer("own") for _ in range(n)]}
        params |= {"decoder": [layer("own", "cross") for _ in range(n)]}
        ids = jax.random.randint(key, (self.batch, self.source + self.goal), 0, self.vocab)
        return params, {"source": ids[:, : self.source], "goal": ids[:, self.source :], "key": key}

    def norm(self, x, scale):
        mean = jnp.mean(x.astype(jnp.float32) ** 2, axis=-1, keepdims=True)
        return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale

    def dropout(self, x, key, i):
        return jnp.where(jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape), x / 0.9, 0)

    def near(self, table, length):  # a bias [head, query, key] from their clipped distance
        away = jnp.arange(length) - jnp.arange(length)[:, None]
        return jnp.moveaxis(table[jnp.clip(away, -32, 32) + 32], -1, 0).astype(jnp.float32)

    def layer(self, x, p, key, **attended):
        for i, (name, (memory, bias)) in enumerate(attended.items()):
            y = self.norm(x, p[f"{name}_norm"])
            q = jnp.einsum("bqm,mhd->bqhd", y, p[name][0])
            k, v = jnp.einsum("bkm,tmhd->tbkhd", y if memory is None else memory, p[name][1:])
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) + bias
            y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
            x = x + self.dropout(jnp.einsum("bqhd,hdm->bqm", y, p[f"{name}_out"]), key, i)
        return x + self.dropout(jax.nn.relu(self.norm(x, p["norm"]) @ p["up"]) @ p["down"], key, 2)

    def loss(self, params, batch):
        params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        source, goal = batch["source"], batch["goal"]
        keys = jax.random.split(batch["key"], (2, self.layers))
        padding = jnp.where(source == 0, -1e9, 0.0)[:, None, None]  # token 0 is padding
        x, bias = params["tok"][source], self.near(params["near"][0], self.source) + padding
        for p, key in zip(params["encoder"], keys[0], strict=True):
            x = self.layer(x, p, key, own=(None, bias))
        memory = self.norm(x, params["norms"][0])
        bias = jnp.where(jnp.tri(self.goal) > 0, self.near(params["near"][1], self.goal), -1e9)
        x = params["tok"][jnp.pad(goal[:, :-1], ((0, 0), (1, 0)))]
        for p, key in zip(params["decoder"], keys[1], strict=True):
            x = self.layer(x, p, key, own=(None, bias), cross=(memory, padding))
        logits = (self.norm(x, params["norms"][1]) @ params["tok"].T).astype(jnp.float32)
        losses = optax.softmax_cross_entropy(logits, jax.nn.one_hot(goal, self.vocab))
        return jnp.mean(losses, where=goal != 0)

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


small = T5(256, 32, 16, 64, 8, 128, 2, 8, "float32").target
t5_base = partial(T5(32128, 512, 128, 768, 12, 3072, 12, 128, "bfloat16").target, jax.eval_shape)
