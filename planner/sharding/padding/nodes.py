# pyright: basic
"""Nodes that edits add to a program: pads, slices, zeros, and masks that hide what is in a pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import Literal, Node, TensorType, dtype_kind
from ir.trace import Binding

from ..recompute.draft import Item, Numbers, Value
from .rules import Number

_INT = "int32"


def can_be_padded(type_: TensorType) -> bool:
    """Whether a pad can be put behind values of a type: keys and tokens have no numbers."""
    return dtype_kind(type_.dtype) in ("bool", "int", "float", "complex")


class Writer:
    """Writes nodes behind each other; `like` is the item that they serve, with its source line."""

    def __init__(self, numbers: Numbers, items: list[Item]) -> None:
        self.numbers, self.items = numbers, items

    def number(self, value: Number, dtype: str) -> Literal:
        """A number of a type."""
        return _number(value, dtype)

    def padded(self, x: Value, shape: Sequence[int], like: Item) -> int:
        """`x` with zeros behind it, up to a shape."""
        type_ = self._type(x)
        config = tuple((0, big - n, 0) for n, big in zip(type_.shape, shape, strict=True))
        result = TensorType(tuple(shape), type_.dtype)
        params = {"padding_config": config}
        return self._put(lax.pad_p, (x, _number(0, type_.dtype)), result, params, params, like)

    def cut(self, x: Value, shape: Sequence[int], like: Item) -> int:
        """The first elements of `x`, down to a shape."""
        result = TensorType(tuple(shape), self._type(x).dtype)
        params = {
            "start_indices": (0,) * len(shape),
            "limit_indices": tuple(shape),
            "strides": None,
        }
        return self._put(lax.slice_p, (x,), result, params, params, like)

    def filled(self, x: int, sizes: Mapping[int, int], fill: Number, like: Item) -> int:
        """`x` with `fill` wherever an index along dimension d is `sizes[d]` or more."""
        type_ = self._type(x)
        inside: int | None = None
        for d, size in sorted(sizes.items()):
            kept = self._below(self._places(type_.shape, d, like), size, like)
            inside = kept if inside is None else self._both(inside, kept, like)
        if inside is None:
            return x
        return self._choose(inside, self._same(fill, type_, like), x, like)

    def zeros(self, type_: TensorType, like: Item) -> int:
        """Zeros of a type."""
        return self._same(0, type_, like)

    def within(self, indices: Value, size: int, mode: str, like: Item) -> Value:
        """Indices that mean the same in a longer dimension as they did in one of `size`.

        Args:
            indices: indices along one dimension.
            size: its elements before its padding.
            mode: what indices out of range mean: "FILL_OR_DROP", or else the nearest one.
            like: the lookup.
        """
        type_ = self._type(indices)
        if int(jnp.iinfo(type_.dtype).max) < size:
            return indices  # none is beyond
        if mode != "FILL_OR_DROP":
            last = _number(size - 1, type_.dtype)
            return self._put(lax.min_p, (indices, last), type_, {}, {}, like)
        # Before the first element there is nothing; an unsigned index is as far out as it goes.
        unsigned = type_.dtype.startswith("uint")
        nowhere = int(jnp.iinfo(type_.dtype).max) if unsigned else -1
        return self._choose(
            self._below(indices, size, like), self._same(nowhere, type_, like), indices, like
        )

    def counted(self, length: int, like: Item) -> int:
        """The numbers 0 to `length` - 1."""
        return self._places((length,), 0, like)

    def row(self, x: int, index: Value, like: Item) -> int:
        """The slice of `x` at an index of its first dimension, which it lacks."""
        type_ = self._type(x)
        sizes = 1, *type_.shape[1:]
        at = index, *[_number(0, _INT)] * (type_.rank - 1)
        sliced = {"slice_sizes": sizes}
        result = TensorType(sizes, type_.dtype)
        one = self._put(lax.dynamic_slice_p, (x, *at), result, sliced, sliced, like)
        gone = {"dimensions": (0,)}
        result = TensorType(sizes[1:], type_.dtype)
        return self._put(lax.squeeze_p, (one,), result, gone, gone, like)

    def with_row(self, x: int, row: Value, index: Value, like: Item) -> int:
        """`x` with another slice at an index of its first dimension."""
        type_ = self._type(x)
        at = index, *[_number(0, _INT)] * (type_.rank - 1)
        sizes = 1, *type_.shape[1:]
        attrs = {"broadcast_dimensions": tuple(range(1, type_.rank)), "shape": sizes}
        one = self._put(
            lax.broadcast_in_dim_p, (row,), TensorType(sizes, type_.dtype), attrs,
            {**attrs, "sharding": None}, like,
        )  # fmt: skip
        return self._put(lax.dynamic_update_slice_p, (x, one, *at), type_, {}, {}, like)

    def _places(self, shape: Sequence[int], d: int, like: Item) -> int:
        result = TensorType(tuple(shape), _INT)
        attrs = {"dimension": d, "dtype": _INT, "shape": tuple(shape)}
        params = {**attrs, "dtype": jnp.dtype(_INT), "sharding": None}
        return self._put(lax.iota_p, (), result, attrs, params, like)

    def _below(self, x: Value, size: int, like: Item) -> int:
        type_ = self._type(x)
        result = TensorType(type_.shape, "bool")
        return self._put(lax.lt_p, (x, _number(size, type_.dtype)), result, {}, {}, like)

    def _both(self, a: int, b: int, like: Item) -> int:
        return self._put(lax.and_p, (a, b), self._type(a), {}, {}, like)

    def _same(self, number: Number, type_: TensorType, like: Item) -> int:
        attrs = {"broadcast_dimensions": (), "shape": type_.shape}
        operand = _number(number, type_.dtype)
        return self._put(
            lax.broadcast_in_dim_p, (operand,), type_, attrs, {**attrs, "sharding": None}, like
        )

    def _choose(self, which: int, no: Value, yes: Value, like: Item) -> int:
        return self._put(lax.select_n_p, (which, no, yes), self._type(yes), {}, {}, like)

    def _put(
        self, primitive: Any, ins: Sequence[Value], result: TensorType, attrs: Mapping[str, Any],
        params: Mapping[str, Any], like: Item,
    ) -> int:  # fmt: skip
        node = Node(
            primitive.name, (), (result,), tuple(sorted(attrs.items())), (), like.node.source
        )
        binding = Binding(primitive, dict(params), backward=like.backward)
        made = self.numbers.new(result)
        self.items.append(Item(node, binding, list(ins), [made], like.backward))
        return made

    def _type(self, value: Value) -> TensorType:
        return value.type if isinstance(value, Literal) else self.numbers.types[value]


def _number(value: Number, dtype: str) -> Literal:
    convert = {"bool": bool, "int": int, "float": float, "complex": complex}[dtype_kind(dtype)]
    return Literal(convert(value), TensorType((), dtype))
