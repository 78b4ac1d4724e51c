# pyright: basic
"""Equinox: a classifier of sequences, with filtered transformations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import meshwright


class Classifier(eqx.Module):
    embed: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        embed, mlp = jax.random.split(key)
        self.embed = eqx.nn.Embedding(512, 128, key=embed)
        self.norm = eqx.nn.LayerNorm(128)
        self.mlp = eqx.nn.MLP(128, 10, 512, 2, activation=jax.nn.gelu, key=mlp)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, tokens, key=None):
        x = self.norm(jax.vmap(self.embed)(tokens).mean(0))
        return self.mlp(self.dropout(x, key=key))


def loss_fn(model, tokens, labels, keys):
    logits = jax.vmap(model)(tokens, keys)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@meshwright.parallelize(cluster="host")
def make_step(model, opt_state, optimizer, tokens, labels, key):
    keys = jax.random.split(key, len(tokens))
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, tokens, labels, keys)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


@meshwright.parallelize(cluster="host")
def accuracy(model, tokens, labels):
    return jnp.mean(jax.vmap(model)(tokens).argmax(-1) == labels)


def train(steps=5, size=64):
    model = Classifier(jax.random.key(0))
    optimizer = optax.adamw(1e-3)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
    losses = []
    for n in range(steps):
        key = jax.random.key(n)
        tokens = jax.random.randint(key, (size, 16), 0, 512)
        labels = tokens[:, 0] % 10
        model, opt_state, loss = make_step(model, opt_state, optimizer, tokens, labels, key)
        losses.append(float(loss))
    losses.append(float(accuracy(eqx.nn.inference_mode(model), tokens, labels)))
    return losses, eqx.filter(model, eqx.is_array)


if __name__ == "__main__":
    print(train()[0])
