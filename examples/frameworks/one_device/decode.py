# pyright: basic
"""Greedy decoding with a KV cache: prefill, then one token at a time in a Python loop."""

import functools

import jax
import jax.numpy as jnp

LAYERS, HEADS, WIDTH, VOCAB, LENGTH = 2, 8, 256, 512, 32


def init(key):
    def dense(*shape):
        nonlocal key
        key, own = jax.random.split(key)
        return jax.random.normal(own, shape) / shape[-2] ** 0.5

    layer = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH),
             "down": (4 * WIDTH, WIDTH)}  # fmt: skip
    layers = [{name: dense(*shape) for name, shape in layer.items()} for _ in range(LAYERS)]
    return {"embed": dense(VOCAB, WIDTH), "place": dense(LENGTH, WIDTH), "layers": layers}


def block(p, cache, x, start):
    """One layer on the positions from `start` on, and the cache with their keys and values."""
    split = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
    q, *new = jnp.moveaxis((jax.nn.standardize(x) @ p["qkv"]).reshape(split), 2, 0)
    at = (0, start, 0, 0)
    k, v = cache = [
        jax.lax.dynamic_update_slice(*each, at) for each in zip(cache, new, strict=True)
    ]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    seen = jnp.arange(LENGTH) <= start + jnp.arange(x.shape[1])[:, None]
    probs = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", probs, v).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(jax.nn.standardize(x) @ p["up"]) @ p["down"], cache


@functools.partial(jax.jit, donate_argnames="cache")
def generate(params, cache, tokens, start):
    """The next token after `tokens`, which stand at `start` and later."""
    places = jax.lax.dynamic_slice_in_dim(params["place"], start, tokens.shape[1])
    x, kept = params["embed"][tokens] + places, []
    for p, each in zip(params["layers"], cache, strict=True):
        x, each = block(p, each, x, start)
        kept.append(each)
    logits = jax.nn.standardize(x[:, -1]) @ params["embed"].T
    return logits.argmax(-1)[:, None], kept


def decode(size=16, prompt=8):
    params = init(jax.random.key(0))
    empty = jnp.zeros((size, LENGTH, HEADS, WIDTH // HEADS))
    cache = [[empty.copy(), empty.copy()] for _ in range(LAYERS)]
    tokens = jax.random.randint(jax.random.key(1), (size, prompt), 0, VOCAB)
    found, start = [tokens], 0
    while start + tokens.shape[1] < LENGTH:
        following, cache = generate(params, cache, tokens, start)
        start, tokens = start + tokens.shape[1], following
        found.append(tokens)
    return jnp.concatenate(jax.device_get(found), 1), cache


if __name__ == "__main__":
    print(decode()[0])
