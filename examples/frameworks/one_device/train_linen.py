# pyright: basic
"""Flax Linen: a language model with a TrainState, saved by Orbax and continued."""

import functools
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        mask = nn.make_causal_mask(x[..., 0])
        attention = nn.MultiHeadDotProductAttention(8, use_bias=False, deterministic=not train)
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=not train)(y)


class LanguageModel(nn.Module):
    @nn.compact
    def __call__(self, tokens, train=True):
        embed = nn.Embed(256, 128)
        x = Block()(embed(tokens), train)
        return embed.attend(nn.LayerNorm()(x))


model = LanguageModel()


def create_state():
    params = model.init(jax.random.key(0), jnp.zeros((1, 16), int), train=False)["params"]
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, tokens, key):
    def loss_fn(params):
        rngs = {"dropout": jax.random.fold_in(key, state.step)}
        logits = state.apply_fn({"params": params}, tokens[:, :-1], rngs=rngs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def batch(n):
    return jax.random.randint(jax.random.key(n), (32, 17), 0, 256)


def train(steps=5, folder=None):
    """Trains up to that step, from the checkpoint in the folder if there is one."""
    key = jax.random.key(1)
    with ocp.StandardCheckpointer() as checkpointer:
        if folder and folder.exists():
            state = checkpointer.restore(folder, jax.eval_shape(create_state))
        else:
            state = create_state()
        losses = []
        for n in range(int(state.step), steps):
            state, loss = train_step(state, batch(n), key)
            losses.append(float(loss))
        if folder:
            checkpointer.save(folder, state, force=True)
    return losses, state.params


if __name__ == "__main__":
    print(train(int(sys.argv[1]), Path(sys.argv[2]).resolve())[0])
