# pyright: basic
"""Stacked LSTM language model: a `lax.scan` over time in every layer, residuals from the second."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.chain(optax.clip(1.0), optax.adam(1e-3))


class LSTM(namedtuple("LSTM", "vocab seq hidden layers batch dtype")):
    def init(self, key):
        m, uniform = self.hidden, jax.nn.initializers.variance_scaling(1.0, "fan_in", "uniform")
        tok_key, head_key, *keys = jax.random.split(key, self.layers + 2)
        tok, head = uniform(tok_key, (self.vocab, m)), uniform(head_key, (m, self.vocab))

        def layer(key):
            x_key, h_key = jax.random.split(key)
            forget = jnp.zeros((4, m)).at[1].set(1.0)  # remembers at first
            return {"x": uniform(x_key, (m, 4 * m)), "h": uniform(h_key, (m, 4 * m)), "b": forget}

        text = jax.random.randint(key, (self.batch, self.seq), 1, self.vocab)
        lengths = jax.random.randint(key, (self.batch,), self.seq // 2, self.seq + 1)
        params = {"tok": tok, "layers": [layer(k) for k in keys], "head": head}
        return params, {"tokens": text, "lengths": lengths}

    def layer(self, p, xs):
        def cell(carry, x):
            h, c = carry
            gates = (x + h @ p["h"]).reshape(self.batch, 4, self.hidden) + p["b"]
            i, f, g, o = jnp.split(gates, 4, axis=1)
            c = jax.nn.sigmoid(f[:, 0]) * c + jax.nn.sigmoid(i[:, 0]) * jnp.tanh(g[:, 0])
            h = jax.nn.sigmoid(o[:, 0]) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((self.batch, self.hidden), xs.dtype)
        _, hs = jax.lax.scan(cell, (zeros, zeros), xs @ p["x"])
        return hs

    def loss(self, params, batch):
        params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        inputs = jnp.pad(batch["tokens"][:, :-1], ((0, 0), (1, 0)))  # starts with token 0
        xs = jnp.take(params["tok"], inputs.T, axis=0)  # [seq, batch, hidden]
        for i, p in enumerate(params["layers"]):
            hs = self.layer(p, xs)
            xs = xs + hs if i else hs
        logits = jnp.einsum("sbm,mv->bsv", xs, params["head"]).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"])
        mask = jnp.arange(self.seq) < batch["lengths"][:, None]
        return jnp.sum(jnp.where(mask, losses, 0)) / jnp.sum(mask)

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


GNMT_LIKE = LSTM(32000, 64, 1024, 4, 256, "bfloat16")
small = LSTM(256, 16, 64, 2, 8, "float32").target
gnmt_like = partial(GNMT_LIKE.target, jax.eval_shape)
