# pyright: basic
"""NumPy computes on a device what JAX does: windows, groups and functions of random sizes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.substitutions.computes import JAX, NUMPY

IMAGES = ((2, 4, 5, 6), (1, 6, 7, 3), (3, 2, 2, 9))


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("padding", [0, 1])
def test_windows_and_groups(shape: tuple[int, ...], padding: int) -> None:
    rng = np.random.default_rng(shape[0])
    x = rng.integers(-5, 6, shape).astype("float64")
    window, strides = tuple(rng.integers(1, 3, 2).tolist()), tuple(rng.integers(1, 4, 2).tolist())
    with jax.enable_x64(True):
        for groups in (1, 2):
            w = rng.integers(-5, 6, (4, shape[1] // groups, *window)).astype("float64")
            found = [c.image(x, w, strides, padding, groups) for c in (JAX, NUMPY)]
            np.testing.assert_allclose(*found)
        np.testing.assert_allclose(*(c.average(x, window, strides, padding) for c in (JAX, NUMPY)))
        np.testing.assert_allclose(*(c.largest(x, window, strides, padding) for c in (JAX, NUMPY)))


@pytest.mark.parametrize("name", JAX.functions)
def test_functions(name: str) -> None:
    x, y = np.linspace(-3, 4, 15), np.linspace(1, 2, 15)
    args = (x, y) if name in ("add", "mul", "sub", "div") else (np.abs(x),)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        np.testing.assert_allclose(*(c.functions[name](*args) for c in (JAX, NUMPY)))
