"""Values that are stored rather than computed in each kernel that reads them.

If each of k kernels computes a value of O bytes from I bytes that it reads for nothing else, they
read k I bytes. Stored by the first and read by the others they are I + O + (k - 1) O.

Source: `PriorityFusion` of XLA's GPU compiler weighs the times of both.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from ir.analysis import FlatProgram

from ..opcost import VIEWS

ROUNDS = 4  # what is stored now is not computed again in kernels that made others dear
_NONE = frozenset[int]()


def stored_once(
    flat: FlatProgram, stored: Sequence[bool], free: Sequence[bool], fused: Sequence[bool]
) -> list[bool]:
    """Whether each value reaches memory, with those that are dear to make again.

    Args:
        flat: the program.
        stored: whether each value reaches memory in any case.
        free: whether each value is made of literals alone.
        fused: whether each op may share a kernel.
    """
    kept = list(stored)
    for _ in range(ROUNDS):
        before = sum(kept)
        _store(flat, kept, free, fused)
        if sum(kept) == before:
            break
    return kept


def _store(
    flat: FlatProgram, kept: list[bool], free: Sequence[bool], fused: Sequence[bool]
) -> None:
    kernels = _kernels(flat, kept, fused)
    readers: dict[int, list[int]] = {}
    for i, op in enumerate(flat.ops):
        for v in op.reads if op.outputs else ():
            readers.setdefault(v, []).append(i)
    for i, op in enumerate(flat.ops):
        if len(op.outputs) != 1 or not fused[i] or op.node.op in VIEWS:
            continue
        (v,), k = op.outputs, len(kernels[i])
        if kept[v] or free[v] or k < 2 or _leads_to_less(flat, kernels, i):
            continue
        sources = _read_for(flat, kept, free, kernels, readers, i)
        read = sum(flat.values[s].type.nbytes for s in sources)
        kept[v] = (k - 1) * read > k * flat.values[v].type.nbytes


def _leads_to_less(flat: FlatProgram, kernels: Sequence[frozenset[int]], i: int) -> bool:
    """Whether a result is read by one op alone, which is in the same kernels and makes no more."""
    (v,) = flat.ops[i].outputs
    readers = flat.readers.get(v, ())
    if len(readers) != 1 or len(readers[0].outputs) != 1:
        return False
    w = readers[0].outputs[0]
    same = kernels[flat.maker[w][0]] == kernels[i]
    return same and flat.values[w].type.nbytes <= flat.values[v].type.nbytes


def _kernels(
    flat: FlatProgram, stored: Sequence[bool], fused: Sequence[bool]
) -> list[frozenset[int]]:
    """Of each op the ops whose kernels compute it, where none share one."""
    found = [_NONE] * len(flat.ops)
    for i in reversed(range(len(flat.ops))):
        op = flat.ops[i]
        readers = [r for v in op.outputs for r in flat.readers.get(v, ()) if r.outputs]
        if not fused[i] or not readers or any(stored[v] for v in op.outputs):
            found[i] = frozenset({i})
        else:
            found[i] = _NONE.union(*(found[flat.maker[r.outputs[0]][0]] for r in readers))
    return found


def _read_for(
    flat: FlatProgram, stored: Sequence[bool], free: Sequence[bool],
    kernels: Sequence[frozenset[int]], readers: Mapping[int, Sequence[int]], i: int,
) -> set[int]:  # fmt: skip
    """Stored values that kernels of an op read for its result alone."""
    inside, sources, wait, here = {i}, set[int](), [-i], kernels[i]

    def alone(v: int) -> bool:
        return all(m in inside or here.isdisjoint(kernels[m]) for m in readers[v])

    while wait:
        for v in flat.ops[-heapq.heappop(wait)].reads:
            if free[v] or not alone(v):
                continue
            if stored[v] or v not in flat.maker:
                sources.add(v)
            elif flat.maker[v][0] not in inside:
                inside.add(flat.maker[v][0])
                heapq.heappush(wait, -flat.maker[v][0])
    return sources
