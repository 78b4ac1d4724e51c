# pyright: basic
"""Whether two results are the same, as far as rounding goes and no further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

Plain = np.ndarray[Any, Any]
ULPS = 8.0  # of one element that need no further look
SPREADS = 8.0  # of the noisy results that a rounding error may be off
POLE = 1e3  # larger values whose sign rounding decides are those beside a pole


class Difference(NamedTuple):
    """Where a result is not what was expected."""

    result: int
    place: tuple[int, ...]
    found: str
    expected: str
    count: int
    size: int

    def __str__(self) -> str:
        return (
            f"result {self.result} at {list(self.place)}: {self.found}, expected {self.expected} "
            f"({self.count} of {self.size} elements)"
        )


def differences(
    found: Sequence[Plain], expected: Sequence[Plain], *, has_complex: bool = False
) -> list[Plain]:
    """For each result the elements that are not equal up to a few units in the last place.

    Args:
        found: what is judged.
        expected: the reference.
        has_complex: whether the program has complex values: what is made of an infinite one is
            infinite or NaN, as its parts happen to be.
    """
    return [_far(a, b, has_complex) for a, b in zip(found, expected, strict=True)]


def _far(a: Plain, b: Plain, has_complex: bool) -> Plain:
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.ones(b.shape or (1,), bool)
    with np.errstate(all="ignore"):
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return np.asarray(a != b)
        x, y = _wide(a), _wide(b)
        same = (x == y) | (_nan(x) & _nan(y))
        if has_complex:
            same |= ~np.isfinite(x) & ~np.isfinite(y)
        ulps = 2.0 if a.dtype.itemsize <= 2 else ULPS
        info = jnp.finfo(a.dtype)  # below its least normal number all may be flushed to zero
        near = np.abs(x - y) <= ulps * float(info.eps) * np.abs(y) + float(info.tiny)
        return np.asarray(~(same | (near & np.isfinite(x) & np.isfinite(y))))


def _nan(x: Plain) -> Plain:
    return np.isnan(x)


def _wide(x: Plain) -> Plain:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def judged(
    found: Sequence[Plain],
    expected: Sequence[Plain],
    noisy: Sequence[Sequence[Plain]],
    *,
    has_complex: bool = False,
) -> tuple[list[Plain], bool]:
    """Elements that rounding cannot explain, and whether there are some that noise overturns.

    Args:
        found: what is judged.
        expected: the reference.
        noisy: the reference with rounding errors, several times.
        has_complex: as for `differences`.
    """
    wrong: list[Plain] = []
    chaotic = False
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        far = _far(a, b, has_complex)
        if far.any() and a.shape == b.shape:
            allowed, unsure = _explained(a, b, [run[k] for run in noisy])
            chaotic |= bool((far & unsure).any())
            far = far & ~allowed & ~unsure
        wrong.append(far)
    return wrong, chaotic


def _explained(x: Plain, y: Plain, noisy: Sequence[Plain]) -> tuple[Plain, Plain]:
    """Elements within what noise does, and elements that noise turns into something else."""
    if not jnp.issubdtype(y.dtype, jnp.inexact):
        unsure = np.any([run != y for run in noisy], axis=0)
        return np.zeros(y.shape, bool), np.asarray(unsure)
    a, b, runs = _wide(x), _wide(y), np.stack([_wide(run) for run in noisy])
    with np.errstate(all="ignore"):
        finite = np.isfinite(runs)
        unsure = (finite != np.isfinite(b)).any(0) | (_nan(runs) != _nan(b)).any(0)
        if y.dtype.kind != "c":
            across = (np.sign(runs) != np.sign(b)).any(0)
            unsure = unsure | (across & (np.abs(runs).min(0) > POLE))
        spread = np.abs(runs - b).max(0)
        # The smallest terms of a sum are lost among large ones that cancel, or they are not.
        largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        least = float(jnp.finfo(y.dtype).eps) ** 2 * largest
        allowed = np.abs(a - b) <= SPREADS * spread + least
        large = spread > 0.05 * np.abs(b) + 1e-3
    return np.asarray(allowed & ~large), np.asarray(unsure | (large & allowed))


def described(
    wrong: Sequence[Plain], found: Sequence[Plain], expected: Sequence[Plain]
) -> list[Difference]:
    """The first element of each result that is off."""
    rows: list[Difference] = []
    for k, far in enumerate(wrong):
        if far.any():
            a, b = found[k], expected[k]
            if a.shape != b.shape or a.dtype != b.dtype:
                rows.append(Difference(k, (), f"{a.dtype}{a.shape}", f"{b.dtype}{b.shape}", 1, 1))
                continue
            place = tuple(int(i) for i in np.argwhere(far)[0])[: a.ndim]
            rows.append(
                Difference(k, place, str(a[place]), str(b[place]), int(far.sum()), far.size)
            )
    return rows
