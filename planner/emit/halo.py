# pyright: basic
"""Shifts of values that are split along the shifted dimension: borders go to the neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from ir import ReshardStep, TensorType, replicated

from .local_op import LocalOp
from .slices import bind_inside

Array = Any
Note = Callable[[ReshardStep, TensorType, float], None]


def shifted(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Shifts a shard; what enters it comes from the device before it, or behind it, in one permute.

    A device that has none there gets zeros, unless the shift goes around the end.
    """
    params, (x,) = op.binding.params, operands
    axis, by = params["axis"], params["by"]
    axes = op.strategy.operands[0].dims[axis]
    if not axes:
        return bind_inside(op.node.op, op.binding, operands, op.params)
    count, size, step = op.mesh.product(axes), x.shape[axis], 1 if by > 0 else -1
    edge = size - by if by > 0 else -by  # between what stays and what leaves
    parts = (lax.slice_in_dim(x, 0, edge, axis=axis), lax.slice_in_dim(x, edge, size, axis=axis))
    leaves, stays = parts[::-1] if by > 0 else parts
    pairs = [
        (i, (i + step) % count) for i in range(count) if params["wraps"] or 0 <= i + step < count
    ]
    state = replicated(x.ndim)
    sent = TensorType(tuple(leaves.shape), op.operands[0].dtype)
    note(ReshardStep("collective-permute", axes, -1, -1, "", state, state), sent, op.count)
    enters = lax.ppermute(leaves, axes, pairs)
    return [lax.concatenate([enters, stays] if by > 0 else [stays, enters], axis)]
