# pyright: basic
"""Micro-batches of a batch on the devices of a stage, and what becomes of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from ...training.loss_in_parts import InParts
from ...training.loss_parts import Decision
from ...training.microbatch import Parts, merged, of_part, wide
from .processes import away, is_here, started
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
            rows = parts.cut(x, role) if parts.cuts(role) else None
            return [of_part(x, role, i, iter([rows[i]] if rows is not None else ()))
                    for i in range(parts.count)]  # fmt: skip

        return Feed(parts, role, devices, jax.jit(cut, out_shardings=goal))

    def __call__(self, x: Any) -> Sequence[Array]:
        """Micro-batches of a leaf, wherever it is; of its shape and type elsewhere."""
        if not is_here(self.devices):
            shape = list(jnp.shape(x))
            if self.parts and self.parts.cuts(self.role):
                shape[self.parts.axis_of(self.role)] //= self.parts.count
            one = away(shape, x.dtype, whole(self.devices, len(shape)))
            return [one] * (self.parts.count if self.parts else 1)
        return self._cut(jax.device_put(x, self.sharding(x)))

    def sharding(self, x: Any) -> Any:
        """Examples spread over the devices where they divide; keys and scalars on all of them."""
        role = self.role if self.parts else "rows"
        return spread(x, role, self.parts, self.devices)


def spread(x: Any, role: str, parts: Parts | None, devices: Devices) -> Any:
    """A sharding of a leaf of the batch: examples over the devices where they divide.

    Args:
        x: the leaf.
        role: what each part gets of it.
        parts: of the batch; None if there is one.
        devices: of a group.
    """
    count, cut = (parts.count, parts.cuts(role)) if parts else (1, True)
    axis = parts.axis_of(role) if parts else 0
    rank, size = jnp.ndim(x), len(devices)
    key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not cut or key or rank <= axis or x.shape[axis] % (count * size):
        return whole(devices, rank)
    return tiled(devices, tuple(size if d == axis else 1 for d in range(rank)))


@dataclass(frozen=True)
class Whole:
    """What of a loss with edits is computed from the whole batch, before its parts and after.

    params: how many leaves they have; nothing that is computed here reads them.
    """

    inside: InParts
    params: int
    known: dict[Any, Any] = field(default_factory=dict)

    @staticmethod
    def of(inside: InParts | None, params: Any) -> Whole | None:
        """Of a loss with edits, if it has some."""
        return None if inside is None else Whole(inside, len(jax.tree.leaves(params)))

    @property
    def twice(self) -> bool:
        """Whether micro-batches wait for sums over all of them."""
        return self.inside.twice

    @cached_property
    def _before(self) -> Any:
        none = [None] * self.params
        return jax.jit(lambda *leaves: self.inside.extended(none, leaves)[len(leaves) :])

    @cached_property
    def _after(self) -> Any:
        none, count = [None] * self.params, len(self.inside.parts.roles)
        return jax.jit(lambda *xs: self.inside.finished(none, xs[:count], xs[count:]))

    def extended(
        self, leaves: Sequence[Any], devices: Devices, sums: Sequence[Array] = ()
    ) -> list[Any]:
        """The extended batch for one group of devices, with its own leaves unchanged.

        Args:
            leaves: of the batch.
            devices: of the group.
            sums: over all micro-batches, if they wait for them.
        """
        parts = self.inside.parts
        args = [
            jax.device_put(x, spread(x, role, parts, devices)) if is_here(devices) else x
            for x, role in zip(leaves, parts.roles, strict=False)
        ]
        more = started(self._before, args, devices, lambda rank: whole(devices, rank), self.known)
        return self.inside.with_sums([*leaves, *more], [sent(x, devices) for x in sums])

    def finished(
        self, leaves: Sequence[Any], results: Sequence[Array], devices: Devices
    ) -> list[Array]:
        """The loss and the leaves of aux, from what all micro-batches gave."""
        late = self.inside.sliced.late
        if not any(late[1:]):
            return list(results[: len(late)])
        loss, *found = results
        extended = self.extended(leaves, devices)
        placed = [
            jax.device_put(x, whole(devices, jnp.ndim(x))) if is_here(devices) else x
            for x in extended
        ]
        args = [*placed, *(sent(x, devices) for x in found)]
        aux = started(self._after, args, devices, lambda rank: whole(devices, rank), self.known)
        return [loss, *aux]

    def sums(self, results: Sequence[Array]) -> list[Array]:
        """Those that all micro-batches wait for, from what they gave."""
        return list(results[len(results) - len(self.inside.sliced.sums) :])


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
