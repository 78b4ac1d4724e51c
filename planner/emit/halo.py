# pyright: basic
"""Ops that slide along a dimension that is split: borders of shards go to the neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import SHIFT, Node, ReshardStep, Slide, TensorType, replicated, slides

from .local_op import LocalOp
from .slices import bind_inside

Array = Any
Note = Callable[[ReshardStep, TensorType, float], None]


def sliding(op: LocalOp, operands: Sequence[Array], note: Note) -> list[Array]:
    """Runs an op of `ir.SLIDING` on a shard with the borders that it needs of its neighbours."""
    parts, given, params = op.strategy.factor_axes(op.mesh), list(operands), op.params
    split = [each for each in slides(op.node, op.operands) if each.factor in parts]
    if op.node.op == SHIFT and split:
        return [_shifted(op, given[0], parts[split[0].factor], note)]
    for slide in split:
        for k in slide.operands:
            fill = _fill(op.node, given[k].dtype)
            given[k] = _with_borders(op, given[k], slide, parts[slide.factor], fill, note)
        padding = [tuple(edges) for edges in params["padding"]]
        padding[slide.number] = slide.padding
        params = {**params, "padding": tuple(padding)}
    found = bind_inside(op.node.op, op.binding, given, params)
    for slide in reversed(split):
        if slide.returns:
            found = [_returned(op, found[0], slide, parts[slide.factor], note)]
    return found


def _returned(op: LocalOp, x: Array, slide: Slide, axes: tuple[str, ...], note: Note) -> Array:
    """The middle of a result with borders, with those of its neighbours that lie on it added."""
    dim, (before, after) = slide.dim, slide.border
    size = x.shape[dim] - before - after
    own = lax.slice_in_dim(x, before, before + size, axis=dim)
    for width, start, step in ((before, 0, -1), (after, before + size, 1)):
        if width:
            border = lax.slice_in_dim(x, start, start + width, axis=dim)
            other = _sent(op, border, axes, step, False, note)
            edges = [(0, 0, 0)] * x.ndim
            edges[dim] = (size - width, 0, 0) if step < 0 else (0, size - width, 0)
            own = own + lax.pad(other, jnp.zeros((), x.dtype), edges)
    return own


def _with_borders(
    op: LocalOp, x: Array, slide: Slide, axes: tuple[str, ...], fill: Array | None, note: Note
) -> Array:
    """A shard between the end of the one before and the start of the one behind.

    fill: what is before the first shard and behind the last; None for zeros.
    """
    size, dim, count = x.shape[slide.dim], slide.dim, op.mesh.product(axes)
    pieces = [x]
    if slide.before:
        end = lax.slice_in_dim(x, size - slide.before, size, axis=dim)
        pieces.insert(0, _filled(_sent(op, end, axes, 1, False, note), axes, 0, fill))
    if slide.after:
        start = lax.slice_in_dim(x, 0, slide.after, axis=dim)
        pieces.append(_filled(_sent(op, start, axes, -1, False, note), axes, count - 1, fill))
    return lax.concatenate(pieces, dim) if len(pieces) > 1 else x


def _filled(border: Array, axes: tuple[str, ...], end: int, fill: Array | None) -> Array:
    """What came from a neighbour, and on the device at the end what is there instead."""
    return border if fill is None else jnp.where(lax.axis_index(axes) == end, fill, border)


def _shifted(op: LocalOp, x: Array, axes: tuple[str, ...], note: Note) -> Array:
    """A shard shifted; what enters it comes from the device before it, or behind it."""
    params = op.binding.params
    axis, by = params["axis"], params["by"]
    size = x.shape[axis]
    edge = size - by if by > 0 else -by  # between what stays and what leaves
    parts = (lax.slice_in_dim(x, 0, edge, axis=axis), lax.slice_in_dim(x, edge, size, axis=axis))
    leaves, stays = parts[::-1] if by > 0 else parts
    enters = _sent(op, leaves, axes, 1 if by > 0 else -1, params["wraps"], note)
    return lax.concatenate([enters, stays] if by > 0 else [stays, enters], axis)


def _sent(
    op: LocalOp, x: Array, axes: tuple[str, ...], step: int, wraps: bool, note: Note
) -> Array:
    """What the neighbour sends: the device before for a step of 1, the one behind for -1.

    A device that has none there gets zeros, unless neighbours go around the end.
    """
    count, state = op.mesh.product(axes), replicated(x.ndim)
    pairs = [(i, (i + step) % count) for i in range(count) if wraps or 0 <= i + step < count]
    sent = TensorType(tuple(x.shape), op.operands[0].dtype)
    note(ReshardStep("collective-permute", axes, -1, -1, "", state, state), sent, op.count)
    return lax.ppermute(x, axes, pairs)


def _least(dtype: Any) -> Array:
    """The neutral element of a maximum."""
    return _end(dtype, -jnp.inf, "min")


def _largest(dtype: Any) -> Array:
    """The neutral element of a minimum."""
    return _end(dtype, jnp.inf, "max")


def _end(dtype: Any, infinite: float, name: str) -> Array:
    """The end of a type's values; of truth values, false is the least."""
    if dtype == jnp.bool_:
        return jnp.array(name == "max")
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.array(getattr(jnp.iinfo(dtype), name), dtype)
    return jnp.array(infinite, dtype)


def _fill(node: Node, dtype: Any) -> Array | None:
    """What is beyond the ends of an operand; None for zeros."""
    chosen = _FILLS.get(dict(node.attrs).get("select_prim", node.op))
    return None if chosen is None else chosen(dtype)


# By op, and by the comparison of an element that is kept with another one.
_FILLS: Mapping[Any, Callable[[Any], Array]] = {
    "reduce_window_max": _least, "ge": _least, "reduce_window_min": _largest, "le": _largest,
}  # fmt: skip
