# pyright: basic
"""Vision transformer: patches by a convolution, a class token, dropout keys folded per layer."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.adam(optax.warmup_cosine_decay_schedule(1e-5, 1e-3, 100, 10_000))


class ViT(namedtuple("ViT", "image patch hidden heads layers classes batch dtype")):
    def init(self, key):
        m, h, patch = self.hidden, self.heads, self.patch
        normal = jax.nn.initializers.normal(0.02)

        def block(key):
            k = jax.random.split(key, 6)
            p = {w: normal(k[i], (m, h, m // h)) for i, w in enumerate("qkv")}
            p |= {"out": normal(k[3], (h, m // h, m)), "out_bias": jnp.zeros(m)}
            p |= {"up": normal(k[4], (m, 4 * m)), "down": normal(k[5], (4 * m, m))}
            p |= {"up_bias": jnp.zeros(4 * m), "down_bias": jnp.zeros(m)}
            return p | {"norm1": jnp.ones(m), "norm2": jnp.ones(m)}

        keys = jax.random.split(key, self.layers + 5)
        params = {"patch": normal(keys[0], (patch, patch, 3, m)), "patch_bias": jnp.zeros(m)}
        params |= {"class": normal(keys[1], (1, 1, m)), "head": normal(keys[2], (m, self.classes))}
        params |= {"pos": normal(keys[3], ((self.image // patch) ** 2 + 1, m)), "norm": jnp.ones(m)}
        images = jax.random.normal(keys[4], (self.batch, self.image, self.image, 3))
        labels = jax.random.randint(keys[4], (self.batch,), 0, self.classes)
        batch = {"images": images, "labels": labels, "key": key}
        return params | {"blocks": [block(k) for k in keys[5:]]}, batch

    def norm(self, x, scale):
        wide = x.astype(jnp.float32)
        mean, var = jnp.mean(wide, -1, keepdims=True), jnp.var(wide, -1, keepdims=True)
        return ((wide - mean) * jax.lax.rsqrt(var + 1e-6)).astype(x.dtype) * scale

    def dropout(self, x, key, rate=0.1):
        keep = jax.random.bernoulli(key, 1 - rate, x.shape)
        return x * keep.astype(x.dtype) / (1 - rate)

    def block(self, x, p, key):
        y = self.norm(x, p["norm1"])
        q, k, v = (jnp.einsum("bsm,mhd->bshd", y, p[w]) for w in "qkv")
        y = jax.nn.dot_product_attention(q, k, v)
        y = jnp.einsum("bshd,hdm->bsm", y, p["out"]) + p["out_bias"]
        x = x + self.dropout(y, jax.random.fold_in(key, 0))
        y = jax.nn.gelu(self.norm(x, p["norm2"]) @ p["up"] + p["up_bias"], approximate=False)
        return x + self.dropout(y @ p["down"] + p["down_bias"], jax.random.fold_in(key, 1))

    def loss(self, params, batch):
        params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        conv = partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        images, patch = batch["images"].astype(self.dtype), (self.patch, self.patch)
        x = conv(images, params["patch"], patch, "VALID").reshape(self.batch, -1, self.hidden)
        x = x + params["patch_bias"]
        first = jnp.broadcast_to(params["class"], (self.batch, 1, self.hidden))
        x = jnp.concatenate([first, x], axis=1) + params["pos"]
        for i, p in enumerate(params["blocks"]):
            x = self.block(x, p, jax.random.fold_in(batch["key"], i))
        logits = (self.norm(x[:, 0], params["norm"]) @ params["head"]).astype(jnp.float32)
        picked = jax.nn.one_hot(batch["labels"], self.classes) * jax.nn.log_softmax(logits)
        return -picked.sum(axis=-1).mean()

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


small = ViT(32, 8, 64, 8, 2, 16, 8, "float32").target
VIT_L_16 = ViT(224, 16, 1024, 16, 24, 1000, 256, "bfloat16")
vit_l_16 = partial(VIT_L_16.target, jax.eval_shape)
