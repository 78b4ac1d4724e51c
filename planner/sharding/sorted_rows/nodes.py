# pyright: basic
"""Nodes that sort, count, look up, add and multiply rows in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax.numpy as jnp
from jax import ShapeDtypeStruct, lax

from ir.trace import trace

from ..recompute.draft import Item, Numbers, Value, draft_of

Array = Any
COUNT: Final = "int32"  # type of counts by block


@dataclass
class BlockWriter:
    """Writes nodes behind each other, for rows in a number of blocks."""

    numbers: Numbers
    items: list[Item]
    blocks: int

    def sorted(self, like: Item, operands: Sequence[Value]) -> list[Value]:
        """A sort within blocks."""
        params = like.binding.params

        def run(*arrays: Array) -> list[Array]:
            found = lax.sort(
                [self._cut(x) for x in arrays], dimension=1, is_stable=params["is_stable"],
                num_keys=params["num_keys"],
            )  # fmt: skip
            return [self._joined(x) for x in found]

        return self._written(like, run, operands)

    def counts(self, like: Item, keys: Value, groups: int) -> Value:
        """Rows of each group in each block; keys below the first group count as of the first."""

        def run(keys: Array) -> list[Array]:
            group = jnp.maximum(self._cut(keys), 0)[:, :, None]
            mine = group == lax.iota(keys.dtype, groups)
            return [jnp.sum(mine.astype(COUNT), axis=1)]

        return self._written(like, run, (keys,))[0]

    def summed(self, like: Item, counts: Value, dim: int, dtype: str) -> Value:
        """Rows of each group in all blocks."""

        def run(counts: Array) -> list[Array]:
            return [jnp.sum(counts, axis=dim).astype(dtype)]

        return self._written(like, run, (counts,))[0]

    def moved(self, like: Item, operands: Sequence[Value]) -> list[Value]:
        """Rows of a block that are looked up in its rows of a table, or added to these."""
        adds, params = like.op == "scatter-add", like.binding.params

        def run(table: Array, index: Array, *rows: Array) -> list[Array]:
            held = table.shape[0] // self.blocks
            index = self._cut(index)
            first = lax.broadcasted_iota(index.dtype, index.shape, 0) * held
            run = _added if adds else _looked_up
            found = run(params, self._cut(table), index - first, *map(self._cut, rows))
            return [self._joined(found)]

        return self._written(like, run, operands)

    def product(self, like: Item, operands: Sequence[Value]) -> list[Value]:
        """A grouped product whose sizes are those of blocks."""
        params = like.binding.params
        numbers = params["ragged_dot_dimension_numbers"]
        (left, right), _ = numbers.dot_dimension_numbers
        many = tuple(left) == (0,)
        contracted = ((0, 1), (0, 1)) if many else ((2,), tuple(right))

        def run(lhs: Array, rhs: Array, counts: Array) -> list[Array]:
            found = lax.ragged_dot_general(
                self._cut(lhs), self._cut(rhs) if many else rhs, counts,
                lax.RaggedDotDimensionNumbers(
                    (contracted, ((), ())), (1,), numbers.rhs_group_dimensions
                ),
                precision=params["precision"],
                preferred_element_type=params["preferred_element_type"],
            )  # fmt: skip
            return [found if many else self._joined(found)]

        return self._written(like, run, operands)

    def _cut(self, x: Array) -> Array:
        return x.reshape(self.blocks, x.shape[0] // self.blocks, *x.shape[1:])

    def _joined(self, x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    def _written(
        self, like: Item, fn: Callable[..., list[Array]], operands: Sequence[Value]
    ) -> list[Value]:
        """Results of a function of values, in nodes that stand for one."""
        values = [v for v in operands if isinstance(v, int)]
        assert len(values) == len(operands)
        types = [self.numbers.types[v] for v in values]
        shapes = (ShapeDtypeStruct(t.shape, t.dtype) for t in types)
        draft = draft_of(trace(fn, *shapes).program, self.numbers)
        given: dict[int, Value] = dict(zip((v for v, _ in draft.inputs), values, strict=True))
        for item in draft.items:
            item.ins = [given.get(v, v) if isinstance(v, int) else v for v in item.ins]
            item.node, item.backward = replace(item.node, source=like.node.source), like.backward
            self.items.append(item)
        return [given.get(v, v) if isinstance(v, int) else v for v in draft.outputs]


def _looked_up(params: Any, table: Array, index: Array) -> Array:
    window = table.ndim - 2
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(2, 2 + window)), collapsed_slice_dims=(1,), start_index_map=(1,),
        operand_batching_dims=(0,), start_indices_batching_dims=(0,),
    )  # fmt: skip
    return lax.gather(
        table, index, numbers, (1, 1, *table.shape[2:]), mode=params["mode"],
        fill_value=params["fill_value"],
    )  # fmt: skip


def _added(params: Any, table: Array, index: Array, rows: Array) -> Array:
    window = table.ndim - 2
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(2, 2 + window)), inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )  # fmt: skip
    return lax.scatter_add(table, index, rows, numbers, mode=params["mode"])
