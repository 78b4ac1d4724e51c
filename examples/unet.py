# pyright: basic
"""Denoising diffusion U-Net (after DDPM): nested levels, skips, attention; predicts the noise."""

from collections import namedtuple
from functools import partial, reduce

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.adam(2e-4)
CONV = partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))


class UNet(namedtuple("UNet", "image channels widths depth groups batch dtype")):
    def init(self, key):
        c, keys, more = self.channels, iter(jax.random.split(key, 200)), range(self.depth - 1)

        def weight(*shape):
            return jax.nn.initializers.lecun_normal()(next(keys), shape)

        def block(cin, m):
            p = {"conv1": weight(3, 3, cin, m), "conv2": weight(3, 3, m, m), "time": weight(c, m)}
            return p | {"skip": weight(1, 1, cin, m), "norm1": jnp.ones(cin), "norm2": jnp.ones(m)}

        def level(cin, m, *deeper):
            p = {"down": [block(cin, m), *(block(m, m) for _ in more)], "norm": jnp.ones(m)}
            p |= {"up": [block(m + sum(deeper[:1]), m), *(block(m, m) for _ in more)]}
            p |= {"inner": level(m, *deeper), "shrink": weight(3, 3, m, m)} if deeper else {}
            return p | {"qkv": weight(m, 3, m), "out": weight(1, 1, m, m)}

        params = {"in": weight(3, 3, 3, c), "level": level(c, *(c * w for w in self.widths))}
        params |= {"norm": jnp.ones(c), "out": weight(3, 3, c, 3)}
        images = jax.random.uniform(key, (self.batch, self.image, self.image, 3), minval=-1.0)
        return params, {"images": images, "key": key}

    def norm(self, x, scale):
        wide = x.astype(jnp.float32).reshape(*x.shape[:3], self.groups, -1)
        return jax.nn.standardize(wide, axis=(1, 2, 4)).reshape(x.shape).astype(x.dtype) * scale

    def block(self, x, p, t):
        y = CONV(jax.nn.silu(self.norm(x, p["norm1"])), p["conv1"], (1, 1), "SAME")
        y = self.norm(y + (t @ p["time"])[:, None, None], p["norm2"])
        return CONV(x, p["skip"], (1, 1), "SAME") + CONV(jax.nn.silu(y), p["conv2"], (1, 1), "SAME")

    def level(self, x, p, t):
        x = reduce(partial(self.block, t=t), p["down"], x)
        q, k, v = jnp.einsum("bhwc,ctd->tbhwd", self.norm(x, p["norm"]), p["qkv"])
        scores = jnp.einsum("bhwd,bijd->bhwij", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        probs = jax.nn.softmax(scores, axis=(3, 4)).astype(x.dtype)
        x = x + CONV(jnp.einsum("bhwij,bijd->bhwd", probs, v), p["out"], (1, 1), "SAME")
        if "inner" in p:
            y = self.level(CONV(x, p["shrink"], (2, 2), "SAME"), p["inner"], t)
            x = jnp.concatenate([x, y.repeat(2, axis=1).repeat(2, axis=2)], axis=-1)
        return reduce(partial(self.block, t=t), p["up"], x)

    def loss(self, params, batch):
        params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        noise = jax.random.normal(batch["key"], batch["images"].shape)
        step = jax.random.randint(jax.random.fold_in(batch["key"], 1), (self.batch, 1), 0, 1000)
        angle = step * 10000.0 ** jnp.linspace(0, -1, self.channels // 2)
        t = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1).astype(self.dtype)
        kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 1000))[step][..., None, None]
        x = jnp.sqrt(kept) * batch["images"] + jnp.sqrt(1 - kept) * noise
        x = self.level(CONV(x.astype(self.dtype), params["in"], (1, 1), "SAME"), params["level"], t)
        x = CONV(jax.nn.silu(self.norm(x, params["norm"])), params["out"], (1, 1), "SAME")
        return jnp.mean(jnp.square(x.astype(jnp.float32) - noise))

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


small = UNet(16, 32, (1, 2), 1, 8, 8, "float32").target
ddpm_cifar = partial(UNet(32, 128, (1, 2, 2, 2), 4, 32, 128, "bfloat16").target, jax.eval_shape)
