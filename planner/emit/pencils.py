# pyright: basic
"""Fourier transforms of several dimensions whose first one is split.

Every device transforms the other dimensions of its shard. Then the devices exchange: each gets the
first dimension whole, of a part of the last one, transforms along it, and sends the parts back.
Inverse transforms go the other way round. The last dimension is padded for the exchange where its
size does not divide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import PENCILS, ReshardStep, TensorType, replicated

from .local_op import LocalOp
from .slices import bind_inside

Array = Any
Note = Callable[[ReshardStep, TensorType, float], None]


def fourier(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Runs a Fourier transform on a shard."""
    axes = op.strategy.factor_axes(op.mesh).get(PENCILS, ())
    if not axes:
        return bind_inside(op.node.op, op.binding, operands, op.params)
    (x,) = operands
    kind, lengths = op.params["fft_type"], tuple(op.params["fft_lengths"])
    forward = kind in (lax.FftType.FFT, lax.FftType.RFFT)

    def bound(x: Array, kind: Any, lengths: tuple[int, ...]) -> Array:
        params = {**op.params, "fft_type": kind, "fft_lengths": lengths}
        return bind_inside(op.node.op, op.binding, [x], params)[0]

    def along_first(x: Array) -> Array:
        first, last = x.ndim - len(lengths), x.ndim - 1
        width, count = x.shape[-1], op.mesh.product(axes)
        x = jnp.pad(x, [*[(0, 0)] * last, (0, -width % count)])
        x = _exchanged(op, x, axes, last, first, note)
        across = lax.FftType.FFT if forward else lax.FftType.IFFT
        x = jnp.moveaxis(bound(jnp.moveaxis(x, first, -1), across, lengths[:1]), -1, first)
        x = _exchanged(op, x, axes, first, last, note)
        return lax.slice_in_dim(x, 0, width, axis=last)

    if forward:
        return [along_first(bound(x, kind, lengths[1:]))]
    return [bound(along_first(x), kind, lengths[1:])]


def _exchanged(
    op: LocalOp, x: Array, axes: tuple[str, ...], split: int, joined: int, note: Note
) -> Array:
    """The array with one dimension split among devices and another one whole."""
    state = replicated(x.ndim)
    step = ReshardStep("all-to-all", axes, joined, split, "", state, state)
    note(step, TensorType(tuple(x.shape), str(x.dtype)), op.count)
    return lax.all_to_all(x, axes, split, joined, tiled=True)
