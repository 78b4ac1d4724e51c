"""Repeated blocks of a program: ops and values that share one decision.

Layers written out by a Python loop have the same structure. Ops get one class if they are of one
kind and their surroundings, out to `DEPTH` ops in every direction, are equal; so do values. Forward
pass, backward pass and optimizer are found alike. In the middle of a program a class has a member
per layer; the first and last few ops of it stay on their own, because their surroundings differ.

The cost of a program does not grow with the number of members of a class, so neither does the
time to plan it. In return layers cannot be sharded differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from ir import Literal
from ir.analysis import FlatOp, Incidence, Kinds, accumulators, refine

from .facts import Facts

DEPTH = 6
# Smaller programs, and those that hardly repeat, are planned op by op.
LEAST_OPS = 2_000
MOST_SHARE = 0.6
RESULTS = 1000  # slots of results come after all slots of operands


@dataclass(frozen=True)
class Repeats:
    """For every op and every value the first member of its class."""

    op: tuple[int, ...]
    value: tuple[int, ...]

    @property
    def classes(self) -> int:
        return len(set(self.op))


def repeats_of(
    facts: Facts, kinds: Kinds, mark: Callable[[int], Hashable], depth: int = DEPTH
) -> Repeats:
    """Finds the classes of a program's ops and values.

    Args:
        facts: facts of the program.
        kinds: kinds of its dimensions, equal for all members of a class.
        mark: further properties that must be equal: roles, the user's wishes.
        depth: distance to which surroundings are compared [ops].
    """
    flat, traffic = facts.flat, facts.traffic
    sums, results = set(accumulators(flat)), set(flat.outputs)
    values: list[Hashable] = [
        (
            value.type, value.kind, value.weight, traffic.stored[v], traffic.free[v],
            facts.lifetimes.owns[v], v in facts.waits,
            facts.partial[v], v in facts.shared, v in facts.in_place, v in flat.forced,
            v in flat.stacked, facts.buffers(v), v in sums, v in results, mark(v),
            kinds.of_value(v),
        )
        for v, value in enumerate(flat.values)
    ]  # fmt: skip

    inside = _inside(facts)
    known: dict[Hashable, int] = {}
    alike = [known.setdefault(value, len(known)) for value in values]

    def seen(op: FlatOp) -> Hashable:
        return tuple(v.type if isinstance(v, Literal) else alike[v] for v in op.inputs)

    ops: list[Hashable] = [
        (
            op.node.op, id(facts.spec(op)), op.weight, traffic.reads[i], traffic.launches[i],
            traffic.writes[i], frozenset(inside[k] for k in traffic.kernels[i]),
            facts.is_made(op), seen(op), tuple(alike[v] for v in op.outputs),
            kinds.of_op(i),
        )
        for i, op in enumerate(flat.ops)
    ]  # fmt: skip
    return Repeats(*refine(ops, alike, _incidence(facts), depth))


def _inside(facts: Facts) -> dict[int, Hashable]:
    """Kernel -> what it computes and moves, on which its bound depends."""
    flat, traffic = facts.flat, facts.traffic
    found: dict[int, Counter[Hashable]] = {}
    for i, op in enumerate(flat.ops):
        one = op.node.op, id(facts.spec(op)), traffic.reads[i], traffic.writes[i]
        for kernel in traffic.kernels[i]:
            found.setdefault(kernel, Counter())[one] += 1
    return {kernel: frozenset(count.items()) for kernel, count in found.items()}


def worth_folding(found: Repeats) -> bool:
    """Whether a program repeats itself enough."""
    count = len(found.op)
    return count >= LEAST_OPS and found.classes <= MOST_SHARE * count


def _incidence(facts: Facts) -> Incidence:
    flat = facts.flat
    touches = [
        (i, v, slot)
        for i, op in enumerate(flat.ops)
        for slot, v in (*enumerate(op.inputs), *enumerate(op.outputs, RESULTS))
        if isinstance(v, int)
    ]
    joined = [(link.source, link.target, link.lift) for link in flat.links]
    joined += [(outer, port, 2) for outer, port in flat.stacked.items()]
    ends = [(facts.tied_in[k], v, 3) for k, v in enumerate(flat.outputs) if k in facts.tied_in]
    joined += [(a, v, how) for a, v, how in ends if isinstance(v, int)]
    op, value, slot = np.array(touches, dtype=np.intp).reshape(-1, 3).T
    return Incidence(op, value, slot, np.array(joined, dtype=np.intp).reshape(-1, 3))
