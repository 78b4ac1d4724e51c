# pyright: basic
"""Every example, planned and run on host devices, computes what the unsharded step computes."""

from __future__ import annotations

import importlib
from functools import cache

import jax
import numpy as np
import pytest

from planner import plan

EXAMPLES = (
    "encoder_decoder", "gpt", "gpt:block", "llama", "lstm", "moe", "recommender", "unet", "vit",
    "wide_resnet",
)  # fmt: skip
SHAPES = ((1,), (2,), (4,), (8,), (2, 4), (4, 2), (2, 2, 2))
STEPS = 3
# Sums are taken in another order when they are split; three steps of float32 keep four digits.
RTOL, ATOL = 2e-3, 2e-4


@cache
def target(name: str):
    """The small target of an example, or the one that is named after it."""
    module, _, made = name.partition(":")
    return getattr(importlib.import_module(f"examples.{module}"), made or "small")()


@cache
def unsharded(name: str):
    """Parameters, optimizer state and loss after three unsharded steps, and how they spread.

    The spread of an array is how far rounding may carry it: what becomes of it if parameters are
    off by 1e-6. Adafactor divides gradients near zero by their own size, which makes the most of
    it.
    """
    fn, (params, state, batch), _ = target(name)
    step, noise = jax.jit(fn), np.random.default_rng(0)

    def near(x):
        if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
            return x
        return x * (1 + 1e-6 * noise.standard_normal(x.shape)).astype(x.dtype)

    found, losses = run(step, fresh((params, state, batch)))
    other, _ = run(step, fresh((jax.tree.map(near, params), state, batch)))
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(other), strict=True)
    return found, losses, [far(a, b) for a, b in leaves]


def far(a, b):
    """Root of the mean squared difference."""
    apart = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    return float(np.sqrt(np.mean(apart**2))) if apart.size else 0.0


def fresh(args):
    """Copies, since a donated buffer is gone after a step."""
    return jax.tree.map(copy, args)


def copy(x):
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.numpy.array(x)


def run(step, args):
    params, state, batch = args
    losses = []
    for _ in range(STEPS):
        params, state, loss = step(params, state, batch)
        losses.append(float(loss))
    return jax.device_get((params, state)), losses


def assert_same(found, expected, spread):
    """Each element is the same; or an array is as near as rounding lets it be, on the whole."""
    leaves = jax.tree.leaves(found), jax.tree.leaves(expected), spread
    for a, b, off in zip(*leaves, strict=True):
        if far(a, b) <= 4 * off:
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        tolerance = ATOL * max(1.0, float(np.abs(b).max(initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=RTOL, atol=tolerance)


def assert_trains(before, after, losses):
    """The loss goes down and every parameter moves."""
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0]
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        assert np.any(np.asarray(old) != np.asarray(new)), jax.tree_util.keystr(path)


# Loops, as in the LSTM: tests/planner/emit/test_scan.py.
USUAL = {"gpt:block": (2, 2, 2), "recommender": (2, 4)}


def cases():
    """A block and lookups, on one mesh each; the full matrix is run by `make exhaustive`."""
    for name in EXAMPLES:
        for shape in SHAPES:
            label = f"{name}-{'x'.join(map(str, shape))}"
            usual = USUAL.get(name) == shape
            mark = pytest.mark.slow if usual else pytest.mark.exhaustive
            yield pytest.param(name, shape, id=label, marks=mark)


@pytest.mark.parametrize(("name", "shape"), list(cases()))
def test_three_steps_equal_the_unsharded_ones(name: str, shape: tuple[int, ...]) -> None:
    fn, args, settings = target(name)
    devices = int(np.prod(shape))
    p = plan(fn, *args, cluster=f"{devices}xhost", mesh=shape, baselines=False, **settings)
    assert p.mesh.sizes == shape
    step = p.compile(devices=jax.devices()[:devices])
    state, losses = run(step, fresh(args))
    expected_state, expected_losses, spread = unsharded(name)
    assert_trains(args[0], expected_state[0], expected_losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert_same(state, expected_state, spread)
