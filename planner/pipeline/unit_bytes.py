"""Least bytes of a run between neighbouring places, also as a part of a longer stage.

A stage of runs i to j - 1 with f micro-batches in flight needs at least

    sum of h_k  +  max over k of (sum over r < k of s_r  +  m_k)  +  (f - 1) sum of c_k

on all of its devices together: what it holds for all micro-batches, its parameters, their states
and sums of gradients, h; while run k is computed, what the runs before it have saved of this
micro-batch for their backward passes, s, and the most that k has at one moment, m; and what other
micro-batches in flight have saved, c. Values at the borders of a run do not count, nor those that
kernels make which may reach over them, unless products read or make them, nor what follows from
neither parameters nor values of other runs, as such values may be shared. Every buffer that counts
is split over all devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ir import lookup
from ir.analysis import FlatProgram

from ..sharding.cost.least_seconds import outer_kernels
from ..sharding.problem.facts import Facts
from .cut.stage_training_step import StageTrainingStep
from .divide.stage_price import PRODUCTS
from .stage_units import borders_of, ops_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """Least bytes of a run, on all of its devices together.

    held: for all micro-batches.
    saved: of one micro-batch between its passes.
    most: of one micro-batch at one moment; passing: the same without what is saved.
    flying: that each further micro-batch in flight holds.
    """

    held: float
    saved: float
    most: float
    flying: float
    passing: float = 0.0


def bytes_of(stage: StageTrainingStep, facts: Facts, *, is_shared: bool) -> UnitBytes:
    """Least bytes of a run.

    Args:
        stage: the run as a stage.
        facts: facts of its program.
        is_shared: whether others read parameters of it too, which then do not count.
    """
    flat, args, parts = facts.flat, stage.program.args, stage.program.parts
    inside, borders = (stage.loop, 0), borders_of(stage, flat)
    own, sums = [], set[int]()
    if not is_shared:
        own = [flat.inputs[k] for k in (*stage.params, *stage.states)]
        sums = {flat.names[inside, v] for v in args["sums"] if (inside, v) in flat.names}
    inner = _after(flat, {*own, *sums, *borders}) - borders
    outer, passes = outer_kernels(facts, borders), set(ops_of(stage, flat)[0])
    products = [op for op in flat.ops if lookup(op.node.op).family in PRODUCTS]
    stored = {v for op in products for v in (*op.reads, *op.outputs)}  # whatever is fused
    made = {
        v for i in passes if flat.ops[i].place[:2] == inside
        for v in inner.intersection(flat.ops[i].outputs)
        if v in stored or outer.isdisjoint(facts.traffic.kernels[i])
    }  # fmt: skip
    held = sum(_bytes(facts, v) for v in (*own, *sums) if flat.values[v].type.rank)
    late = {i for i in parts.backward.nodes if i not in parts.forward.nodes}
    forward = [flat.ops[i].time for i in passes
               if flat.ops[i].place[:2] == inside and flat.ops[i].place[2] not in late]  # fmt: skip
    change, stays = np.zeros((2, flat.clock + 2))
    saved, between = 0.0, max(forward, default=0) + 1
    for v in made:
        op = None if v in facts.shared else flat.made_by(v)
        start, end = facts.op_span(op) if op else facts.spans[v]
        if end > start:
            size, is_saved = _bytes(facts, v), start < between < end
            for moments in (change,) if is_saved else (change, stays):
                moments[start] += size
                moments[min(end, len(moments) - 1)] -= size
            saved += size * is_saved
    kept = {flat.names[inside, v] for v in parts.saved if (inside, v) in flat.names}
    flying = sum(flat.values[v].type.nbytes for v in kept & inner)
    most, passing = (float(np.cumsum(moments).max()) for moments in (change, stays))
    return UnitBytes(float(held), saved, most, float(flying), passing)


def on_host(unit: UnitBytes) -> UnitBytes:
    """The same run where all that it saves may wait in the memory of the host."""
    return replace(unit, saved=0.0, most=unit.passing, flying=0.0)


def needed_bytes(units: Sequence[UnitBytes], flight: int) -> Floats:
    """Least bytes of every run of neighbouring runs, [first place, last place].

    Args:
        units: the runs between neighbouring places.
        flight: micro-batches in flight.
    """
    n = len(units) + 1
    held, saved, most, flying = (
        np.array([getattr(unit, name) for unit in units], dtype=np.float64)
        for name in ("held", "saved", "most", "flying")
    )
    before = np.concatenate(((0.0,), np.cumsum(saved)))
    always = np.concatenate(((0.0,), np.cumsum(held + (flight - 1) * flying)))
    found = np.zeros((n, n))
    for i in range(n - 1):
        ends = np.maximum.accumulate(before[i:-1] + most[i:]) - before[i]
        found[i, i + 1 :] = always[i + 1 :] - always[i] + ends
    return found


def _bytes(facts: Facts, v: int) -> float:
    return float(facts.flat.values[v].type.nbytes * facts.buffers(v))


def _after(flat: FlatProgram, values: Iterable[int]) -> set[int]:
    """The given values, and all that follow from them."""
    follow: dict[int, list[int]] = {}
    for op in flat.ops:
        for v in op.reads:
            follow.setdefault(v, []).extend(op.outputs)
    for link in flat.links:
        follow.setdefault(link.source, []).append(link.target)
    for outer, port in flat.stacked.items():
        follow.setdefault(port, []).append(outer)
    found, todo = set[int](), [*values]
    while todo:
        v = todo.pop()
        if v not in found:
            found.add(v)
            todo += follow.get(v, ())
    return found
