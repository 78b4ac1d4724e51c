# pyright: basic
"""Training steps of newer models that others wrote, as targets of `plan`; nothing is allocated.

They are of `tunix` (Flax NNX), `diffusers` (with Flax), `pdequinox` (Equinox), `gymnax` (with
Flax), and an ensemble of Flax NNX's; `third_party.py` names them as its own targets where their
library is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import optax

ADAMW = optax.adamw(1e-4)


def step_of(
    optimizer: Any, loss: Callable[..., Any], params: Any, *batch: Any
) -> tuple[Any, Any, Any]:
    """A step of an optimizer; the loss takes parameters and the batch: (loss, state)."""

    def train_step(params, opt_state, *batch):
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value, state

    opt_state = jax.eval_shape(optimizer.init, params)
    return train_step, (params, opt_state, *batch), {"donate_argnums": (0, 1)}


def _f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def nnx_qwen3(
    shape: tuple[int, int] = (32, 2048), optimizer: Any = ADAMW, **settings: Any
) -> Any:  # fmt: skip
    """Qwen3 0.6B of `tunix`, a Flax NNX module, in bfloat16; settings change its configuration."""
    nnx = import_module("flax.nnx")
    module = import_module("tunix.models.qwen3.model")
    dataclasses = import_module("dataclasses")
    config = dataclasses.replace(
        module.ModelConfig.qwen3_0p6b(), **{"dtype": jnp.bfloat16, **settings}
    )
    made = nnx.eval_shape(lambda: module.Qwen3(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(made, nnx.Param)
    params = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nnx.to_pure_dict(params)
    )

    def loss(params, tokens, labels):
        state = nnx.eval_shape(lambda: nnx.state(made, nnx.Param))
        nnx.replace_by_pure_dict(state, params)
        n = tokens.shape[1]
        at = jnp.broadcast_to(jnp.arange(n), tokens.shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((n, n), bool)), (*tokens.shape, n))
        logits, _ = nnx.merge(graph, state)(tokens, at, None, mask)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
        return losses.mean(), ()

    return step_of(optimizer, loss, params, _i(*shape), _i(*shape))


def stable_diffusion(
    batch: int = 16, words: int = 77, optimizer: Any = ADAMW, **settings: Any
) -> Any:
    """The U-Net of Stable Diffusion 1.5 out of `diffusers`, which predicts noise of latents."""
    made = import_module("diffusers").FlaxUNet2DConditionModel(
        **{"sample_size": 64, "cross_attention_dim": 768, "dtype": jnp.bfloat16, **settings}
    )
    params = jax.eval_shape(made.init_weights, jax.random.key(0))
    size = made.sample_size
    latents = _f(batch, made.in_channels, size, size)

    def loss(params, noisy, times, text, noise):
        found = made.apply({"params": params}, noisy, times, text).sample
        return jnp.mean((found.astype(jnp.float32) - noise) ** 2), ()

    text = _f(batch, words, made.cross_attention_dim)
    return step_of(optimizer, loss, params, latents, _i(batch), text, latents)


def _equinox(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Parameters of an Equinox module, as shapes, and the rest of it."""
    eqx = import_module("equinox")
    made = eqx.filter_eval_shape(make, jax.random.key(0))
    return eqx.partition(
        made, lambda x: isinstance(x, jax.ShapeDtypeStruct) and x.dtype.kind == "f"
    )


def _operator(
    make: Callable[[Any], Any], batch: int, shape: tuple[int, ...], optimizer: Any
) -> Any:
    """A module of fields [channels, ...] without a batch, fitted to pairs of fields."""
    eqx = import_module("equinox")
    params, rest = _equinox(make)

    def loss(params, given, wanted):
        found = jax.vmap(eqx.combine(params, rest))(given)
        return jnp.mean((found - wanted) ** 2), ()

    return step_of(optimizer, loss, params, _f(batch, *shape), _f(batch, *shape))


def eqx_unet(
    batch: int = 32, size: int = 128, channels: int = 3, optimizer: Any = ADAMW, **settings: Any
) -> Any:
    """A U-Net of residual blocks of `pdequinox` (Equinox), which denoises images."""
    arch = import_module("pdequinox.arch")
    settings = {"hidden_channels": 64, **settings}
    return _operator(
        lambda key: arch.ModernUNet(2, channels, channels, key=key, **settings),
        batch, (channels, size, size), optimizer,
    )  # fmt: skip


def eqx_fno(batch: int = 64, size: int = 256, optimizer: Any = ADAMW, **settings: Any) -> Any:
    """A Fourier neural operator of `pdequinox` on periodic fields of a plane."""
    arch = import_module("pdequinox.arch")
    settings = {"hidden_channels": 64, "num_modes": 16, **settings}
    return _operator(
        lambda key: arch.ClassicFNO(2, 1, 1, key=key, **settings), batch, (1, size, size), optimizer
    )


