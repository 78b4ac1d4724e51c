"""Which ops run in one kernel, as XLA's GPU compiler fuses them.

A *root* makes a stored value. Its kernel computes again what is not stored between its operands
and it. Roots then share a kernel

* in a single pass over rows: a reduction of the last dimension, and what reads its result and the
  rows again (a softmax, a norm). Rows have at most `ROW` elements, nothing else reads the result,
  and of several reductions each reads the one before; such a kernel writes one array;
* with several results: roots of as many elements where one reads what the other makes element by
  element, or both read the same array. None waits for another kernel between them, and
  reductions in one kernel reduce the same dimensions.

Source: `PriorityFusion`, `MultiOutputFusion` and `SoftmaxRewriterTriton` of XLA's GPU compiler;
`ROW` and the cases of tests/costmodel/compiler/test_fusion_groups.py are read off its results
(JAX 0.10.2, ahead of time for an H100).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ir import Literal
from ir.analysis import FlatProgram, operand_types

from ..opcost import VIEWS
from .fusion_roots import Program, Root, turned_copies
from .stored_once import stored_once

LAST = 1 << 60  # level of what nothing waits for
PARTS = ("slice",)  # ops that read as much as they make
ROW = 16384  # longest row that a kernel holds while it passes once over it


@dataclass(frozen=True, slots=True)
class Fusions:
    """Kernels of a program.

    of[op]: kernels that compute it, each named by one of its ops; several, where what an op makes
        is not stored and several kernels read it; none for an op that depends on literals alone.
    reads[op]: operand positions that it reads from memory, once for each kernel that does.
    writes[op]: result positions that it writes there.
    stored[value]: whether it reaches memory.
    """

    of: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    stored: tuple[bool, ...]


def fusions(
    flat: FlatProgram, stored: Sequence[bool], free: Sequence[bool], fused: Sequence[bool],
    *, leaves: Callable[[int], bool],
) -> Fusions:  # fmt: skip
    """Kernels of a program.

    Args:
        flat: the program.
        stored: whether each value reaches memory.
        free: whether each value is made of literals alone.
        fused: whether each op may share a kernel.
        leaves: whether a value leaves its body or the program.
    """
    found = Program(flat, stored_once(flat, stored, free, fused), free, fused)
    _single_passes(found, leaves)
    _several_results(found)
    return _charged(found)


# --- a single pass over rows -----------------------------------------------------------------


def _single_passes(p: Program, leaves: Callable[[int], bool]) -> None:
    """Joins reductions of rows with what reads the rows again, last ones first."""
    before: dict[int, set[int]] = {}  # kernel -> its reductions
    for number in sorted(p.roots, reverse=True):
        root, op = p.roots[number], p.flat.ops[number]
        if root.axes is None or not op.outputs or leaves(op.outputs[0]):
            continue
        shape = operand_types(p.flat, op)[0].shape
        if root.axes != (len(shape) - 1,) or shape[-1] > ROW:
            continue
        after = {p.kernel(r) for r in p.readers.get(op.outputs[0], ())}
        if len(after) != 1:
            continue
        (kernel,) = after
        if _passes_once(p, root, p.readers[op.outputs[0]], before.get(kernel, set())):
            p.join(kernel, number)
            kernel = p.kernel(number)
            before[kernel] = before.pop(next(iter(after)), set()) | {number}
            for member in (*p.readers[op.outputs[0]], number):
                p.roots[member].alone = True


def _passes_once(p: Program, root: Root, readers: list[int], others: set[int]) -> bool:
    """Whether what reads a reduction reads its rows again, and no statistics beside its own."""
    result, rows = p.flat.ops[root.number].outputs[0], {v for *_, v in root.reads}
    waits = {*rows, result}
    size = p.flat.values[result].type.size
    if not others <= set(readers):
        return False  # a reduction that does not wait for this one
    for number in readers:
        reader = p.roots[number]
        same = reader.fused and reader.body == root.body and reader.elements == root.elements
        if not same or reader.axes not in (None, root.axes):
            return False
        for *_, v in reader.reads:
            made = p.flat.maker.get(v)
            if made is None or v in waits or made[0] in others or made[0] not in p.roots:
                continue
            if p.roots[made[0]].axes is not None and p.flat.values[v].type.size == size:
                return False
        whole = {v for *_, v in reader.reads if p.flat.values[v].type.size == root.elements}
        if reader.axes is None and not whole & rows:
            return False
    return True


# --- several results -------------------------------------------------------------------------


def _several_results(p: Program) -> None:
    """Joins roots that read each other's elements, or the same array, on one level.

    The level of a root counts the kernels that it waits for; it may run as late as the first that
    waits for it. Kernels of one level do not wait for each other, nor any for itself.
    """
    readers: dict[int, list[Root]] = {}
    for root in p.roots.values():
        root.level = max((_level_after(p, root, v) for *_, v in root.reads), default=0)
        root.late = LAST
    for root in reversed(p.roots.values()):
        for made in _makers(p, root):
            after = root.level - (0 if _elementwise_into(made, root) else 1)
            made.late = min(made.late, after)
    kernels = {root.number: (root.level, root.late, root.axes) for root in p.roots.values()}
    for root in p.roots.values():
        if not root.fused or root.alone:
            continue
        near = [made for made in _makers(p, root) if _elementwise_into(made, root)]
        for v in dict.fromkeys(v for *_, v in root.reads):
            if p.flat.values[v].type.size == root.elements:
                near += readers.get(v, [])
                readers.setdefault(v, []).append(root)
        for other in near:
            _share(p, other, root, kernels)


def _makers(p: Program, root: Root) -> list[Root]:
    numbers = (p.flat.maker[v][0] for *_, v in root.reads if v in p.flat.maker)
    return [p.roots[i] for i in dict.fromkeys(numbers) if i in p.roots]


def _level_after(p: Program, root: Root, v: int) -> int:
    maker = p.flat.maker.get(v)
    if maker is None or maker[0] not in p.roots:
        return 0
    made = p.roots[maker[0]]
    return made.level + (0 if _elementwise_into(made, root) else 1)


def _elementwise_into(made: Root, root: Root) -> bool:
    """Whether a root may be computed beside one whose result it reads."""
    pair = made, root
    return (
        all(r.fused and not r.alone for r in pair) and made.axes is None
        and made.body == root.body and made.elements == root.elements
    )  # fmt: skip


def _share(
    p: Program, one: Root, other: Root,
    kernels: dict[int, tuple[int, int, tuple[int, ...] | None]],
) -> None:  # fmt: skip
    a, b = p.kernel(one.number), p.kernel(other.number)
    if a == b or one.body != other.body or one.elements != other.elements:
        return
    level = max(kernels[a][0], kernels[b][0])
    late = min(kernels[a][1], kernels[b][1])
    both = {axes for *_, axes in (kernels[a], kernels[b]) if axes is not None}
    if level <= late and len(both) < 2:
        p.join(a, b)
        kernels[p.kernel(a)] = level, late, next(iter(both), None)


# --- what each op pays for -------------------------------------------------------------------


def _charged(p: Program) -> Fusions:
    of: list[dict[int, None]] = [{} for _ in p.flat.ops]
    for root in p.roots.values():
        for i in (root.number, *root.inner):
            of[i][p.kernel(root.number)] = None
    copies = turned_copies(p.flat, p.stored)
    turns = {i for i, op in enumerate(p.flat.ops) if op.node.op == "transpose"} - copies
    reads: list[list[int]] = [[] for _ in p.flat.ops]
    for places in _asked(p, of).values():
        whole = [at for at in places if p.flat.ops[at[0]].node.op not in PARTS]
        for i, position in whole[:1] or places:
            if i not in turns:
                reads[i].append(position)
    writes = [set[int]() for _ in p.flat.ops]
    for i, op in enumerate(p.flat.ops):
        for k, v in enumerate(op.outputs):
            if p.stored[v] and not p.free[v]:
                made, position = _written_by(p, i, k)
                writes[made].update({position} if made not in turns else ())
    return Fusions(
        tuple(tuple(kernels) for kernels in of), tuple(map(tuple, reads)),
        tuple(tuple(sorted(w)) for w in writes), tuple(p.stored),
    )  # fmt: skip


def _asked(
    p: Program, of: Sequence[Collection[int]]
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Kernel and value that it reads from memory -> ops and positions that read it."""
    found: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for root in sorted(p.roots.values(), key=lambda r: r.number):
        kernel = p.kernel(root.number)
        for i, position, v in sorted(root.reads):
            maker = p.flat.maker.get(v)
            if maker is None or kernel not in of[maker[0]]:
                found.setdefault((kernel, v), {})[i, position] = None
    return {key: list(places) for key, places in found.items()}


def _written_by(p: Program, i: int, k: int) -> tuple[int, int]:
    """The op that writes a stored value: behind views, the one that makes the elements."""
    while p.flat.ops[i].node.op in VIEWS:
        (v, *_) = p.flat.ops[i].inputs
        if isinstance(v, Literal) or p.stored[v] or v not in p.flat.maker:
            break
        i, k = p.flat.maker[v]
    return i, k
