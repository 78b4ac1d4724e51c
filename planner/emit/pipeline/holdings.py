# pyright: basic
"""Who holds which parameter: leaves in one place, or stacks of layers in pieces on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...pipeline.cut.uses import Use
from .places import At, Stack, Where
from .processes import away, is_here
from .transfer import Devices, sent, whole

Array = Any


class Pieces:
    """An array whose parts along the first dimension lie on different devices.

    It is a leaf of a pytree like any array. `np.asarray` and `jnp.asarray` put it together.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = tuple(parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> Any:
        return self.parts[0].dtype

    @property
    def ndim(self) -> int:
        return self.parts[0].ndim

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.concatenate([np.asarray(part) for part in self.parts]).astype(dtype or self.dtype)

    def __jax_array__(self) -> Array:
        return jnp.asarray(np.asarray(self))

    def __repr__(self) -> str:
        sizes = "+".join(str(part.shape[0]) for part in self.parts)
        return f"Pieces({sizes} of {self.dtype}{list(self.shape)})"


def copied(x: Any) -> Any:
    """A copy of an array of JAX that this process holds, or of its pieces; others as they are."""
    if isinstance(x, Pieces):
        return Pieces([copied(part) for part in x.parts])
    return x.copy() if isinstance(x, jax.Array) and x.is_fully_addressable else x


def placed(x: Any, where: Where, groups: Sequence[Devices], sharding: Callable[[int], Any]) -> Any:
    """An array, from wherever it is, in its place; it stays if it is there already.

    Args:
        x: an array of JAX or NumPy, or pieces.
        where: its place.
        groups: devices of each group.
        sharding: number of the piece -> sharding there; whole on every device if None.
    """
    if isinstance(where, At):
        if isinstance(x, Pieces):
            x = np.asarray(x)
        return _put(x, groups[where.group], sharding(0))
    if isinstance(x, Pieces) and [p.shape[0] for p in x.parts] == [
        high - low for _, low, high in where.pieces
    ]:
        parts = x.parts
    else:
        x = np.asarray(x) if isinstance(x, Pieces) else x
        parts = [x[low:high] for _, low, high in where.pieces]
    return Pieces(
        [
            _put(part, groups[group], sharding(n))
            for n, (part, (group, _, _)) in enumerate(zip(parts, where.pieces, strict=True))
        ]
    )


def _put(x: Any, devices: Devices, goal: Any) -> Array:
    goal = goal or whole(devices, np.ndim(x))
    if not is_here(devices) and not (isinstance(x, jax.Array) and x.committed):
        return away(x.shape, x.dtype, goal)
    if isinstance(x, jax.Array) and x.committed:
        if x.sharding.is_equivalent_to(goal, x.ndim):
            return x
        if not x.is_fully_addressable or set(x.sharding.device_set) == set(devices):
            return sent(x, devices, goal)
    return jax.device_put(x, goal, may_alias=False)


def where_of(uses: Sequence[tuple[int, Use]], group_of: Sequence[int]) -> Where:
    """Place of a leaf that stages read.

    Args:
        uses: (chunk, what it reads) of all readers, in order of chunks.
        group_of: of each chunk.
    """
    if not uses:
        return At(0)
    if uses[0][1].whole:
        return At(group_of[uses[0][0]])
    first: dict[tuple[int, int], int] = {}
    for chunk, use in uses:
        first.setdefault((use.low, use.high), group_of[chunk])
    return Stack(tuple((group, low, high) for (low, high), group in sorted(first.items())))
