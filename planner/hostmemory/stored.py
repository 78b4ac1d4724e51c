"""Which values XLA's CPU compiler writes to memory.

It computes what is cheap again in every kernel that reads it. It stores

    what a library call, a gather or scatter makes or reads, and what leaves a body or is sent
    what is dear to compute, if several kernels read it: exp, division, roots, rounding to 16 bits
    what is reduced and read elsewhere, as sums and maxima run in calls that nothing is fused into
    the square of which higher powers are computed, as any other value

A product reads each operand in one order of its dimensions, in 32 bits: a copy, unless the
operand is stored so.

Source: `CpuInstructionFusion`, `DotDecomposer` and `FloatNormalization` of XLA, and what they leave
in compiled programs (jaxlib 0.10.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import cast

from costmodel import VIEWS
from ir import lookup

from ..flatten import FlatOp
from ..fusion import DEAR
from .decided import Decided, is_fused

DEAR_HERE = frozenset(DEAR) | {
    "cbrt", "div", "exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "rsqrt",
    "sqrt",
}  # fmt: skip
LIBRARY = ("contraction", "convolution")
REDUCED = ("reduce_sum", "reduce_max")
REDUCED_BY = "reduced"  # how a sum reads
PLAIN: Hashable = "plain"  # an operand in the order of its dimensions
Reader = tuple[str, Hashable]  # how it reads, and what tells it from others that do
Dims = tuple[int, ...]
Sides = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]


class Stored:
    """Whether a value is written, and the kernels it is computed in or read by."""

    def __init__(self, program: Decided) -> None:
        self.program = program
        flat = program.flat
        self.written = [value.kind != "op" for value in flat.values]
        self.readers: dict[int, set[Reader]] = defaultdict(set)
        for v in flat.outputs:
            if isinstance(v, int):
                self._leaves(v, "result")
        for link in flat.links:
            if not program.free[link.source]:
                self._leaves(link.source, link.target)
        into = {j for j, _ in program.merged.values()}
        for i in program.backwards():
            if i not in into:
                self._visit(i)

    def _leaves(self, v: int, where: Hashable) -> None:
        v = self.program.one(v)
        self.written[v] = True
        self.readers[v].add(("leaves", where))

    def _visit(self, i: int) -> None:
        program, op = self.program, self.program.flat.ops[i]
        for v, made in program.results(i):
            sent = bool(program.steps(v, program.state(v), made))
            self.written[v] |= sent or not is_fused(op) or self._worth(op, v)
        kernel = any(self.written[v] for v, _ in program.results(i))
        for k, v, state in program.operands(i):
            if program.steps(v, state):
                self.written[v] = True
                self.readers[v].add(("sent", state))
            elif i in program.merged:
                if k != program.merged[i][1]:
                    self.readers[v].add(("kernel", i))
            elif is_fused(op):
                if kernel:
                    self.readers[v].add(("kernel", i))
                else:
                    for u in op.outputs:
                        self.readers[v] |= self.readers[u]
            elif op.node.op in REDUCED:
                self.readers[v].add((REDUCED_BY, i))
            else:
                self.readers[v].add(("operand", (v, wanted_order(op, k, program))))
                self.written[v] |= not program.is_half(v)

    def _worth(self, op: FlatOp, v: int) -> bool:
        """Whether a value that could be computed again is stored."""
        if op.node.op in VIEWS or lookup(op.node.op).family != "elementwise":
            return False
        dear = op.node.op in DEAR_HERE or (
            self.program.is_half(v) and not _widens(op, self.program)
        )
        reduced = any(how == REDUCED_BY for how, _ in self.readers[v])
        return (dear or reduced) and len(self.readers[v]) > 1


def is_row_sum(op: FlatOp, program: Decided) -> bool:
    """Whether an op is a sum or maximum along the last dimension alone, which a library does."""
    v = op.inputs[0] if op.inputs else None
    if op.node.op not in REDUCED or not isinstance(v, int):
        return False
    return op.node.attr("axes") == (program.flat.values[v].type.rank - 1,)


def _widens(op: FlatOp, program: Decided) -> bool:
    """Whether an op makes numbers of truth values or integers, which is no rounding."""
    v = op.inputs[0]
    if op.node.op != "convert_element_type" or not isinstance(v, int):
        return False
    return "float" not in program.flat.values[v].type.dtype


def wanted_order(op: FlatOp, position: int, program: Decided) -> Hashable:
    """The order of dimensions in which a product or convolution reads an operand.

    Of a product: batch first, then (free, summed) on the left and (summed, free) on the right;
    the library also takes the other two of these where they are one dimension each. Of a
    convolution: (batch, space, channels), and the window as (space, in, out).
    """
    v = op.inputs[position]
    if op.node.op == "conv_general_dilated":
        return _conv_order(op, position)
    if op.node.op != "dot_general" or not isinstance(v, int):
        return PLAIN
    summed, batch = (side[position] for side in cast("Sides", op.node.attr("dimension_numbers")))
    rank = program.flat.values[v].type.rank
    rest = tuple(d for d in range(rank) if d not in summed and d not in batch)
    order = (*batch, *rest, *summed) if position == 0 else (*batch, *summed, *rest)
    swapped = (*batch, *summed, *rest) if position == 0 else (*batch, *rest, *summed)
    plain = tuple(range(rank))
    if order == plain or (rank <= 2 and not batch):
        return PLAIN
    if batch and swapped == plain and len(rest) <= 1 and len(summed) <= 1:
        return PLAIN
    return order


def _conv_order(op: FlatOp, position: int) -> Hashable:
    sides = dict(cast("tuple[tuple[str, Dims], ...]", op.node.attr("dimension_numbers")))
    outer, inner, *space = sides["lhs_spec" if position == 0 else "rhs_spec"]
    order = (outer, *space, inner) if position == 0 else (*space, inner, outer)
    return PLAIN if order == tuple(range(len(order))) else order
