# pyright: basic
"""Nodes that put sequences into the order of zigzag and back, and count positions in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import ShapeDtypeStruct, lax

from ir import TensorType, to_zigzag
from ir.trace import trace

from ..recompute.draft import Item, Numbers, draft_of


class OrderWriter:
    """Writes nodes behind each other."""

    def __init__(self, numbers: Numbers, items: list[Item], parts: int) -> None:
        self.numbers, self.items, self.parts = numbers, items, parts

    def turned(self, v: int, dims: Sequence[int], order: Callable[..., Any]) -> int:
        """A value in another order along some dimensions.

        Args:
            v: the value.
            dims: the dimensions.
            order: `to_zigzag` or `to_straight`.
        """

        def turned(x: Any) -> Any:
            for dim in dims:
                x = order(jnp, x, dim, self.parts)
            return x

        return self._written(turned, v)

    def counted(self, type_: TensorType, dim: int) -> int:
        """Positions along a dimension, in the order of zigzag."""

        def counted() -> Any:
            places = to_zigzag(jnp, jnp.arange(type_.shape[dim]), 0, self.parts)
            return lax.broadcast_in_dim(places.astype(type_.dtype), type_.shape, (dim,))

        return self._written(counted)

    def _written(self, fn: Callable[..., Any], *operands: int) -> int:
        """The result of a function of values."""
        types = [self.numbers.types[v] for v in operands]
        shapes = (ShapeDtypeStruct(t.shape, t.dtype) for t in types)
        draft = draft_of(trace(fn, *shapes).program, self.numbers)
        given = dict(zip((v for v, _ in draft.inputs), operands, strict=True))
        for item in draft.items:
            item.ins = [given.get(v, v) if isinstance(v, int) else v for v in item.ins]
            self.items.append(item)
        (result,) = draft.outputs
        assert isinstance(result, int)
        return given.get(result, result)
