"""Tensors as tables of local arrays by logical device, with NumPy and nothing of the package."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Device = tuple[int, ...]


class RefusedError(Exception):
    """An op does not take these operands: their shapes, their number or their devices differ."""


def need(condition: bool, text: str) -> None:
    if not condition:
        raise RefusedError(text)


@dataclass(frozen=True)
class Join:
    """Where a dimension was last joined, and how its parts were before."""

    at: int
    left: Join | None = None
    right: Join | None = None


@dataclass(frozen=True)
class Placed:
    """Local arrays by device, and the history of each data dimension."""

    parts: Mapping[Device, Any]
    joins: tuple[Join | None, ...]

    @property
    def degrees(self) -> tuple[int, ...]:
        return tuple(max(numbers) + 1 for numbers in zip(*self.parts, strict=True))

    @property
    def local(self) -> tuple[int, ...]:
        return next(iter(self.parts.values())).shape

    def whole(self) -> np.ndarray[Any, Any]:
        """One array [replica, dims...]."""
        sizes = [d * n for d, n in zip(self.degrees[1:], self.local, strict=True)]
        found = np.zeros((self.degrees[0], *sizes))
        for device, part in self.parts.items():
            chunks = zip(device[1:], self.local, strict=True)
            found[(device[0], *(slice(i * n, (i + 1) * n) for i, n in chunks))] = part
        return found


def placed(whole: Any, degrees: Sequence[int], cuts: Mapping[int, int]) -> Placed:
    """An input [replica, dims...]; `cuts` says where its data dimensions are joined, from 0."""
    whole = np.asarray(whole, dtype="float64")
    need(whole.shape[0] == degrees[0], "replicas and their degree differ")
    local: list[int] = []
    for size, degree in zip(whole.shape[1:], degrees[1:], strict=True):
        need(size % degree == 0, f"{degree} chunks of {size}")
        local.append(size // degree)
    parts: dict[Device, Any] = {}
    for device in itertools.product(*map(range, degrees)):
        chunks = zip(device[1:], local, strict=True)
        place = (device[0], *(slice(i * n, (i + 1) * n) for i, n in chunks))
        parts[device] = whole[place]
    return Placed(parts, tuple(Join(cuts[i]) if i in cuts else None for i in range(len(local))))


def difference(a: Placed, b: Placed, within: float = 1e-7) -> str:
    """How two values differ, elements that are not finite aside; empty if they do not."""
    if a.parts.keys() != b.parts.keys():
        return f"degrees {a.degrees} and {b.degrees}"
    if a.local != b.local:
        return f"shapes {a.whole().shape} and {b.whole().shape}"
    for device in a.parts:
        left, right = np.asarray(a.parts[device]), np.asarray(b.parts[device])
        finite = np.isfinite(left) & np.isfinite(right)
        bad = finite & ~np.isclose(left, right, rtol=within, atol=within)
        if bad.any():
            return f"{left[bad][0]} and {right[bad][0]} on device {device}"
    return ""
