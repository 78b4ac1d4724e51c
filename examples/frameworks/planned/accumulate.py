# pyright: basic
"""Gradient accumulation of one's own: a Python loop over micro-batches, then one update."""

import itertools

import jax
import jax.numpy as jnp
import optax

import meshwright

SIZES = (196, 512, 256, 10)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def init(key):
    layers = []
    for rows, columns in itertools.pairwise(SIZES):
        key, own = jax.random.split(key)
        w = jax.random.normal(own, (rows, columns)) / rows**0.5
        layers.append({"w": w, "b": jnp.zeros(columns)})
    return layers


def loss_fn(params, images, labels):
    x = images
    for p in params[:-1]:
        x = jax.nn.relu(x @ p["w"] + p["b"])
    logits = x @ params[-1]["w"] + params[-1]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@meshwright.parallelize(cluster="host", donate_argnums=1)
def accumulate(params, grads, images, labels):
    loss, slope = jax.value_and_grad(loss_fn)(params, images, labels)
    return jax.tree.map(jnp.add, grads, slope), loss


@meshwright.parallelize(cluster="host")
def apply(params, opt_state, grads, count):
    grads = jax.tree.map(lambda g: g / count, grads)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def train(steps=4, micro_batches=3, size=128):
    params = init(jax.random.key(0))
    opt_state = optimizer.init(params)
    losses = []
    for n in range(steps):
        grads = jax.tree.map(jnp.zeros_like, params)
        for m in range(micro_batches):
            image, label = jax.random.split(jax.random.key(n * micro_batches + m))
            images = jax.random.normal(image, (size, SIZES[0]))
            labels = jax.random.randint(label, (size,), 0, SIZES[-1])
            grads, loss = accumulate(params, grads, images, labels)
            losses.append(float(loss))
        params, opt_state = apply(params, opt_state, grads, micro_batches)
    return losses, params


if __name__ == "__main__":
    print(train()[0])
