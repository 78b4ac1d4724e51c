# pyright: basic
"""Nodes that ops become which move elements along a padded dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax import lax

from ir import SHIFT, Node, TensorType
from ir.shifts import ShiftPrimitive
from ir.trace import Binding

from ..recompute.draft import Item, Numbers, Value
from .nodes import Writer

Places = Mapping[int, int]


class MovedWriter(Writer):
    """Writes shifts, rows, places and masks."""

    def __init__(self, numbers: Numbers, items: list[Item]) -> None:
        super().__init__(numbers, items)
        self._known = dict[tuple[Value, int, int], int]()  # value, dimension, places -> its shift

    def sliced(self, x: Value, rows: Sequence[tuple[int, int, int]], like: Item) -> Value:
        """Elements of `x` from a first to a last one, by a step, in each dimension."""
        type_ = self._type(x)
        if [*rows] == [(0, n, 1) for n in type_.shape]:
            return x
        shape = tuple(max(0, -(-(b - a) // s)) for a, b, s in rows)
        starts, ends, steps = zip(*rows, strict=True)
        params = {"start_indices": starts, "limit_indices": ends, "strides": steps}
        result = TensorType(shape, type_.dtype)
        return self._put(lax.slice_p, (x,), result, params, params, like)

    def shifted(self, x: Value, axis: int, by: int, like: Item) -> Value:
        """`x` with every element `by` places further along a dimension; zeros come in."""
        type_ = self._type(x)
        if by == 0:
            return x
        if abs(by) >= type_.shape[axis]:
            return self.zeros(type_, like)
        if (x, axis, by) in self._known:
            return self._known[x, axis, by]
        made = self._shift(x, type_, {"axis": axis, "by": by, "wraps": False}, like)
        self._known[x, axis, by] = made
        return made

    def _shift(self, x: Value, type_: TensorType, params: dict[str, Any], like: Item) -> int:
        node = Node(SHIFT, (), (type_,), tuple(sorted(params.items())), (), like.node.source)
        binding = Binding(ShiftPrimitive(), params, backward=like.backward)
        made = self.numbers.new(type_)
        self.items.append(Item(node, binding, [x], [made], like.backward))
        return made

    def around(self, x: Value, axis: int, by: int, ring: int, like: Item) -> Value:
        """`x` with the first `ring` elements along a dimension moved around their end."""
        type_ = self._type(x)
        params: dict[str, Any] = {"axis": axis, "by": by, "wraps": True}
        if ring < type_.shape[axis]:
            params["ring"] = ring
        return self._shift(x, type_, params, like)

    def every(self, x: Value, axis: int, step: int, first: int, like: Item) -> Value:
        """Of every `step` elements along a dimension, the one at `first`."""
        if step == 1:
            return x
        shape = [*self._type(x).shape]
        apart = (*shape[:axis], shape[axis] // step, step, *shape[axis + 1 :])
        rows = [(0, n, 1) for n in apart]
        rows[axis + 1] = (first, first + 1, 1)
        one = self.sliced(self.reshaped(x, apart, like), rows, like)
        return self.reshaped(one, (*apart[: axis + 1], *apart[axis + 2 :]), like)

    def rows(self, x: Value, axis: int, first: int, count: int, like: Item) -> Value:
        """`count` elements along a dimension from a first one, as a lookup: sums over shards."""
        type_ = self._type(x)
        index = TensorType((count, 1), "int32")
        at: Value = self._places(index.shape, 0, like)
        at = self._put(lax.add_p, (at, self.number(first, "int32")), index, {}, {}, like)
        rest = tuple(d for d in range(type_.rank) if d != axis)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=rest, collapsed_slice_dims=(axis,), start_index_map=(axis,)
        )
        shape = [*type_.shape]
        shape[axis] = 1
        params = {
            "dimension_numbers": numbers, "fill_value": None, "indices_are_sorted": True,
            "mode": lax.GatherScatterMode.CLIP, "slice_sizes": tuple(shape),
            "unique_indices": True,
        }  # fmt: skip
        apart = ("operand_batching_dims", "start_indices_batching_dims")
        attrs = params | {
            "mode": "CLIP",
            "dimension_numbers": (
                ("offset_dims", rest), ("collapsed_slice_dims", (axis,)),
                ("start_index_map", (axis,)), *((name, ()) for name in apart),
            ),
        }  # fmt: skip
        shape[axis] = count
        result = TensorType(tuple(shape), type_.dtype)
        return self._put(lax.gather_p, (x, at), result, attrs, params, like)

    def apart(self, x: Value, axis: int, step: int, first: int, fill: Value, like: Item) -> Value:
        """Every element of `x` at `first` of `step` elements, the others of which are `fill`."""
        if step == 1:
            return x
        shape = self._type(x).shape
        rows = (*shape[: axis + 1], 1, *shape[axis + 1 :])
        edges = [(0, 0, 0)] * len(rows)
        edges[axis + 1] = (first, step - 1 - first, 0)
        wide = self.with_edges(self.reshaped(x, rows, like), edges, fill, like)
        return self.reshaped(wide, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]), like)

    def with_edges(
        self, x: Value, edges: Sequence[tuple[int, ...]], fill: Value, like: Item
    ) -> Value:
        """`x` with `fill` before, behind and between its elements."""
        type_ = self._type(x)
        if all((*edge,) == (0, 0, 0) for edge in edges):
            return x
        shape = tuple(
            n + low + high + max(0, n - 1) * between
            for n, (low, high, between) in zip(type_.shape, edges, strict=True)
        )
        params = {"padding_config": tuple((a, b, c) for a, b, c in edges)}
        result = TensorType(shape, type_.dtype)
        return self._put(lax.pad_p, (x, fill), result, params, params, like)

    def placed(self, x: Value, first: Places, sizes: Places, like: Item) -> Value:
        """`x` at a place of a larger array: shifted where it is as large, else between zeros.

        One element along a dimension is repeated, which a mask must cut.
        """
        type_ = self._type(x)
        edges = [(0, 0, 0)] * type_.rank
        ones = {d: sizes[d] for d in first if type_.shape[d] == 1}
        if ones:
            x = self.repeated(x, ones, like)
            type_ = self._type(x)
        for d, at in first.items():
            if type_.shape[d] != sizes[d]:
                edges[d] = (at, sizes[d] - at - type_.shape[d], 0)
        found = self.with_edges(x, edges, self.number(0, type_.dtype), like)
        for d, at in first.items():
            if type_.shape[d] == sizes[d] and d not in ones:
                found = self.shifted(found, d, at, like)
        return found

    def inside(
        self, x: Value, other: Value, rows: Mapping[int, tuple[int, int]], like: Item
    ) -> Value:
        """`x` within some rows of each dimension, and another array elsewhere."""
        shape, mask = self._type(x).shape, None
        for d, (first, last) in rows.items():
            index = self._places(shape, d, like)
            tests = [self._below(index, last, like)] if last < shape[d] else []
            if first:
                before = self._below(index, first, like)
                flag = TensorType(tuple(shape), "bool")
                tests.append(self._put(lax.not_p, (before,), flag, {}, {}, like))
            for test in tests:
                mask = test if mask is None else self._both(mask, test, like)
        return x if mask is None else self._choose(mask, other, x, like)

    def widened(self, x: Value, dims: Sequence[int], like: Item) -> Value:
        """`x` with dimensions of one element added."""
        shape = [*self._type(x).shape]
        for d in sorted(dims):
            shape.insert(d, 1)
        return self.reshaped(x, shape, like)

    def repeated(self, x: Value, sizes: Places, like: Item) -> Value:
        """`x` with elements alike along dimensions of one element."""
        type_ = self._type(x)
        kept = tuple(d for d in range(type_.rank) if d not in sizes)
        part = self.reshaped(x, [type_.shape[d] for d in kept], like)
        shape = tuple(sizes.get(d, n) for d, n in enumerate(type_.shape))
        attrs = {"broadcast_dimensions": kept, "shape": shape}
        result = TensorType(shape, type_.dtype)
        params = {**attrs, "sharding": None}
        return self._put(lax.broadcast_in_dim_p, (part,), result, attrs, params, like)

    def sum(self, a: Value, b: Value, like: Item) -> Value:
        """The sum of two arrays."""
        return self._put(lax.add_p, (a, b), self._type(a), {}, {}, like)

    def reshaped(self, x: Value, shape: Sequence[int], like: Item) -> Value:
        """`x` in another shape."""
        params = {"dimensions": None, "new_sizes": tuple(shape)}
        result = TensorType(tuple(shape), self._type(x).dtype)
        return self._put(lax.reshape_p, (x,), result, params, {**params, "sharding": None}, like)

    def changed(
        self, ins: Sequence[Value], made: TensorType, out: Mapping[int, int],
        padding: Sequence[tuple[int, ...]], like: Item,
    ) -> Value:  # fmt: skip
        """The node itself with another padding."""
        result = TensorType(tuple(out.get(d, n) for d, n in enumerate(made.shape)), made.dtype)
        changed = {"padding": tuple((low, high) for low, high in padding)}
        attrs = tuple((key, changed.get(key, value)) for key, value in like.node.attrs)
        node = replace(like.node, attrs=attrs, outputs=(result,))
        binding = replace(like.binding, params={**like.binding.params, **changed})
        number = self.numbers.new(result)
        self.items.append(Item(node, binding, [*ins], [number], like.backward))
        return number
