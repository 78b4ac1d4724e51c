"""New nodes: as JAX would trace them, and the shorter form where two undo each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ir import Literal, TensorType

from .net import Net, Source

Ints = tuple[int, ...]


def like(type_: TensorType, shape: Sequence[int]) -> TensorType:
    """The type with another shape."""
    return TensorType(tuple(shape), type_.dtype)


def transposed(net: Net, x: Source, order: Sequence[int]) -> Source:
    """Dimensions in another order."""
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    item = net.maker(x)
    if item is not None and item.node.op == "transpose":
        inner = cast("Ints", item.node.attr("permutation"))
        return transposed(net, item.inputs[0], [inner[d] for d in order])
    type_ = net.type_of(x)
    shape = like(type_, [type_.shape[d] for d in order])
    return net.make("transpose", (x,), shape, (("permutation", order),))


def reshaped(net: Net, x: Source, shape: Sequence[int]) -> Source:
    """The same elements under other lengths."""
    type_ = net.type_of(x)
    if type_.shape == tuple(shape):
        return x
    attrs = (("dimensions", None), ("new_sizes", tuple(shape)))
    return net.make("reshape", (x,), like(type_, shape), attrs)


def part(net: Net, x: Source, dim: int, start: int, stop: int) -> Source:
    """Elements from `start` up to `stop` along a dimension."""
    type_ = net.type_of(x)
    if (start, stop) == (0, type_.shape[dim]):
        return x
    item = net.maker(x)
    if item is not None and item.node.op == "slice" and item.node.attr("strides") is None:
        starts = cast("Ints", item.node.attr("start_indices"))
        inner = net.type_of(item.inputs[0]).shape
        whole = [d for d in range(len(inner)) if d != dim and inner[d] != type_.shape[d]]
        if not whole:
            return part(net, item.inputs[0], dim, starts[dim] + start, starts[dim] + stop)
    limits = [stop if d == dim else n for d, n in enumerate(type_.shape)]
    starts = tuple(start if d == dim else 0 for d in range(type_.rank))
    shape = [b - a for a, b in zip(starts, limits, strict=True)]
    attrs = (("limit_indices", tuple(limits)), ("start_indices", starts), ("strides", None))
    return net.make("slice", (x,), like(type_, shape), attrs)


def joined(net: Net, parts: Sequence[Source], dim: int) -> Source:
    """Concatenation; parts that are new ones themselves are taken apart."""
    flat: list[Source] = []
    for source in parts:
        item = net.maker(source)
        new = item is not None and item.order is None and item.node.op == "concatenate"
        if new and item is not None and item.node.attr("dimension") == dim:
            flat.extend(item.inputs)
        else:
            flat.append(source)
    type_ = net.type_of(flat[0])
    length = sum(net.type_of(source).shape[dim] for source in flat)
    shape = (*type_.shape[:dim], length, *type_.shape[dim + 1 :])
    return net.make("concatenate", flat, like(type_, shape), (("dimension", dim),))


def spread(net: Net, x: Source, shape: Sequence[int], dims: Sequence[int]) -> Source:
    """Dimension k of x as dimension dims[k] of a larger array."""
    attrs = (("broadcast_dimensions", tuple(dims)), ("shape", tuple(shape)))
    return net.make("broadcast_in_dim", (x,), like(net.type_of(x), shape), attrs)


def binary(net: Net, op: str, a: Source, b: Source) -> Source:
    """One op on two values of one shape, or with a scalar."""
    attrs = (("out_dtype", None),) if op == "mul" else ()
    type_ = net.type_of(b if isinstance(a, Literal) else a)
    return net.make(op, (a, b), type_, attrs)
