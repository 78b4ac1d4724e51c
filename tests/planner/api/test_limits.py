# pyright: basic
"""What docs/how-to/limits.md says of callbacks, kernels and other programs: runs, or one error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback, pallas, sparse

import meshwright
from meshwright import PlanError, parallelize
from tests.planner.programs import array, slow_machine

quick: Any = functools.partial(parallelize, cluster=slow_machine(8), baselines=False)
X, W = array(16, 8), array(8, 8, seed=1)
ALIKE = jax.ShapeDtypeStruct(X.shape, X.dtype)
CALLS: list[np.ndarray] = []


def kept(x: Any) -> np.float32:
    CALLS.append(np.asarray(x))
    return np.float32(len(CALLS))


def doubled(source: Any, target: Any) -> None:
    target[...] = source[...] * 2


def kernel(x: Any) -> Any:
    """A Pallas kernel on blocks of eight rows."""
    rows = pallas.BlockSpec((8, 8), lambda i: (i, 0))
    return pallas.pallas_call(
        doubled, out_shape=ALIKE, grid=(2,), in_specs=[rows], out_specs=rows, interpret=True
    )(x)


def with_print(x: Any, w: Any) -> Any:
    jax.debug.print("{}", x.shape)
    return x @ w


def with_error(x: Any, w: Any) -> Any:
    eqx = pytest.importorskip("equinox", reason="needs Equinox; `make .venv` installs it")
    return eqx.error_if(x, x.sum() > 1e9, "too large") @ w


HELD = jax.new_ref(jnp.ones(8))


def with_reference(x: Any, w: Any) -> Any:
    held = jax.new_ref(x)
    held[0] = x[1]
    return held[...] @ w


# Each runs as under `jax.jit`; the operation that runs whole on every device, if there is one.
RUNS: dict[str, tuple[Callable[..., Any], str]] = {
    "kernel": (lambda x, w: kernel(x @ w) @ w, "pallas_call"),
    "kernel in a loop": (
        lambda x, w: jax.lax.scan(lambda c, _: (kernel(c @ w), None), x, length=2)[0],
        "pallas_call",
    ),
    "pure_callback": (
        lambda x, w: jax.pure_callback(np.sin, ALIKE, x) @ w,
        "pure_callback",
    ),
    "print": (with_print, ""),
    "error_if": (with_error, "pure_callback"),
    "sparse": (lambda x, w: x @ (sparse.BCOO.fromdense(w, nse=64) @ w), "bcoo_dot_general"),
    "solve": (lambda x, w: jnp.linalg.solve(w @ w.T + jnp.eye(8), x.T), ""),
    "attention": (lambda x, w: jax.nn.dot_product_attention(*[x[None, :, None]] * 3), ""),
    "groups": (lambda x, w: jax.lax.ragged_dot(x, w[None], jnp.array([16])), ""),
    "while": (lambda x, w: jax.lax.while_loop(lambda c: c.sum() > 1, lambda c: c / 2, x), ""),
    "reference": (with_reference, ""),
    "random": (lambda x, w: x + jax.random.normal(jax.random.key(0), x.shape), ""),
    "other generator": (
        lambda x, w: x + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape),
        "",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_it_runs_as_under_jit(name: str) -> None:
    fn, whole = RUNS[name]
    mine = quick(fn)
    np.testing.assert_allclose(mine(X, W), jax.jit(fn)(X, W), 1e-4, 1e-4)
    warnings = mine.plan.file.whole.warnings
    told = [text for text in warnings if "runs whole on every device" in text]
    assert bool(told) == bool(whole)
    assert not whole or f"'{whole}'" in " ".join(told)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_callback_with_effects_runs_once(ordered: bool) -> None:
    CALLS.clear()
    mine = quick(lambda x: io_callback(kept, jax.ShapeDtypeStruct((), "float32"), x,
                                       ordered=ordered) * 2)  # fmt: skip
    assert mine(X) == 2
    assert mine(X) == 4
    assert len(CALLS) == 2
    np.testing.assert_array_equal(CALLS[0], X)


def test_a_kernel_is_a_part_of_what_a_plan_is_for(tmp_path: Path) -> None:
    def tripled(source: Any, target: Any) -> None:
        target[...] = source[...] * 3

    def of(body: Any) -> Any:
        return lambda x: pallas.pallas_call(body, out_shape=ALIKE, interpret=True)(x).sum()

    plan = meshwright.plan(of(doubled), X, cluster=slow_machine(8), baselines=False)
    plan.save(tmp_path / "plan.json")
    loaded = meshwright.load(tmp_path / "plan.json")
    np.testing.assert_allclose(loaded.bind(of(doubled), X).compile()(X), X.sum() * 2, rtol=1e-5)
    with pytest.raises(PlanError, match="for another function"):
        loaded.bind(of(tripled), X)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "reference": (lambda x: x + HELD[...], "captures a reference"),
    "pmap": (lambda x: jax.pmap(jnp.sin)(x[:8]), "maps over the axes .*_pmap_axis_name"),
    "branch of Python": (lambda x: x if x.sum() > 0 else -x, "Attempted boolean conversion"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_error_says_what_to_do(name: str) -> None:
    fn, message = REFUSED[name]
    with pytest.raises((PlanError, jax.errors.JAXTypeError), match=message):
        quick(fn)(X)
