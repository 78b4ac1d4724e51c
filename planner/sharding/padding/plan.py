"""The plan of a program with padded dimensions, where that is faster than the plan without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ir.trace import Traced

from ...common.request import Request
from ..edited import as_edited, found_or_none
from ..recompute.rough_plans import RoughPlans
from ..recompute.variants import Variant
from ..rewrite.price import Pricer
from ..search.context import Candidate
from ..search.over_meshes import limit_of
from ..searched import Searched
from .choose import choose


def with_padding(
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
    if not options.padding or options.baseline is not None or request.over:
        return known, traced
    request.say("padding")
    again = replace(request, options=replace(options, baselines=False))

    def rough_s(program: Traced, cutoff_s: float) -> float:
        rough = RoughPlans(program, lambda t: pricer(t, best), limit_of(options, machine))
        return rough.step_s(Variant(program), cutoff_s)

    chosen = found_or_none(request, lambda: choose(
        traced, best, machine.num_devices,
        lambda program, cutoff_s: search(Variant(program), cutoff_s, again), rough_s,
    ))  # fmt: skip
    if chosen is None:
        return known, traced
    return as_edited(known, chosen.found, padded=chosen.rows), chosen.traced
