"""The plan of a program with its causal sequences in zigzag, where that is faster.

The program as it is has a plan first. Where that splits causal attention along the sequence over n
devices, in whatever way, it and the program in the order of n parts have rough plans on the same
mesh; if that in order is faster, it is planned as every program is, and kept if the result is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from ir import ATTENTION, RING, ZIGZAG
from ir.analysis import Place
from ir.trace import Traced

from ...common.request import Request
from ...files.program_plan import OrderedRow
from ..edited import as_edited, found_or_none
from ..padding.classified import Classified
from ..recompute.rough_plans import RoughPlans
from ..recompute.variants import Variant
from ..rewrite.price import Pricer
from ..search.context import Candidate
from ..search.over_meshes import limit_of
from ..searched import Searched
from .edit import takes
from .rows import as_ordered

ALONG = ("t", RING, ZIGZAG)  # what splits queries


def with_order(
    known: Searched,
    traced: Traced,
    request: Request,
    search: Callable[[Variant, float, Request], Searched],
    pricer: Callable[[Traced, Candidate], Pricer],
) -> tuple[Searched, Traced]:
    """The faster plan, and the program that it is of.

    Args:
        known: the plan of the program as it is.
        traced: that program.
        request: machine, options and progress.
        search: plans a program below some seconds, as requested.
        pricer: plans a program on the mesh of a plan, without a proof.
    """
    best, machine, options = known.outcome.best, request.machine, request.options
    if not options.sequence_order or options.baseline or request.over:
        return known, traced
    row = most_split(traced, best)
    if row is None:
        return known, traced
    request.say("sequences in zigzag")
    again = replace(request, options=replace(options, baselines=False))
    edited = as_ordered(traced, (row,), "plan")
    rough = RoughPlans(edited, lambda t: pricer(t, best), limit_of(options, machine))
    least_s = best.account.step_s

    def faster() -> Searched | None:
        straight_s, ordered_s = (rough.step_s(Variant(t)) for t in (traced, edited))
        return search(Variant(edited), least_s, again) if ordered_s < straight_s else None

    found = found_or_none(request, faster)
    if found is None or found.step_s >= least_s:
        return known, traced
    return as_edited(known, found, ordered=(row,)), edited


def most_split(traced: Traced, best: Candidate) -> OrderedRow | None:
    """The sequence and the order that most kernels of a plan would work in, None if none would."""
    parts: dict[Place, int] = {}
    for op in best.builder.flat.ops:
        roles = best.decisions.ops.get(op.place, ())
        if op.node.op in ATTENTION and roles:
            split = zip(best.mesh.names, roles, strict=True)
            parts[op.place] = best.mesh.product(tuple(a for a, role in split if role in ALONG))
    if all(n == 1 for n in parts.values()):
        return None
    return row_of(traced, parts)


def row_of(traced: Traced, parts: Mapping[Place, int]) -> OrderedRow | None:
    """The row of the sequence of most kernels that can be in zigzag, None if none can.

    Args:
        traced: the program.
        parts: place of each kernel -> devices that split its sequence.
    """
    known = Classified(traced.graph)
    counts: Counter[tuple[int, int]] = Counter()
    for i, op in enumerate(known.flat.ops):
        n = parts.get(op.place, 1)
        if n > 1 and takes(known, i, n):
            counts[known.classes.of_factor(i, "t"), n] += 1
    if not counts:
        return None
    (sequence, n), _ = counts.most_common(1)[0]
    for (place, number), v in sorted(known.flat.names.items()):
        for d, size in enumerate(known.flat.values[v].type.shape):
            if size > 1 and size % (2 * n) == 0 and known.classes.of_dim(v, d) == sequence:
                return OrderedRow(place, number, d, size, n)
    return None
