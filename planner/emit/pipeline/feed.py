# pyright: basic
"""Micro-batches of a batch on the devices of a stage, and what becomes of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ...microbatch import Decision, Parts, merged, of_part, wide
from .processes import away, is_here
from .transfer import Devices, sent, tiled, whole

Array = Any


@dataclass(frozen=True)
class Feed:
    """Cuts a leaf of the batch into micro-batches on one group of devices."""

    parts: Parts | None
    role: str
    devices: Devices
    _cut: Callable[[Array], Sequence[Array]]

    @staticmethod
    def of(parts: Parts | None, leaf: int, devices: Devices, goal: Any) -> Feed:
        if parts is None:
            return Feed(None, "rows", devices, lambda x: (sent(x, devices, goal),))
        role = parts.roles[leaf]

        def cut(x: Array) -> Sequence[Array]:
            rows = parts.cut(x) if role == "rows" else None
            return [of_part(x, role, i, iter([rows[i]] if rows is not None else ()))
                    for i in range(parts.count)]  # fmt: skip

        return Feed(parts, role, devices, jax.jit(cut, out_shardings=goal))

    def __call__(self, x: Any) -> Sequence[Array]:
        """Micro-batches of a leaf, wherever it is."""
        if not is_here(self.devices):
            shape = list(jnp.shape(x))
            if self.parts and self.role == "rows":
                shape[self.parts.axis] //= self.parts.count
            one = away(shape, x.dtype, whole(self.devices, len(shape)))
            return [one] * (self.parts.count if self.parts else 1)
        return self._cut(jax.device_put(x, self.sharding(x)))

    def sharding(self, x: Any) -> Any:
        """Examples spread over the devices where they divide; keys and scalars on all of them."""
        count = self.parts.count if self.parts else 1
        axis = self.parts.axis if self.parts else 0
        rank, size = jnp.ndim(x), len(self.devices)
        key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        if self.role != "rows" or key or rank <= axis or x.shape[axis] % (count * size):
            return whole(self.devices, rank)
        return tiled(self.devices, tuple(size if d == axis else 1 for d in range(rank)))


def joiner(
    parts: Parts | None, decision: Decision, position: int, scale: float, dtype: Any
) -> Callable[..., Array]:
    """Puts one result of all micro-batches together: the loss (position 0) or a leaf of aux."""
    if parts is None:
        return lambda x: x

    def loss(*values: Array) -> Array:
        total = jnp.zeros((), wide(dtype))
        for x in values:
            total = total + (x if scale == 1 else x * scale).astype(total.dtype)
        return total.astype(dtype)

    def aux(*values: Array) -> Array:
        return merged(jnp.stack(values), decision.aux[position - 1], parts)

    return jax.jit(loss if position == 0 else aux)
