# pyright: basic
"""Small programs, and a machine on which even they are worth splitting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from msgspec import structs

from costmodel import Cluster, parse_cluster
from profiles import HostLink

F32 = jnp.float32


def struct(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def array(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), F32)


def assert_split_and_equal(found: Any, fn: Callable[..., Any], *args: Any) -> None:
    """A plan has no op that is whole on every device, and computes what `jax.jit` does."""
    mine, theirs = found.compile()(*args), jax.jit(fn)(*args)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert not [text for text in found.file.whole.warnings if "whole on every device" in text]


def slow_machine(count: int = 8, profile: str = "host") -> Cluster:
    """Devices so slow, and links so fast, that everything is split that can be."""
    base = parse_cluster(f"{count}xhost")
    device = structs.replace(
        base.device, peak_flops=(("float32", 1e6),), memory_bandwidth_bytes_per_s=1e6,
        kernel_launch_s=0.0,
    )  # fmt: skip
    link = structs.replace(base.intra_host, latency_s=0.0, bandwidth_bytes_per_s=1e12)
    return replace(
        base, name=f"{count}xslow", profile=profile, device=device, intra_host=link, network=link
    )  # fmt: skip


def linked(machine: Cluster, rate: float = 1e6, memory_bytes: int | None = None) -> Cluster:
    """The same with a link of each device to its host, and so much memory there for each."""
    link = HostLink(
        name="link", to_host_bytes_per_s=rate, from_host_bytes_per_s=rate,
        memory_bytes=memory_bytes, source="none", date="2026",
    )  # fmt: skip
    return replace(machine, device=structs.replace(machine.device, host_link=link))


# --- a model to train --------------------------------------------------------------------------

PARAMS = {"b1": struct(32), "w1": struct(16, 32), "w2": struct(32, 16)}
X = struct(8, 16)
BATCH = {"x": X, "y": X}


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"]


def mean_loss(params: Any, batch: Any) -> Any:
    return jnp.mean((mlp(params, batch["x"]) - batch["y"]) ** 2)


def sum_loss(params: Any, batch: Any) -> Any:
    return jnp.sum((mlp(params, batch["x"]) - batch["y"]) ** 2)


def loss_and_aux(params: Any, batch: Any) -> Any:
    found = mlp(params, batch["x"])
    return jnp.mean((found - batch["y"]) ** 2), {"norm": jnp.sum(found**2)}


def filled(tree: Any) -> Any:
    """Arrays for structs, each with other numbers."""
    leaves, form = jax.tree.flatten(tree)
    made = [array(*leaf.shape, seed=i) * 0.1 for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(form, made)


# --- programs of every kind --------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    args: tuple[Any, ...]


CASES: dict[str, Case] = {}
A, W = array(8, 16), array(16, 16, seed=1)
INTS = jnp.arange(128, dtype=jnp.int32).reshape(8, 16)
SOME = jnp.array([0, 3, 7, 3])


def case(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = Case(fn, args)
        return fn

    return keep


@case(W, A)
def while_loop(w, x):
    def step(state):
        return state[0] + 1, jnp.tanh(state[1] @ w)

    return lax.while_loop(lambda s: (s[0] < 4) & (jnp.abs(s[1]).sum() > 1e-3), step, (0, x))


@case(A)
def batched_while(x):
    def grown(row):
        return lax.while_loop(lambda s: s.sum() < 10, lambda s: s + jnp.abs(row) + 0.5, row)

    return jax.vmap(grown)(x)


@case(W, A)
def counted_loop(w, x):
    return lax.fori_loop(0, 3, lambda i, x: x @ w * 0.1 + i, x)


@case(W, A)
def branch(w, x):
    return lax.cond(x.sum() > 0, lambda: x @ w, lambda: x - 1)


@case(jnp.int32(1), A)
def branches(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 2], x)


@case(W, A)
def scanned(w, x):
    def step(carry, x):
        carry = jnp.tanh(carry @ w + x)
        return carry, carry.sum(0)

    return lax.scan(step, jnp.zeros((8, 16)), jnp.stack([x, x * 2, x * 3]))


@case(A)
def scanned_backwards(x):
    return lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(16), x, reverse=True)


@case(A)
def scanned_over_nothing(x):
    return lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(16), x[:0])


@case(W, A)
def nested(w, x):
    def outer(carry, _):
        carry, _ = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), carry, None, length=2)
        carry = lax.cond(carry.sum() > 0, lambda c: c * 2, lambda c: c, carry)
        return carry, carry.mean()

    return lax.scan(outer, x, None, length=3)


@case(W, A)
def recomputed(w, x):
    return jax.grad(lambda w: jax.checkpoint(lambda w: jnp.tanh(x @ w).sum())(w))(w)


@case(jax.random.key(0), A)
def random_numbers(key, x):
    a, b = jax.random.split(key)
    return x + jax.random.normal(a, (8, 16)), jax.random.bernoulli(b, 0.5, (8, 16)), b


@case(jax.random.PRNGKey(0), A)
def random_numbers_by_raw_key(key, x):
    return x + jax.random.uniform(key, (8, 16)), jax.random.fold_in(key, 3)


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, x), lambda x, g: (jnp.clip(g, -0.1, 0.1) * x,))


@case(W, A)
def own_derivative(w, x):
    return jax.grad(lambda w: (clipped(x @ w) ** 2).sum())(w)


@case(SOME, A)
def gathers(i, x):
    return x[i], jnp.take_along_axis(x, jnp.argsort(x, 1), 1), x[:, i]


@case(SOME, A)
def scatters(i, x):
    sums = jax.ops.segment_sum(x, jnp.array([0, 0, 1, 1, 2, 2, 3, 3]), 4)
    return x.at[i].add(1.0), x.at[i[:2]].set(2.0), x.at[:, i].mul(3.0), sums


@case(A)
def sorts(x):
    return jnp.sort(x, 0), jnp.argsort(x, 1), lax.top_k(x, 4), lax.sort((x, x * 2), num_keys=1)


@case(A)
def transforms(x):
    return jnp.abs(jnp.fft.fft(x)), jnp.fft.irfft(jnp.fft.rfft(x, axis=0), axis=0)


@case(INTS, A > 0, INTS.astype(jnp.uint32))
def integers_and_booleans(i, b, u):
    return i + 1, ~b, u >> 1, i // 2, (i.sum(), b.any(), b.all()), i.astype(jnp.int8), b & (i > 3)


@case(A)
def cumulative(x):
    return jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0), lax.associative_scan(jnp.add, x)


@case(A)
def called_back(x):
    return jax.pure_callback(lambda x: np.asarray(x) * 2, struct(8, 16), x) + 1


@case(W)
def factorised(w):
    return jnp.linalg.cholesky(w @ w.T + 20 * jnp.eye(16))


@case(array(8, 4, 8, 8), array(8, 4, 3, 3))
def images(x, kernel):
    made = lax.conv_general_dilated(x, kernel, (1, 1), "SAME")
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return made, pooled


@case(jnp.int32(3), A)
def windows(i, x):
    return lax.dynamic_slice(x, (i, 0), (2, 16)), lax.dynamic_update_slice(x, x[:2], (i, 0))


@case(A, W)
def unchanged(x, y):
    return y, x, x


@case()
def constants():
    return jnp.ones((8, 16)), 3.0, jnp.arange(8)


CAPTURED = array(8, 16, seed=5)


@case(A)
def captures(x):
    return x * CAPTURED + CAPTURED.sum()


@case(jnp.zeros((0, 16)), W)
def nothing_in_it(x, w):
    return x @ w, x.sum(0), jnp.concatenate([x, x])


@case(array(7, 13), array(13, 5))
def prime_sizes(x, w):
    return jax.nn.softmax(x @ w), x.mean()


@case(A)
def complex_numbers(x):
    z = x + 1j * x[::-1]
    return z * jnp.conj(z), jnp.angle(z)


@case(W, A)
def short_floats(w, x):
    return x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)


@case(array(8, 4, 4), array(8, 4, 4, seed=2))
def einsums(a, b):
    return jnp.einsum("bij,bjk->bik", a, b), jnp.einsum("bij,bkj->ik", a, b)


@case(A)
def layouts(x):
    return x.reshape(4, 2, 16), x.reshape(-1), x.T, jnp.tile(x, (2, 1)), jnp.pad(x, 1), x[::2, ::-1]


@case(A, 2.0, 3)
def python_numbers(x, s, n):
    return x * s + n
