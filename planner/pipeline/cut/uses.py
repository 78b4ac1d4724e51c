# pyright: basic
"""The parts in which stages hold parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax

from ir.jax_internals import struct_of

from .equations import Equations

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """A parameter that a stage reads: the leaf, and the range of its first dimension."""

    leaf: int
    low: int = 0
    high: int = -1  # -1: the whole leaf, whatever its rank

    @property
    def whole(self) -> bool:
        return self.high < 0


def use_struct(program: Equations, use: Use) -> jax.ShapeDtypeStruct:
    """Shape and type of the part of a parameter that a stage reads."""
    struct = struct_of(program.avals[program.params[use.leaf]])
    if use.whole:
        return struct
    return jax.ShapeDtypeStruct((use.high - use.low, *struct.shape[1:]), struct.dtype)


def held_in(program: Equations, leaf: int, uses: Sequence[tuple[int, Use]]) -> tuple[Use, ...]:
    """The parts in which stages hold a parameter: whole, or in pieces that cover it.

    Args:
        program: the loss.
        leaf: the parameter.
        uses: what each stage reads of it.
    """
    if not any(use.whole for _, use in uses):
        length = program.avals[program.params[leaf]].shape[0]
        found = pieces_of([(use.low, use.high) for _, use in uses], length)
        readers = {frozenset(s for s, use in uses if low <= use.low < high) for low, high in found}
        if len(readers) > 1:
            return tuple(Use(leaf, low, high) for low, high in found)
    return (Use(leaf),)


def pieces_of(spans: Iterable[Span], length: int) -> tuple[Span, ...]:
    """The smallest parts of a stack of which each span is in one; they cover the stack.

    Args:
        spans: entries that are read together.
        length: of the stack.
    """
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    starts = (0, *(low for low, _ in found[1:]), length)
    return tuple(pairwise(starts))
