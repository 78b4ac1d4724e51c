# pyright: basic
"""Haiku: a convolutional classifier with batch norm, whose state goes beside the parameters."""

import haiku as hk
import jax
import optax


def forward(images, is_training):
    x = hk.Conv2D(32, 3, stride=2, with_bias=False)(images)
    x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training))
    x = jax.nn.relu(hk.Linear(256)(hk.Flatten()(x)))
    x = hk.dropout(hk.next_rng_key(), 0.1 if is_training else 0.0, x)
    return hk.Linear(10)(x)


model = hk.transform_with_state(forward)
optimizer = optax.sgd(0.05, momentum=0.9)


def loss_fn(params, state, key, images, labels):
    logits, state = model.apply(params, state, key, images, True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state


@jax.jit
def update(params, state, opt_state, key, images, labels):
    slope = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, state), grads = slope(params, state, key, images, labels)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), state, opt_state, loss


def train(steps=5, size=64):
    params, state = model.init(jax.random.key(0), jax.numpy.zeros((1, 16, 16, 3)), True)
    opt_state = optimizer.init(params)
    losses = []
    for n in range(steps):
        image, label, key = jax.random.split(jax.random.key(n), 3)
        images = jax.random.normal(image, (size, 16, 16, 3))
        labels = jax.random.randint(label, (size,), 0, 10)
        params, state, opt_state, loss = update(params, state, opt_state, key, images, labels)
        losses.append(float(loss))
    return losses, (params, state)


if __name__ == "__main__":
    print(train()[0])
