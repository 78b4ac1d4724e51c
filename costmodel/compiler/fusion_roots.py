"""Roots of fusions: the ops whose kernels make stored values, and what these kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from ir import Literal, lookup
from ir.analysis import FlatOp, FlatProgram, find, operand_types

from ..opcost import VIEWS

# Ops that read a few elements of their first operand, each of which is computed where it is read.
LOOKUPS = ("gather",)
Read = tuple[int, int, int]  # op, position of its operand, stored value that is read there
Body = tuple[int, ...]


@dataclass
class Root:
    """A root: the ops of its kernel that make nothing stored, and what all of them read."""

    number: int
    inner: list[int]
    reads: list[Read]
    body: Body
    elements: int
    axes: tuple[int, ...] | None  # dimensions that it reduces
    fused: bool
    level: int = 0
    late: int = 0
    alone: bool = False  # shares no kernel with roots outside a single pass


@dataclass
class Program:
    flat: FlatProgram
    stored: Sequence[bool]
    free: Sequence[bool]
    fused: Sequence[bool]
    roots: dict[int, Root] = field(default_factory=dict[int, Root])

    def __post_init__(self) -> None:
        self.loops = {region.place for region in self.flat.regions}
        self.parent = list(range(len(self.flat.ops)))
        for i, op in enumerate(self.flat.ops):
            if op.outputs and all(self.free[v] for v in op.outputs):
                continue
            if self._is_root(i, op):
                self.roots[i] = self._root(i, op)
        self.readers: dict[int, list[int]] = {}
        for root in self.roots.values():
            for v in dict.fromkeys(v for _, _, v in root.reads):
                self.readers.setdefault(v, []).append(root.number)

    def _is_root(self, i: int, op: FlatOp) -> bool:
        made = any(self.stored[v] for v in op.outputs)
        return made or not self.fused[i] or not any(self.flat.readers.get(v) for v in op.outputs)

    def _root(self, i: int, op: FlatOp) -> Root:
        inner, reads, seen, wait = list[int](), list[Read](), {i}, [i]
        while wait:
            at = wait.pop()
            for position, v in enumerate(self.flat.ops[at].inputs):
                if isinstance(v, Literal) or self.free[v]:
                    continue
                if position == 0 and self.flat.ops[at].node.op in LOOKUPS:
                    continue
                source = v if self.stored[v] else self._renamed(v)
                if self.stored[source]:
                    if self.flat.ops[at].node.op not in VIEWS or at == i:
                        reads.append((at, position, source))
                    continue
                maker = self.flat.maker.get(v)
                if maker is not None and maker[0] not in seen:
                    seen.add(maker[0])
                    wait.append(maker[0])
                    inner.append(maker[0])
        axes = axes_of(self.flat, op) if self.fused[i] else None
        types = [self.flat.values[v].type for v in (op.reads if axes is not None else op.outputs)]
        elements = max((t.size for t in types), default=0)
        return Root(i, inner, reads, self._body(op), elements, axes, self.fused[i])

    def _renamed(self, v: int) -> int:
        """The stored value that a chain of views renames, else the value itself."""
        at = v
        while not self.stored[at]:
            made = self.flat.made_by(at)
            if made is None or made.node.op not in VIEWS or not isinstance(made.inputs[0], int):
                return v
            at = made.inputs[0]
        return at

    def _body(self, op: FlatOp) -> Body:
        """The body of the innermost loop or branch around an op."""
        for end in range(len(op.place) - 1, 0, -1):
            if op.place[:end] in self.loops:
                return op.place[: end + 1]
        return ()

    def join(self, a: int, b: int) -> None:
        """Lets the kernel of one root compute another."""
        self.parent[self.kernel(b)] = self.kernel(a)

    def kernel(self, number: int) -> int:
        """The kernel of a root, named by one of its roots."""
        return find(self.parent, number)


def turned_copies(flat: FlatProgram, stored: Sequence[bool]) -> frozenset[int]:
    """Transposes that are copies: of what is in memory already, into a loop or out of the program.

    Both have dimensions in their own order in memory. What a product made is written as asked.

    Args:
        flat: the program.
        stored: whether each value reaches memory.
    """
    left = {link.source for link in flat.links} | {v for v in flat.outputs if isinstance(v, int)}
    found: set[int] = set()
    for i, op in enumerate(flat.ops):
        if op.node.op != "transpose" or op.outputs[0] not in left:
            continue
        source = op.inputs[0]
        made = flat.made_by(source) if isinstance(source, int) else None
        kept = isinstance(source, int) and stored[source]
        order = cast("tuple[int, ...]", op.node.attr("permutation"))
        shape = operand_types(flat, op)[0].shape
        long = [d for d in order if shape[d] > 1]
        if kept and long != sorted(long) and (made is None or made.node.op != "dot_general"):
            found.add(i)
    return frozenset(found)


def reduces(flat: FlatProgram, op: FlatOp) -> bool:
    """Whether an op is a reduction, and not of dimensions of size one alone."""
    if lookup(op.node.op).family != "reduction":
        return False
    return not op.node.has_attr("axes") or op.node.outputs[0].size < operand_types(flat, op)[0].size


def axes_of(flat: FlatProgram, op: FlatOp) -> tuple[int, ...] | None:
    if not reduces(flat, op) or not op.node.has_attr("axes"):
        return None
    return cast("tuple[int, ...]", op.node.attr("axes"))
