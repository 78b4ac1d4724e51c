# pyright: basic
"""Perceptrons, convolutions and small graphs of Alpa's tests, written anew; shapes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from planner.training.step import build_step
from tests.oracles.helpers import Step

ROLES = ("parameter", "optimizer-state", "batch")


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def training(
    loss: Callable[[Any, Any], Any], params: Any, batch: Any, optimizer: Any = None
) -> Step:
    """One step of an optimizer, Adam if none is given; the state is donated and carried along."""
    used = optimizer or optax.adam(1e-2)

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        grads = jax.grad(loss)(params, batch)
        updates, opt_state = used.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return Step(step, (params, jax.eval_shape(used.init, params), batch), (0, 1), ROLES)


def squared(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda params, batch: jnp.mean((apply(params, batch) - batch["y"]) ** 2)


# --- layers ------------------------------------------------------------------------------------


def dense(x: Any, p: Any) -> Any:
    return x @ p["kernel"] + p["bias"] if "bias" in p else x @ p["kernel"]


def dense_params(rows: int, columns: int, *, bias: bool = True) -> Any:
    return {"kernel": floats(rows, columns)} | ({"bias": floats(columns)} if bias else {})


def norm(x: Any, p: Any) -> Any:
    return jax.nn.standardize(x) * p["scale"] + p["bias"]


def norm_params(width: int) -> Any:
    return {"scale": floats(width), "bias": floats(width)}


def dropout(x: Any, rng: Any, rate: float = 0.1) -> Any:
    return jnp.where(jax.random.bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0.0)


# --- 4.1 and 4.7: perceptrons ------------------------------------------------------------------


def mlp(layers: int, batch: int, width: int, *, bias: bool = True) -> Step:
    """Dense layers with relu between them, under Adam."""

    def apply(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for p in params[:-1]:
            x = jax.nn.relu(dense(x, p))
        return dense(x, params[-1])

    params = [dense_params(width, width, bias=bias) for _ in range(layers)]
    return training(squared(apply), params, {"x": floats(batch, width), "y": floats(batch, width)})


def linear(layers: int, batch: int, width: int, *, bias: bool = False) -> Step:
    """Dense layers alone, w -= gradient."""

    def apply(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for p in params:
            x = dense(x, p)
        return x

    def step(params: Any, batch: Any) -> Any:
        grads = jax.grad(squared(apply))(params, batch)
        return jax.tree.map(jnp.subtract, params, grads)

    params = [dense_params(width, width, bias=bias) for _ in range(layers)]
    args = (params, {"x": floats(batch, width), "y": floats(batch, width)})
    return Step(step, args, (0,), ("parameter", "batch"))


def accumulated(layers: int, batch: int, width: int, parts: int) -> Step:
    """The gradient added up over micro-batches, then Adam."""

    def apply(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for p in params:
            x = dense(x, p)
        return x

    params = [dense_params(width, width) for _ in range(layers)]
    inputs = {"x": floats(batch, width), "y": floats(batch, width)}
    made = build_step(
        squared(apply), params, inputs, optax.adam(1e-2), microbatches=parts, loss_reduction="mean"
    )
    return Step(made.fn, (params, made.opt_state_structs, inputs), (0, 1), ROLES)


# --- 4.4: convolutions -------------------------------------------------------------------------


def conv(x: Any, kernel: Any, stride: int = 1, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def batch_norm(x: Any, p: Any, running: Any) -> tuple[Any, Any]:
    mean = jnp.mean(x, (0, 1, 2))
    variance = jnp.mean(x * x, (0, 1, 2)) - mean * mean
    y = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]
    new = {"mean": mean, "variance": variance}
    return y, jax.tree.map(lambda old, now: 0.9 * old + 0.1 * now, running, new)


def conv_training(apply: Callable[[Any, Any, Any], Any], params: Any, count: int,
                  width: int, x: Any, y: Any) -> Step:  # fmt: skip
    """A step under momentum that also renews the running statistics."""
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state: Any, opt_state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            out, stats = apply(params, state["stats"], batch["x"])
            return jnp.mean((out - batch["y"]) ** 2), stats

        grads, stats = jax.grad(loss, has_aux=True)(state["params"])
        updates, opt_state = optimizer.update(grads, opt_state)
        return {"params": optax.apply_updates(state["params"], updates), "stats": stats}, opt_state

    stats = [{"mean": floats(width), "variance": floats(width)} for _ in range(count)]
    opt_state = jax.eval_shape(optimizer.init, params)
    args = ({"params": params, "stats": stats}, opt_state, {"x": x, "y": y})
    return Step(step, args, (0, 1), ROLES)


def conv_net(layers: int, batch: int, image: int, width: int) -> Step:
    """Convolution with stride 2, batch norm, relu and a pool, several times."""

    def apply(params: Any, stats: Any, x: Any) -> Any:
        renewed = []
        for p, running in zip(params, stats, strict=True):
            x, new = batch_norm(conv(x, p["kernel"], 2), p, running)
            renewed.append(new)
            x = jax.lax.reduce_window(
                jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"
            )
        return x, renewed

    kernel = {"kernel": floats(3, 3, width, width)}
    params = [kernel | norm_params(width) for _ in range(layers)]
    small = image // 2**layers
    return conv_training(
        apply, params, layers, width,
        floats(batch, image, image, width), floats(batch, small, small, width),
    )  # fmt: skip


def depthwise(batch: int, image: int, width: int) -> Step:
    """Wide convolution, one per channel, and back."""
    wide = 8 * width

    def apply(params: Any, stats: Any, x: Any) -> Any:
        x = conv(x, params["in"])
        x = conv(conv(x, params["each"], groups=wide), params["out"])
        x, new = batch_norm(jax.nn.relu(x), params["norm"], stats[0])
        return x, [new]

    params = {
        "in": floats(3, 3, width, wide), "each": floats(3, 3, 1, wide),
        "out": floats(3, 3, wide, width), "norm": norm_params(width),
    }  # fmt: skip
    shape = (batch, image, image, width)
    return conv_training(apply, params, 1, width, floats(*shape), floats(*shape))


# --- 4.5 and 4.7: small graphs -----------------------------------------------------------------


def two_products(
    middle: Callable[[Any, Any], Any], batch: tuple[int, ...], first: tuple[int, int],
    second: tuple[int, int],
) -> Step:  # fmt: skip
    """A product, `middle(x, key)`, another product, under gradient descent."""

    def apply(params: Any, batch: Any) -> Any:
        return middle(batch["x"] @ params["first"], batch["key"]) @ params["second"]

    params = {"first": floats(*first), "second": floats(*second)}
    inputs = {"x": floats(*batch, first[0]), "y": floats(*batch, second[1]), "key": key()}
    return training(squared(apply), params, inputs, optax.sgd(1e-2))


def forward_attention(batch: int, seq: int, width: int, heads: int) -> Step:
    """Attention with separate projections and biases, forward only."""
    per_head = width // heads

    def fn(params: Any, x: Any, mask: Any) -> Any:
        def project(name: str) -> Any:
            y = x.reshape(batch * seq, width) @ params[name].reshape(width, width)
            return y.reshape(batch, seq, heads, per_head) + params[f"{name}_bias"]

        q, k, v = (project(name) for name in ("q", "k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", 0.125 * q, k)
        scores = scores + jnp.where(mask[:, None, None, :] == 0, 0.0, -1e10)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        out = mixed.reshape(batch * seq, width) @ params["out"].reshape(width, width)
        return out.reshape(x.shape) + params["out_bias"]

    params = {name: floats(width, heads, per_head) for name in ("q", "k", "v", "out")}
    params |= {f"{name}_bias": floats(heads, per_head) for name in ("q", "k", "v")}
    params["out_bias"] = floats(width)
    return Step(fn, (params, floats(batch, seq, width), ints(batch, seq)))


def plain(fn: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> Step:
    return Step(fn, args, donate)


def transposes(times: int) -> Step:
    def fn(x: Any, y: Any) -> Any:
        for _ in range(times):
            x, y = x.T, y.T
        out = x @ y
        for _ in range(times):
            out = out.T
        return out

    return plain(fn, floats(2048, 128), floats(128, 2048))


def reshapes(times: int) -> Step:
    def fn(x: Any, y: Any) -> Any:
        x, y = x.reshape(128, 2048), y.reshape(2048, 128)
        for _ in range(times - 1):
            x, y = x.reshape(32, 4, 2048), y.reshape(512, 4, 128)
            x, y = x.reshape(128, 2048), y.reshape(2048, 128)
        return (x @ y).reshape(128, 2, 64)

    return plain(fn, floats(128, 1024, 2), floats(1024, 2, 128))


def sum_of_products() -> Step:
    return plain(lambda x, y: x @ y + x @ y, floats(128, 2048), floats(2048, 128))


def reused_sum() -> Step:
    def fn(x: Any, y: Any, z: Any) -> Any:
        out = z
        for _ in range(3):
            out = out + (x @ y).reshape(z.shape)
        return tuple(jnp.exp(out) for _ in range(7))

    return plain(fn, floats(128, 2048), floats(2048, 128), floats(32, 4, 128))