def ppo(
    envs: int = 8192, steps: int = 128, width: int = 256, parts: int = 4, epochs: int = 2,
    name: str = "CartPole-v1", optimizer: Any = ADAMW,
) -> Any:  # fmt: skip
    """One update of proximal policy optimisation: environments of `gymnax`, a policy of Flax.

    Rollouts are a scan over vmapped environments; advantages a scan backwards; updates a scan over
    epochs and one over minibatches of a permutation.
    """
    nn = import_module("flax.linen")
    env, settings = import_module("gymnax").make(name)

    class ActorCritic(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = nn.tanh(nn.Dense(width)(nn.tanh(nn.Dense(width)(x))))
            return nn.Dense(env.num_actions)(shared), nn.Dense(1)(shared)[..., 0]

    net = ActorCritic()

    def rollout(params, seen, state, key):
        def one(carry, key):
            seen, state = carry
            logits, value = net.apply(params, seen)
            choose, move = jax.random.split(key)
            action = jax.random.categorical(choose, logits)
            log = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], -1)[:, 0]
            keys = jax.random.split(move, envs)
            after, state, reward, done, *_ = jax.vmap(env.step, (0, 0, 0, None))(
                keys, state, action, settings
            )
            return (after, state), (seen, action, log, value, reward, done)

        return jax.lax.scan(one, (seen, state), jax.random.split(key, steps))

    def advantages(values, rewards, ended, last):
        def one(carry, row):
            gain, after = carry
            value, reward, end = row
            gain = reward + 0.99 * after * (1 - end) - value + 0.99 * 0.95 * (1 - end) * gain
            return (gain, value), gain

        start = (jnp.zeros_like(last), last)
        return jax.lax.scan(one, start, (values, rewards, ended), reverse=True)[1]

    def loss(params, seen, action, log, gain, target):
        logits, value = net.apply(params, seen)
        logs = jax.nn.log_softmax(logits)
        ratio = jnp.exp(jnp.take_along_axis(logs, action[:, None], -1)[:, 0] - log)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
        return policy + 0.5 * ((value - target) ** 2).mean() - 0.01 * entropy

    def train_step(params, opt_state, seen, state, key):
        act, shuffle = jax.random.split(key)
        (seen, state), (rows, actions, logs, values, rewards, ended) = rollout(
            params, seen, state, act
        )
        gains = advantages(values, rewards, ended, net.apply(params, seen)[1])
        made = (rows, actions, logs, gains, gains + values)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), made)

        def epoch(carry, key):
            order = jax.random.permutation(key, envs * steps)
            mixed = jax.tree.map(lambda x: x[order].reshape(parts, -1, *x.shape[1:]), flat)

            def update(carry, part):
                params, opt_state = carry
                value, grads = jax.value_and_grad(loss)(params, *part)
                updates, opt_state = optimizer.update(grads, opt_state, params)
                return (optax.apply_updates(params, updates), opt_state), value

            return jax.lax.scan(update, carry, mixed)

        (params, opt_state), losses = jax.lax.scan(
            epoch, (params, opt_state), jax.random.split(shuffle, epochs)
        )
        return params, opt_state, losses.mean(), (seen, state)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.PRNGKey(0), envs))
    seen, state = jax.eval_shape(jax.vmap(lambda k: env.reset(k, settings)), keys)
    params = jax.eval_shape(net.init, jax.random.PRNGKey(0), seen)
    opt_state = jax.eval_shape(optimizer.init, params)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return train_step, (params, opt_state, seen, state, key), {"donate_argnums": (0, 1)}


def nnx_ensemble(
    members: int = 16, batch: int = 4096, size: int = 256, width: int = 2048,
    optimizer: Any = ADAMW,
) -> Any:  # fmt: skip
    """An ensemble of perceptrons of Flax NNX, vmapped over their parameters, on one batch."""
    nnx = import_module("flax.nnx")

    def made(key):
        rngs = nnx.Rngs(key)
        return nnx.Sequential(
            nnx.Linear(size, width, rngs=rngs), nnx.gelu, nnx.Linear(width, width, rngs=rngs),
            nnx.gelu, nnx.Linear(width, size, rngs=rngs),
        )  # fmt: skip

    graph, one = nnx.split(nnx.eval_shape(lambda: made(jax.random.key(0))), nnx.Param)
    params = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((members, *x.shape), x.dtype), nnx.to_pure_dict(one)
    )

    def loss(params, given, wanted):
        def member(params):
            state = nnx.eval_shape(lambda: one)
            nnx.replace_by_pure_dict(state, params)
            return jnp.mean((nnx.merge(graph, state)(given) - wanted) ** 2)

        return jax.vmap(member)(params).sum(), ()

    return step_of(optimizer, loss, params, _f(batch, size), _f(batch, size))


NEWER = {
    "tunix": {"nnx_qwen3": nnx_qwen3}, "diffusers": {"stable_diffusion": stable_diffusion},
    "pdequinox": {"eqx_unet": eqx_unet, "eqx_fno": eqx_fno}, "gymnax": {"gymnax_ppo": ppo},
    "flax": {"nnx_ensemble": nnx_ensemble},
}  # fmt: skip
