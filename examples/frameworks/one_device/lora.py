# pyright: basic
"""LoRA: low-rank adapters are trained, the base weights in bfloat16 are frozen."""

import jax
import jax.numpy as jnp
import optax

WIDTH, LAYERS, RANK, CLASSES = 256, 3, 8, 16
optimizer = optax.adamw(1e-2)


def init_base(key):
    up, down, head = jax.random.split(key, 3)
    shape = LAYERS, WIDTH, 4 * WIDTH
    base = {
        "up": jax.random.normal(up, shape) / WIDTH**0.5,
        "down": jax.random.normal(down, (LAYERS, shape[2], shape[1])) / shape[2] ** 0.5,
        "head": jax.random.normal(head, (WIDTH, CLASSES)) / WIDTH**0.5,
    }
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), base)


def init_adapters(key, base):
    adapters = {}
    for name in ("up", "down"):
        _, rows, columns = base[name].shape
        a = jax.random.normal(key, (LAYERS, rows, RANK)) / rows**0.5
        adapters[name] = {"a": a, "b": jnp.zeros((LAYERS, RANK, columns))}
    return adapters


def adapted(x, w, adapter):
    return x @ w + (x @ adapter["a"]) @ adapter["b"]


def loss_fn(adapters, base, batch):
    def layer(x, weights):
        w, adapter = weights
        hidden = jax.nn.gelu(adapted(jax.nn.standardize(x), w["up"], adapter["up"]))
        return x + adapted(hidden, w["down"], adapter["down"]), None

    layers = {name: base[name] for name in ("up", "down")}
    x, _ = jax.lax.scan(layer, batch["x"], (layers, adapters))
    logits = x @ base["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


@jax.jit
def train_step(adapters, opt_state, base, batch):
    loss, grads = jax.value_and_grad(loss_fn)(adapters, base, batch)
    updates, opt_state = optimizer.update(grads, opt_state, adapters)
    return optax.apply_updates(adapters, updates), opt_state, loss


def train(steps=5, size=64):
    base = init_base(jax.random.key(0))
    adapters = init_adapters(jax.random.key(1), base)
    opt_state = optimizer.init(adapters)
    losses = []
    for n in range(steps):
        x = jax.random.normal(jax.random.key(n), (size, WIDTH))
        batch = {"x": x, "label": jnp.abs(x[:, 0] * 10).astype(int) % CLASSES}
        adapters, opt_state, loss = train_step(adapters, opt_state, base, batch)
        losses.append(float(loss))
    return losses, adapters


if __name__ == "__main__":
    print(train()[0])
