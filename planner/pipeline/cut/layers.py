# pyright: basic
"""The equations of a loss as a sequence of slots between which it can be cut.

An op is *free* if each stage that reads its result can compute it itself: it is cheap and depends
on the batch alone (masks, random numbers, one-hot labels) or on parameters alone (casts). All
others run once, in their slot. A `scan` over stacked parameters has a slot for each iteration.

Ops whose results a single later op reads (an embedding of the decoder's tokens, written before the
encoder) move to just before that op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ir import Scan

from ...training.equation_list import Equation, Written
from .chain import Chain, Slot
from .entries import Read, Reading, read_bytes
from .equations import Equations, flops, is_heavy, size_bytes
from .weights import Weight, recomputes, weigh


@dataclass(frozen=True)
class Layers:
    """The equations of a loss, sorted into slots and free ops.

    ops: the ops that run once, in order.
    slots: (op, iteration) of each slot; the iteration is -1 for an op that is not a loop over
        layers.
    free: value -> the free op that computes it.
    of_params: free values and leaves that depend on parameters.
    """

    program: Equations
    ops: tuple[Equation, ...]
    slots: tuple[tuple[int, int], ...]
    free: dict[int, Equation]
    of_params: frozenset[int]

    @cached_property
    def maker(self) -> dict[int, int]:
        """Value -> op that computes it."""
        return {v: i for i, op in enumerate(self.ops) for v in op.outs}


def layers_of(program: Equations) -> Layers:
    """Sorts the equations of a loss."""
    free: dict[int, Equation] = {}
    of_params, of_data = set(program.params), set(program.batch)
    core: list[Equation] = []
    once: set[int] = set()
    for op in program.ops:
        reads = set(op.reads)
        mixed = bool(reads & once) or (bool(reads & of_params) and bool(reads & of_data))
        if mixed or is_heavy(op.eqn):
            core.append(op)
            once.update(op.outs)
            continue
        free.update((v, op) for v in op.outs)
        if reads & of_params:
            of_params.update(op.outs)
        if reads & of_data:
            of_data.update(op.outs)
    ordered = _slid(core, program.outputs)
    slots = [
        (i, k)
        for i, op in enumerate(ordered)
        for k in (range(op.params["length"]) if _is_stack(op, of_params, program) else (-1,))
    ]
    return Layers(program, tuple(ordered), tuple(slots), free, frozenset(of_params))


def _is_stack(op: Equation, of_params: set[int], program: Equations) -> bool:
    """Whether an op is a loop over layers: most of its parameters are sliced by iteration."""
    if op.name != "scan" or op.params["length"] < 2:
        return False
    consts, _, xs = Scan.in_jaxpr(op.params).operands(op.ins)

    def weight(values: Sequence[int | Written]) -> float:
        own = [v for v in values if not isinstance(v, Written) and v in of_params]
        return sum(size_bytes(program.avals[v]) for v in own)

    return weight(xs) > weight(consts)


def _slid(ops: Sequence[Equation], outputs: Sequence[int | Written]) -> list[Equation]:
    """Moves ops that a single op reads to just before it, if all ops before them move as well."""
    maker = {v: i for i, op in enumerate(ops) for v in op.outs}
    before = [sorted({maker[v] for v in op.reads if v in maker}) for op in ops]
    readers = Counter(j for found in before for j in found)
    kept = {maker[v] for v in outputs if not isinstance(v, Written) and v in maker}
    slides: list[bool] = []
    for i, found in enumerate(before):
        slides.append(all(slides[j] for j in found) and i not in kept and readers[i] == 1)
    ordered: list[Equation] = []
    for i, op in enumerate(ops):
        if not slides[i]:
            late = _behind(i, before, slides)
            ordered += [ops[j] for j in sorted(late)]
            ordered.append(op)
    return ordered


def _behind(i: int, before: Sequence[Sequence[int]], slides: Sequence[bool]) -> set[int]:
    """Ops that move to just before op i."""
    found: set[int] = set()
    todo = [i]
    while todo:
        new = {j for j in before[todo.pop()] if slides[j]} - found
        found |= new
        todo.extend(new)
    return found


def chain_of(layers: Layers) -> Chain:
    """The chain of slots: work and parameters of each slot, bytes across each cut."""
    across = _across(layers)
    params = _leaves_of(layers)
    slots: list[Slot] = []
    w = Weight()
    for s, (i, k) in enumerate(layers.slots):
        op = layers.ops[i]
        share = 1.0 if k < 0 else 1.0 / op.params["length"]
        own = tuple((p, size * share) for p, size in params[i])
        held = [isinstance(v, Written) or v in layers.of_params for v in op.ins]
        w = weigh(op.eqn, held).scaled(share) if k <= 0 else w
        slots.append(Slot(
            op.name, i, flops(op.eqn) * share, own, w.moved_bytes, w.saved_bytes, w.kept_bytes,
            w.again_flops, w.again_bytes, w.widest_bytes, flops(op.eqn, others=False) * share,
        ))  # fmt: skip
        if k > 0:
            across[s] += sum(size_bytes(v.aval) for v in _carry(op))
    return Chain(tuple(slots), tuple(across), any(recomputes(op.eqn) for op in layers.ops))


def _across(layers: Layers) -> list[float]:
    """Bytes of the values that are made before each cut and read after it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for s, (i, _) in enumerate(layers.slots):
        first.setdefault(i, s)
        last[i] = s
    reader: dict[int, int] = {}
    for i, op in enumerate(layers.ops):
        for v in op.reads:
            if v in layers.maker:
                at = first[i] if _at_start(op, v) else last[i]
                reader[v] = max(reader.get(v, -1), at)
    across = [0.0] * (len(layers.slots) + 1)
    for v, at in reader.items():
        for s in range(last[layers.maker[v]] + 1, at + 1):
            across[s] += size_bytes(layers.program.avals[v])
    return across


def _carry(op: Equation) -> Sequence[Any]:
    return Scan.in_jaxpr(op.params).results(op.eqn.outvars)[0]


def _at_start(op: Equation, v: int) -> bool:
    """Whether a loop reads a value only as an initial carry."""
    if op.name != "scan":
        return True
    consts, _, xs = Scan.in_jaxpr(op.params).operands(op.ins)
    return v not in consts and v not in xs


def _leaves_of(layers: Layers) -> list[tuple[tuple[Read, float], ...]]:
    """Entries of parameters that each op reads, directly or through free ops, and their bytes.

    What an op reads whole, stages hold whole: of such parameters all ops read all entries.
    """
    program = layers.program
    number = {v: k for k, v in enumerate(program.params)}
    reading = Reading(program, layers.free)
    found = [reading.of(op.reads) for op in layers.ops]
    loops = {i for i, k in layers.slots if k >= 0}
    size = {v: (program.avals[v].shape or (1,))[0] for v in program.params}
    whole = {
        v for i, reads in enumerate(found) if i not in loops
        for v, low, high in reads if high - low == size[v]
    }  # fmt: skip
    return [
        tuple(
            ((number[v], low, high), read_bytes(program, (v, low, high)))
            for v, low, high in sorted({(v, 0, size[v]) if v in whole else (v, low, high)
                                        for v, low, high in reads})
        )
        for reads in found
    ]  # fmt: skip
