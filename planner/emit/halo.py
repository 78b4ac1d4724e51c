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
        if split[0].beyond:
            return [_in_ring(op, given[0], split[0], parts[split[0].factor], note)]
        return [_shifted(op, given[0], split[0], parts[split[0].factor], note)]
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
    """The middle of a result with borders, with those of other devices that lie on it added."""
    dim, (before, after) = slide.dim, slide.border
    size, count = x.shape[dim] - before - after, op.mesh.product(axes)
    own = lax.slice_in_dim(x, before, before + size, axis=dim)
    for distance, width in slide.permutes(count, size * count):
        first = before - (distance - 1) * size - width if distance > 0 else before - distance * size
        border = lax.slice_in_dim(x, first, first + width, axis=dim)
        other = _sent(op, border, axes, -distance, False, note)
        edges = [(0, 0, 0)] * x.ndim
        edges[dim] = (size - width, 0, 0) if distance > 0 else (0, size - width, 0)
        own = own + lax.pad(other, jnp.zeros((), x.dtype), edges)
    return own


def _with_borders(
    op: LocalOp, x: Array, slide: Slide, axes: tuple[str, ...], fill: Array | None, note: Note
) -> Array:
    """A shard between the ends of those before and the starts of those behind.

    fill: what is before the first shard and behind the last; None for zeros.
    """
    size, dim, count = x.shape[slide.dim], slide.dim, op.mesh.product(axes)
    pieces, index = {0: x}, lax.axis_index(axes)
    for distance, width in slide.permutes(count, size * count):
        first = size - width if distance > 0 else 0
        part = lax.slice_in_dim(x, first, first + width, axis=dim)
        part = _sent(op, part, axes, distance, False, note)
        if fill is not None:
            outside = index < distance if distance > 0 else index >= count + distance
            part = jnp.where(outside, fill, part)
        pieces[distance] = part
    found = [pieces[distance] for distance in sorted(pieces, reverse=True)]
    beyond = [  # what no device has
        max(0, border - (count - 1) * size) for border in slide.border
    ]
    for wide, at in zip(beyond, (0, len(found) + 1), strict=True):
        if wide:
            shape = (*x.shape[:dim], wide, *x.shape[dim + 1 :])
            found.insert(at, jnp.full(shape, 0 if fill is None else fill, x.dtype))
    return lax.concatenate(found, dim) if len(found) > 1 else x


def _shifted(op: LocalOp, x: Array, slide: Slide, axes: tuple[str, ...], note: Note) -> Array:
    """A shard shifted: the end of one device's shard and the start of the next one's."""
    dim, size, count = slide.dim, x.shape[slide.dim], op.mesh.product(axes)
    by = slide.before - slide.after
    far, near = divmod(by, size)  # from `far + 1` devices before come `near` elements
    sent = dict(slide.permutes(count, size * count))
    pieces: list[Array] = []
    for distance, first, last in ((far + 1, size - near, size), (far, 0, size - near)):
        if first == last:
            continue
        part = lax.slice_in_dim(x, first, last, axis=dim)
        if distance in sent:
            part = _sent(op, part, axes, distance, slide.wraps, note)
        elif distance:
            part = jnp.zeros_like(part)  # from beyond the end
        pieces.append(part)
    return lax.concatenate(pieces, dim) if len(pieces) > 1 else pieces[0]


def _in_ring(op: LocalOp, x: Array, slide: Slide, axes: tuple[str, ...], note: Note) -> Array:
    """A shard shifted in a ring that ends within the last shard."""
    size, by = x.shape[slide.dim], slide.before - slide.after
    inside = size - slide.beyond  # of the last shard

    def cut(first: int, last: int) -> Array:
        return lax.slice_in_dim(x, first, last, axis=slide.dim)

    at_end = lax.axis_index(axes) == op.mesh.product(axes) - 1
    part = cut(0, -by) if by < 0 else cut(size - by, size)
    if by > 0:
        part = jnp.where(at_end, cut(inside - by, inside), part)
    part = _sent(op, part, axes, 1 if by > 0 else -1, True, note)
    found: list[Array] = []
    for last in (size, inside):
        kept = [part, cut(0, last - by)] if by > 0 else [cut(-by, last), part]
        found.append(lax.concatenate([*kept, cut(last, size)], slide.dim))
    return jnp.where(at_end, found[1], found[0])


def _sent(
    op: LocalOp, x: Array, axes: tuple[str, ...], step: int, wraps: bool, note: Note
) -> Array:
    """What another device sends: that `step` before, or behind if it is negative.

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
