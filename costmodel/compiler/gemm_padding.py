"""Which values a GPU keeps a second time, because products of 16 bits want sizes in eights.

The library for products runs on tensor cores only if every size is a multiple of eight; XLA pads
operands to that, which writes them anew, and takes the padded copy again where the same operand is
read backward. What an elementwise op makes is written padded at once; what a product made is then
there twice. Products without a batch join their dimensions, and are left out: they rarely have odd
sizes, and are padded on the way.

Source: `CublasPadForGemms` of XLA's GPU compiler, and its results for attention over 197 tokens.
"""

from __future__ import annotations

import math
from typing import cast

from ir import HALVES, lookup
from ir.analysis import FlatOp, FlatProgram

WANTED = 8
Dims = tuple[int, ...]
Sides = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]  # contracted and batch, of left and right


def copied(flat: FlatProgram) -> frozenset[int]:
    """Results of products that are also there padded, for products that read them.

    Args:
        flat: the program.
    """
    found: set[int] = set()
    for op in flat.ops:
        for v in _padded(flat, op):
            made = flat.made_by(v)
            while made is not None and lookup(made.node.op).family == "layout":
                match made.inputs:
                    case (int(source),):
                        v, made = source, flat.made_by(source)
                    case _:  # an iota, a join of several, a literal
                        made = None
            if made is not None and made.node.op == "dot_general":
                found.add(v)
    return frozenset(found)


def _padded(flat: FlatProgram, op: FlatOp) -> list[int]:
    """Operands of a product with a batch that have a side of a size that is not wanted."""
    if op.node.op != "dot_general" or op.node.outputs[0].rank < 3:
        return []
    contracted, batch = cast("Sides", op.node.attr("dimension_numbers"))
    if not batch[0]:
        return []
    found: list[int] = []
    for v, inner, outer in zip(op.inputs, contracted, batch, strict=True):
        if not isinstance(v, int) or flat.values[v].type.dtype not in HALVES:
            return []
        shape = flat.values[v].type.shape
        summed = math.prod(shape[d] for d in inner)
        free = math.prod(n for d, n in enumerate(shape) if d not in inner and d not in outer)
        if summed % WANTED or free % WANTED:
            found.append(v)
    return found
