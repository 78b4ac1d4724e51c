# pyright: basic
"""Decompositions, solves and transforms, on matrices for which they are well conditioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..program import Drawn, Kind, Type

linalg = lax.linalg


def _definite(x: Any) -> Any:
    """A symmetric, positive definite matrix with eigenvalues far from each other and from 0."""
    n = x.shape[-1]
    small = jnp.clip(jnp.nan_to_num(x), -1, 1) / (4 * n)
    return small + jnp.swapaxes(small, -1, -2) + jnp.diag(jnp.arange(1, n + 1, dtype=x.dtype))


def _finite(x: Any) -> Any:
    """What a library makes of infinities depends on how many columns it works on at once."""
    return jnp.clip(jnp.nan_to_num(x), -9, 9)


def _square(d: Any) -> Drawn | None:
    def make() -> Type:
        n = d.rng.choice((1, 2, 3, 4))
        return Type((*d.shape(d.rng.choice((0, 1, 1, 2)))[:1], n, n), "float32")

    def fits(t: Type) -> bool:
        return t.rank >= 2 and t.shape[-1] == t.shape[-2] and 0 < t.shape[-1] <= 8 and (
            t.dtype == "float32"
        )  # fmt: skip

    x = d.find(fits, make)
    return None if x is None else Drawn((x,))


def _square_and_side(d: Any) -> Drawn | None:
    found = _square(d)
    if found is None:
        return None
    shape = d.types[found.inputs[0]].shape
    right = d.rng.random() < 0.5
    other = (*shape[:-1], d.size())
    y = d.typed(other, "float32")
    return None if y is None else Drawn((found.inputs[0], y), {"lower": right})


def _on(call: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda attrs, bodies, given: call(_definite(given[0]))


def _triangular(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    a, b = given[0], _finite(given[1])
    half = jnp.tril(_definite(a)) if attrs["lower"] else jnp.triu(_definite(a))
    return linalg.triangular_solve(half, b, left_side=True, lower=attrs["lower"])


def _solve(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    a, b = given
    return jnp.linalg.solve(_definite(a), _finite(b))


def _tridiagonal(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    a, b = _finite(given[0]), _finite(given[1])
    lower = jnp.clip(a[..., 0], -1, 1)
    return linalg.tridiagonal_solve(lower, jnp.full_like(lower, 4), lower / 2, b)


def _householder(x: Any) -> Any:
    return linalg.householder_product(jnp.tril(x, -1) / 4, jnp.ones_like(x[..., 0]))


def _reduced(x: Any) -> Any:
    q, r = linalg.qr(x, full_matrices=False)
    return q @ r


def _fft(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (x,) = given
    call = getattr(jnp.fft, attrs["how"])
    return call(x, axis=-1)


def _draw_fft(d: Any) -> Drawn | None:
    how = d.rng.choice(("fft", "rfft", "ifft", "irfft"))
    x = d.value("float32" if how == "rfft" else d.rng.choice(("float32", "complex64")), least=1)
    if x is None or d.types[x].shape[-1] < 2 or not d.types[x].size:
        return None
    return Drawn((x,), {"how": how})


def _permutation(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    _, pivots, _ = linalg.lu(_definite(given[0]))
    return linalg.lu_pivots_to_permutation(pivots, given[0].shape[-2])


KINDS = (
    Kind("cholesky", _square, _on(lambda x: jnp.tril(linalg.cholesky(x))), 0.3),
    Kind("eig", _square, _on(lambda x: jnp.sort(jnp.real(linalg.eig(x)[0]), -1)), 0.1),
    Kind("eigh", _square, _on(lambda x: linalg.eigh(x)[1]), 0.2),
    Kind("fft", _draw_fft, _fft, 0.5),
    Kind("householder", _square, _on(_householder), 0.2),
    Kind("lu", _square, _on(lambda x: linalg.lu(x)[0]), 0.2),
    Kind("permutation", _square, _permutation, 0.15),
    Kind("qr", _square, _on(_reduced), 0.2),
    Kind("solve", _square_and_side, _solve, 0.3),
    Kind("svd", _square, _on(lambda x: linalg.svd(x, compute_uv=False)), 0.2),
    Kind("triangular", _square_and_side, _triangular, 0.4),
    Kind("tridiagonal", _square_and_side, _tridiagonal, 0.2),
)
