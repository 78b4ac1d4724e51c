"""Which values reach memory: a model of the compiler's fusion of elementwise chains.

A value is *stored* if an op that is not fused makes it (a product, a gather, a sort, ...) or
reads it, if it leaves the program or enters a region, or if it is written in another order of
dimensions (`transposes.py`); every other value lives in registers of the kernels that read it, each
of which computes it. Which values share a kernel: `fusion_groups.py`. A kernel reads each stored
value once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ir import Node, lookup
from ir.analysis import FlatOp, FlatProgram

from ..opcost import VIEWS
from .fusion_groups import Fusions, fusions
from .fusion_roots import LOOKUPS, reduces
from .gemm_padding import copied
from .loop_copies import Moved, loop_copies
from .transposes import turned

FUSED = ("elementwise", "layout", "reduction", "random")
# Ops that cost more to repeat than their result costs to write and read again.
DEAR = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "digamma", "erf",
    "erf_inv", "erfc", "lgamma", "pow", "random_bits", "sinh", "tan", "tanh", "threefry2x32",
)  # fmt: skip
# Ops of these families that have a kernel, or several, of their own.
ALONE = (
    "approx_top_k", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "sort", "top_k",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """Strategy-independent facts for pricing and liveness.

    stored[v]: value v reaches memory.
    free[v]: value v depends on nothing but literals and can be made in any state at no cost.
    reads[op]: operand positions that the op pays for reading, once for each kernel that reads.
    writes[op]: result positions that the op pays for writing.
    launches[op]: kernels that the op starts: 1 for the first of a fusion and for unfused ops.
    kernels[op]: those that compute the op, each named by one of its ops.
    computed[op]: how often the op's arithmetic is paid for, beside what it moves; None: the larger
        of both is, as for an op that is no part of a fusion (`fusion_bounds.py`).
    copied: values that are in memory twice (`gemm_padding.py`).
    moved[op]: what loops move beside it (`loop_copies.py`).
    """

    stored: tuple[bool, ...]
    free: tuple[bool, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    launches: tuple[int, ...]
    kernels: tuple[tuple[int, ...], ...]
    copied: frozenset[int] = frozenset()
    moved: Mapping[int, tuple[Moved, ...]] = field(default_factory=dict[int, tuple[Moved, ...]])
    computed: tuple[int | None, ...] | None = None


def is_fused(node: Node) -> bool:
    """Whether the compiler makes an op a part of the loop around it."""
    return lookup(node.op).family in FUSED and node.op not in ALONE


def _is_view(op: FlatOp) -> bool:
    """Ops that only rename memory and start no kernel."""
    return op.node.op in VIEWS


def analyse(flat: FlatProgram) -> Traffic:
    """Stored values, reads and kernel starts of a flat program."""
    free = _free(flat)
    stored = _stored(flat, free)
    fused = [is_fused(op.node) for op in flat.ops]
    left = {link.source for link in flat.links} | {v for v in flat.outputs if isinstance(v, int)}
    found = fusions(flat, stored, free, fused, leaves=left.__contains__)
    moved = loop_copies(flat, free, found.of, fused)
    return Traffic(
        found.stored, free, found.reads, found.writes, _launches(flat, found), found.of,
        copied(flat), moved,
    )  # fmt: skip


def _launches(flat: FlatProgram, found: Fusions) -> tuple[int, ...]:
    """Starts of kernels, each counted at the first op that is in no other kernel."""
    started: set[int] = set()
    starts: list[int] = []
    for op, kernels in zip(flat.ops, found.of, strict=True):
        new = len(kernels) == 1 and not _is_view(op) and kernels[0] not in started
        started.update(kernels if new else ())
        starts.append(int(new))
    return tuple(starts)


def _stored(flat: FlatProgram, free: tuple[bool, ...]) -> list[bool]:
    stored = _at_borders(flat, free)
    for op in flat.ops:
        fused = is_fused(op.node)
        if not fused or reduces(flat, op):
            for value in op.outputs:
                stored[value] = True
        for position, value in enumerate(op.inputs):
            if not fused and isinstance(value, int) and not free[value]:
                stored[value] |= not (op.node.op in LOOKUPS and position == 0)
    for value in turned(flat, free):
        stored[value] = True
    _store_dear(flat, stored, free)
    return stored


def _at_borders(flat: FlatProgram, free: tuple[bool, ...]) -> list[bool]:
    """Values that enter or leave the program or a region."""
    stored = [value.kind != "op" for value in flat.values]
    renewed = {link.target for link in flat.links if not free[link.source]}
    for link in flat.links:
        stored[link.source] = True
        if link.target not in renewed:
            stored[link.target] = False  # made of literals: the compiler sinks it into the loop
    for value in flat.outputs:
        if isinstance(value, int):
            stored[value] = True
    return stored


def _store_dear(flat: FlatProgram, stored: list[bool], free: tuple[bool, ...]) -> None:
    """Stores what a dear op makes for several fusions, where it is read more than once.

    Of the values between it and where the readers part, the smallest is stored. So is what a dear
    op computes from, where others read that too.
    """
    first, last = _reads(flat, stored)
    for op in flat.ops:
        if op.node.op not in DEAR:
            continue
        both = (v for v in (*op.inputs, *op.outputs) if isinstance(v, int) and not free[v])
        again = {v for v in both if first.get(v) != last.get(v)}
        for v in again.difference(op.outputs):
            stored[v] = True
        for v in op.outputs:
            if v in again and not stored[v]:
                stored[_smallest(flat, stored, v)] = True


def _smallest(flat: FlatProgram, stored: list[bool], v: int) -> int:
    """Of a value and what is made of it alone: a mask rather than what it is widened to."""
    kept = v
    while len(read := flat.readers.get(v, [])) == 1 and len(read[0].outputs) == 1:
        v = read[0].outputs[0]
        if stored[v] or not is_fused(read[0].node):
            break
        if flat.values[v].type.nbytes <= flat.values[kept].type.nbytes:
            kept = v
    return kept


def _reads(flat: FlatProgram, stored: list[bool]) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last moment at which something stored is made of a value."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}

    def read(v: int, begin: int, end: int) -> None:
        if first.get(v, begin) >= begin:
            first[v] = begin
        if last.get(v, end) <= end:
            last[v] = end

    for v in flat.outputs:
        if isinstance(v, int):
            read(v, flat.clock, flat.clock)
    for link in flat.links:
        read(link.source, link.time, link.time)
    for op in reversed(flat.ops):
        through = [v for v in op.outputs if not stored[v] and v in first]
        begin = min((first[v] for v in through), default=op.time)
        end = max((last[v] for v in through), default=op.time)
        for v in op.reads:
            read(v, begin, end)
    return first, last


def _free(flat: FlatProgram) -> tuple[bool, ...]:
    free = [False] * len(flat.values)
    for op in flat.ops:
        sources = op.reads
        if op.node.op in ("iota", "constant", "broadcast_in_dim") and not sources:
            ok = True
        else:
            ok = lookup(op.node.op).family == "elementwise" and all(free[v] for v in sources)
        if op.node.op == "broadcast_in_dim" and sources:
            ok = all(free[v] for v in sources)
        for value in op.outputs:
            free[value] = ok
    return tuple(free)
