# pyright: basic
"""GPT decoder with dropout and tied embeddings; layers in a Python loop or under `lax.scan`."""

from collections import namedtuple
from functools import partial, reduce

import jax
import jax.numpy as jnp
import optax

ADAMW = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, weight_decay=0.1))


class GPT(namedtuple("GPT", "vocab seq hidden heads layers batch dtype scan")):
    def init(self, key):
        n, m, h, d = self.layers, self.hidden, self.heads, self.hidden // self.heads
        shapes = {"qkv": (m, 3, h, d), "out": (h, d, m), "up": (m, 4 * m), "down": (4 * m, m)}
        tok_key, pos_key, *keys = jax.random.split(key, 6)
        layers = {w: 0.02 * jax.random.normal(keys.pop(), (n, *shapes[w])) for w in shapes}
        layers |= {"norm1": jnp.ones((n, m)), "norm2": jnp.ones((n, m)), "bias": jnp.zeros((n, m))}
        layers = layers if self.scan else [{w: layers[w][i] for w in layers} for i in range(n)]
        tok = 0.02 * jax.random.normal(tok_key, (self.vocab, m))
        pos = 0.02 * jax.random.normal(pos_key, (self.seq, m))
        tokens, labels = jax.random.randint(key, (2, self.batch, self.seq), 0, self.vocab)
        params = {"tok": tok, "pos": pos, "layers": layers, "norm": jnp.ones(m)}
        return params, {"tokens": tokens, "labels": labels, "key": key}

    def norm(self, x, scale):
        return jax.nn.standardize(x.astype(jnp.float32)).astype(x.dtype) * scale

    def dropout(self, x, key, rate=0.1):
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)

    def block(self, x, layer):
        p, (attn_key, mlp_key) = layer
        q, k, v = jnp.einsum("bsm,mthd->tbshd", self.norm(x, p["norm1"]), p["qkv"])
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        probs = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
        attn = jnp.einsum("bhqk,bkhd->bqhd", probs, v)
        x = x + self.dropout(jnp.einsum("bqhd,hdm->bqm", attn, p["out"]), attn_key)
        up = jax.nn.gelu(self.norm(x, p["norm2"]) @ p["up"])
        return x + self.dropout(up @ p["down"] + p["bias"], mlp_key)

    def loss(self, params, batch):
        params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        layers = (params["layers"], jax.random.split(batch["key"], (self.layers, 2)))
        x = params["tok"][batch["tokens"]] + params["pos"]
        if self.scan:
            x, _ = jax.lax.scan(lambda x, layer: (self.block(x, layer), None), x, layers)
        else:
            x = reduce(self.block, zip(*layers, strict=True), x)
        logits = (self.norm(x, params["norm"]) @ params["tok"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    def target(self, make=lambda init, x: jax.jit(init)(x), optimizer=ADAMW):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(optimizer.init, params), batch), {"donate_argnums": (0, 1)}


class Block(GPT):
    def init(self, key):
        x = jax.random.normal(key, (self.batch, self.seq, self.hidden))
        return super().init(key)[0]["layers"][0], {"x": x, "key": key}

    def loss(self, params, batch):
        return jnp.mean(self.block(batch["x"], (params, jax.random.split(batch["key"]))) ** 2)


SMALL = GPT(256, 32, 64, 8, 2, 8, "float32", False)
LARGE = GPT(51200, 1024, 2048, 32, 24, 32, "bfloat16", False)
small, small_scanned = SMALL.target, SMALL._replace(scan=True).target
gpt_1_3b = partial(LARGE.target, jax.eval_shape)
gpt_1_3b_scanned = partial(LARGE._replace(scan=True).target, jax.eval_shape)
block = partial(Block(*SMALL).target, optimizer=optax.sgd(1e-2))
