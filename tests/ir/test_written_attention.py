# pyright: basic
"""Attention that is written out: recognised, replaced, equal; what looks like it is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import written_attention
from ir.attention_kernels import AttentionSite, WithKernels

from .attention_writings import FIRST, LENGTH, LOOK_ALIKES, WRITINGS, operands

KERNEL = re.compile(r"dot_product_attention_(fwd|bwd)_wrapper\[")
# The gradient of values is a sum over queries, of keys over queries of products; each is of numbers
# that were rounded to 16 bits.
GRADIENTS = 2.0


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x, dtype=np.float64)


def _loss(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(jnp.square(fn(*args).astype(jnp.float32)))


def _within(site: AttentionSite) -> float:
    """Tolerance of two layers, for scores below 8, as those of these operands are."""
    return 2 * (site.tolerance[0] + 8 * site.tolerance[1])


def _floats(args: Any) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating))


# Roundings of sums and of outputs before they are divided.
LATE = {"late": 1, "late grouped": 3}
DEAR = ("xla", "float16", "flax", "equinox", "haiku")


def _marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.exhaustive] * (n in DEAR)) for n in names]


@pytest.mark.parametrize("name", _marked(WRITINGS))
def test_writings_are_recognised_and_equal(name: str) -> None:
    fn, args, what = WRITINGS[name]
    wrapped = WithKernels(fn)
    text = str(jax.make_jaxpr(wrapped)(*args))
    assert KERNEL.search(text)
    assert "exp " not in text
    (site,) = wrapped.sites
    assert site.what.startswith(what)
    assert not site.why
    both = jax.jit(lambda *args: (wrapped(*args), fn(*args)))
    found, expected = map(_numbers, both(*args))
    within = _within(site)
    assert np.abs(found - expected).max() <= within * np.abs(expected).max()
    long = name == "relative" or (name.startswith("alibi") and name != "alibi in short")
    shifted = 2 * np.log(16) if long else 0.0
    units = 4 + shifted + LATE.get(name, 0)
    unit = 2.0**-11 if name == "float16" else 2.0**-8
    assert site.tolerance[0] == pytest.approx(units * unit)


@pytest.mark.parametrize(
    "name",
    [
        "alibi", "alibi of slopes", "late",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in (
                "nanogpt", "llama", "window", "bias", "relative", "padded", "alibi of keys",
                "alibi of lengths", "late grouped",
            )
        ),
    ],
)  # fmt: skip
def test_gradients_are_those_of_the_kernel(name: str) -> None:
    fn, args, _ = WRITINGS[name]
    numbers = _floats(args)

    @jax.jit
    def step(*args: Any) -> Any:
        return jax.value_and_grad(_loss(fn), numbers)(*args)

    expected = step(*args)  # what a jitted function was traced to before is not in the way
    wrapped = WithKernels(step)
    text = str(jax.make_jaxpr(wrapped)(*args))
    assert {each.group(1) for each in KERNEL.finditer(text)} == {"fwd", "bwd"}
    assert "exp " not in text
    found = jax.jit(wrapped)(*args)
    within = GRADIENTS * _within(wrapped.sites[0])
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(_numbers(x) - _numbers(y)).max() <= within * np.abs(_numbers(y)).max()


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes_are_left_alone(name: str) -> None:
    fn, args, why = LOOK_ALIKES[name]
    wrapped = WithKernels(fn)
    text = str(jax.make_jaxpr(wrapped)(*args))
    assert not KERNEL.search(text)
    if why:
        (site,) = wrapped.sites
        assert why in site.why
    else:
        assert not wrapped.sites


def test_kernels_of_older_devices_take_smaller_heads() -> None:
    fn, _, _ = WRITINGS["nanogpt"]
    args = operands(*[(*FIRST[:3], 136)] * 3)
    for largest, taken in ((128, False), (256, True)):
        wrapped = WithKernels(fn, largest)
        assert bool(KERNEL.search(str(jax.make_jaxpr(wrapped)(*args)))) == taken
        assert taken or "136 features" in wrapped.sites[0].why


def test_a_query_that_sees_no_key_is_as_written() -> None:
    """A mask of the batch hides all keys of its second row: weights are then equal."""
    fn, args, _ = WRITINGS["padded"]
    found = _numbers(jax.jit(WithKernels(fn))(*args))[1]
    mean = _numbers(args[2])[1].mean(axis=0)
    assert np.abs(found - mean).max() < 0.01


def test_masks_of_layers_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four recomputed layers, two of them with a window: two masks are computed and read."""
    read: list[Any] = []
    one_mask = written_attention._one_mask

    def counted(*args: Any, **kwargs: Any) -> Any:
        read.append(one_mask(*args, **kwargs))
        return read[-1]

    monkeypatch.setattr(written_attention, "_one_mask", counted)
    size, (q, k, v) = LENGTH[1], operands(*[LENGTH] * 3)

    def layer(x: Any, window: int) -> Any:
        t, s = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
        allowed = (s <= t) & (s > t - window)
        scores = jnp.einsum("bqhd,bkhd->bhqk", x, k).astype(jnp.float32) / 8
        weights = jax.nn.softmax(jnp.where(allowed, scores, -1e30), axis=-1).astype(v.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    def layers(x: Any) -> Any:
        for window in (size, 4, size, 4):
            x = jax.checkpoint(partial(layer, window=window))(x)
        return x

    wrapped = WithKernels(layers)
    text = str(jax.make_jaxpr(wrapped)(q))
    assert len(KERNEL.findall(text)) == 4
    assert [window for _, window in read] == [0, 4]
    assert sorted("window" in site.what for site in wrapped.sites) == [False, True]
