# pyright: basic
"""Attention kernels whose sequences are in the order of zigzag, as edited programs have them.

A kernel knows the order of the program alone. One device, or devices that do not split the
sequence, put the operands into that order and the results back; devices that split it work on
blocks that are in the order of zigzag already (`planner.emit.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from .errors import IRError
from .graph import Node
from .jax_compilers import function_primitive
from .jax_internals import STANDS_FOR
from .ops.attention import ATTENTION, ORDERED, sequence_dim
from .ops.attention_math import has_bias
from .ops.attention_order import to_straight, to_zigzag
from .program import Binding, Program

Array = Any


@dataclass(frozen=True)
class OrderedKernel:
    """A primitive that runs a kernel on sequences in the order of zigzag."""

    primitive: Any
    traced: bool = False  # whether a trace of a program that runs it has it again
    multiple_results = True

    @property
    def name(self) -> str:
        return self.primitive.name

    def bind(self, *operands: Array, **params: Any) -> Sequence[Array]:
        """Runs the kernel; without `ORDERED` among its parameters, in the order of the program."""
        parts = params.pop(ORDERED, 0)
        if not parts:
            return self.primitive.bind(*operands, **params)
        if self.traced:
            return self._told(operands, {**params, ORDERED: parts})
        given = reordered(operands, params, parts, to_straight)
        found = self.primitive.bind(*given, **params)
        return results_reordered(self.name, found, params, parts, to_zigzag)

    def _told(self, operands: Sequence[Array], params: dict[str, Any]) -> Sequence[Array]:
        kernel = OrderedKernel(self.primitive)
        return _STANDS_FOR.bind(
            *operands, function=lambda *xs: list(kernel.bind(*xs, **params)), kernel=kernel,
            params=params,
        )  # fmt: skip


def _not_batched(operands: Sequence[bool], params: dict[str, Any]) -> dict[str, Any]:
    raise IRError("a kernel in the order of zigzag cannot be batched")


_STANDS_FOR = function_primitive(STANDS_FOR, _not_batched)


def traced_again(program: Program) -> Program:
    """The program, whose kernels in the order of zigzag are so in traces of what runs it."""
    bindings = tuple(
        replace(
            b, bodies=tuple(map(traced_again, b.bodies)),
            primitive=replace(b.primitive, traced=True)
            if isinstance(b.primitive, OrderedKernel) else b.primitive,
        )
        for b in program.bindings
    )  # fmt: skip
    return replace(program, bindings=bindings)


def with_order(node: Node, binding: Binding, parts: int) -> tuple[Node, Binding]:
    """A kernel and its primitive with sequences in the order of zigzag of a number of parts."""
    attrs = tuple(sorted((*node.attrs, (ORDERED, parts))))
    params = {**binding.params, ORDERED: parts}
    kernel = OrderedKernel(binding.primitive)
    return replace(node, attrs=attrs), replace(binding, primitive=kernel, params=params)


def reordered(
    operands: Sequence[Array],
    attrs: Any,
    parts: int,
    order: Callable[..., Array],
    columns: int = 1,
) -> list[Array]:
    """A kernel's operands with their sequences in another order.

    Args:
        operands: those of the kernel, forward or backward.
        attrs: its attributes, or parameters.
        parts: of the order of zigzag.
        order: `to_zigzag` or `to_straight`.
        columns: parts of the columns of a bias, each of which is put into that order by itself.
    """
    length, found = sequence_dim(attrs), list(operands)
    dims = {0: (length,), 1: (length,), 2: (length,), 10: (2,), 11: (length,), 12: (length,)}
    if has_bias(attrs):
        dims[3] = (2,)
    for i, each in dims.items():
        for dim in each if i < len(found) else ():
            if found[i].shape[dim] > 1:
                found[i] = order(jnp, found[i], dim, parts)
    if has_bias(attrs) and found[3].shape[3] > 1:
        *shape, size = found[3].shape
        cut = found[3].reshape(*shape, columns, size // columns)
        found[3] = order(jnp, cut, 4, parts).reshape(*shape, size)
    return found


def results_reordered(
    op: str, results: Sequence[Array], attrs: Any, parts: int, order: Callable[..., Array]
) -> list[Array]:
    """A kernel's results likewise."""
    length = sequence_dim(attrs)
    dims = (length, 2) if op == ATTENTION[0] else (length,) * 3
    return [order(jnp, x, dim, parts) for x, dim in zip(results, dims, strict=False)]
