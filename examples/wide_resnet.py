# pyright: basic
"""Wide ResNet: bottleneck blocks with a wide middle, batch norm over the batch at hand."""

from collections import namedtuple
from functools import partial

import jax
import jax.numpy as jnp
import optax

OPTIMIZER = optax.sgd(0.1, momentum=0.9, nesterov=True)


class WideResNet(namedtuple("WideResNet", "image blocks channels width classes batch dtype")):
    def init(self, key):
        keys = iter(jax.random.split(key, 4 * sum(self.blocks) + 4))

        def conv(size, cin, cout):
            kernel = jax.nn.initializers.he_normal()(next(keys), (size, size, cin, cout))
            return {"kernel": kernel, "scale": jnp.ones(cout), "bias": jnp.zeros(cout)}

        params, cin = {"stem": conv(7, 3, self.channels), "stages": []}, self.channels
        for stage, depth in enumerate(self.blocks):
            mid, blocks = self.channels * 2**stage, []
            for i in range(depth):
                block = {"in": conv(1, cin, mid), "mid": conv(3, mid, mid * self.width)}
                block["out"] = conv(1, mid * self.width, 4 * mid)
                if i == 0:
                    block["skip"] = conv(1, cin, 4 * mid)
                blocks.append(block)
                cin = 4 * mid
            params["stages"].append(blocks)
        head = jax.random.normal(next(keys), (cin, self.classes)) * cin**-0.5
        images = jax.random.normal(next(keys), (self.batch, self.image, self.image, 3))
        labels = jax.random.randint(next(keys), (self.batch,), 0, self.classes)
        return params | {"head": head}, {"images": images, "labels": labels}

    def conv(self, x, p, stride=1):
        layout = ("NHWC", "HWIO", "NHWC")
        kernel = p["kernel"].astype(x.dtype)
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=layout
        )
        x = x.astype(jnp.float32)
        mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        x = (x - mean) * (p["scale"] * jax.lax.rsqrt(var + 1e-5)) + p["bias"]
        return x.astype(self.dtype)

    def loss(self, params, batch):
        x = jax.nn.relu(self.conv(batch["images"].astype(self.dtype), params["stem"], 2))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for stage, blocks in enumerate(params["stages"]):
            for i, p in enumerate(blocks):
                stride = 2 if stage and not i else 1
                y = jax.nn.relu(self.conv(x, p["in"]))
                y = jax.nn.relu(self.conv(y, p["mid"], stride))
                x = self.conv(x, p["skip"], stride) if "skip" in p else x
                x = jax.nn.relu(x + self.conv(y, p["out"]))
        logits = jnp.mean(x, axis=(1, 2)).astype(jnp.float32) @ params["head"]
        targets = optax.smooth_labels(jax.nn.one_hot(batch["labels"], self.classes), 0.1)
        return optax.softmax_cross_entropy(logits, targets).mean()

    def target(self, make=lambda init, x: jax.jit(init)(x)):
        def train_step(params, opt_state, batch):
            loss, grads = jax.value_and_grad(self.loss)(params, batch)
            updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params, batch = make(self.init, jax.random.key(0))
        return train_step, (params, make(OPTIMIZER.init, params), batch), {"donate_argnums": (0, 1)}


small = WideResNet(32, (1, 1), 16, 2, 16, 8, "float32").target
WRN_50_2 = WideResNet(224, (3, 4, 6, 3), 160, 2, 1024, 64, "bfloat16")
wrn_50_2 = partial(WRN_50_2.target, jax.eval_shape)
