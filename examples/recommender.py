# pyright: basic
"""DLRM: embedding tables looked up by integer features, dot interactions, bottom and top MLP."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.sgd(0.05, momentum=0.9)


class DLRM(namedtuple("DLRM", "tables rows dim dense bottom top batch dtype")):
    def init(self, key):
        table_key, mlp_key, data_key = jax.random.split(key, 3)

        def mlp(key, sizes):
            pairs = zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True)
            he = jax.nn.initializers.he_normal()
            return [{"w": he(k, (a, b)), "b": jnp.zeros(b)} for k, a, b in pairs]

        keys = jax.random.split(table_key, self.tables)
        tables = [jax.random.normal(k, (self.rows, self.dim)) * self.dim**-0.5 for k in keys]
        pairs = self.tables * (self.tables + 1) // 2
        bottom = mlp(mlp_key, (self.dense, *self.bottom, self.dim))
        top = mlp(table_key, (self.dim + pairs, *self.top, 1))
        ids = jax.random.randint(data_key, (self.batch, self.tables), 0, self.rows)
        dense = jax.random.uniform(data_key, (self.batch, self.dense), maxval=100.0)
        clicks = jax.random.bernoulli(data_key, 0.25, (self.batch,))
        params = {"tables": tables, "bottom": bottom, "top": top}
        return params, {"ids": ids, "dense": dense, "clicks": clicks}

    def mlp(self, x, layers):
        for p in layers[:-1]:
            x = jax.nn.relu(x @ p["w"].astype(x.dtype) + p["b"].astype(x.dtype))
        return x @ layers[-1]["w"].astype(x.dtype) + layers[-1]["b"].astype(x.dtype)

    def loss(self, params, batch):
        dense = self.mlp(jnp.log1p(batch["dense"]).astype(self.dtype), params["bottom"])
        # Rows are cast after the lookup, so that no table is copied as a whole.
        looked_up = [table[batch["ids"][:, i]] for i, table in enumerate(params["tables"])]
        features = jnp.stack([dense, *(rows.astype(self.dtype) for rows in looked_up)], axis=1)
        dots = jnp.einsum("bid,bjd->bij", features, features)
        upper = jnp.triu_indices(self.tables + 1, k=1)
        x = jnp.concatenate([dense, dots[:, *upper]], axis=1)
        logits = self.mlp(x, params["top"])[:, 0].astype(jnp.float32)
        clicks = batch["clicks"].astype(jnp.float32)
        return optax.sigmoid_binary_cross_entropy(logits, clicks).mean()

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


PUBLISHED = DLRM(26, 1_000_000, 128, 13, (512, 256), (1024, 1024, 512, 256), 8192, "bfloat16")
small = DLRM(8, 512, 16, 8, (64, 32), (64, 64), 16, "float32").target
dlrm = partial(PUBLISHED.target, jax.eval_shape)
