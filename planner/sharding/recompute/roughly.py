"""Choices by their rough plans, before the program as written has a full plan or after it.

A full plan of a program that memory slows takes long. One of another choice that makes less work
beats it as a rule, and rough plans of both say so before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from ir.trace import Traced

from ...common.request import Request
from ..edited import plan_or_none
from .chosen import Chosen, Rough, T
from .frontier import SecondsOf, work_s
from .least_work import WORTH, Early, or_written
from .variants import Variant
from .variants_in_turn import VariantsInTurn


def of_fastest_roughly(
    traced: Traced,
    variants: VariantsInTurn,
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    early: Early[T],
    cutoff_s: float,
) -> Chosen[T] | None:
    """The plan of the choice of less work whose rough plan is fastest, if faster than as written.

    Choices of more work pay only where a limit of memory slows the program as written, which a full
    plan of it tells. The program as written is planned here only if its quick bound is below the
    step.

    Args:
        traced: the program as written.
        variants: choices.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        seconds_of: seconds of the nodes of a program.
        early: what is known before any full plan.
        cutoff_s: upper limit of the step [s].

    Returns:
        None if memory has room for the program as written, or no rough plan is faster.
    """
    quick = None if request.over else plan_or_none(early.roughly)
    if quick is None or request.over:
        return None
    best = fastest_roughly(traced, variants, quick.known_s, 0.0, quick, request, seconds_of)
    if best is None or request.over:
        return None
    found = plan_or_none(lambda: search(best, cutoff_s))
    if found is None:
        return None
    most_s = work_s(traced, seconds_of(traced))
    return or_written(Chosen(best, found, found.bound_s), traced, most_s, early, request, search)


def fastest_roughly(
    traced: Traced,
    variants: VariantsInTurn,
    step_s: float,
    saving_s: float,
    rough: Rough,
    request: Request,
    seconds_of: Callable[[Traced], SecondsOf],
) -> Variant | None:
    """The choice with the fastest rough plan, if that is faster than the program as written.

    Rough plans end when half of the time that is left is over: the rest is for the search of the
    variant.

    Args:
        traced: the program as written.
        variants: choices.
        step_s: step of a plan of the program as written [s].
        saving_s: seconds of work that a choice may add: what that plan takes longer than without
            a memory limit.
        rough: rough plans.
        request: options and progress.
        seconds_of: seconds of the nodes of a program.
    """
    most_s = work_s(traced, seconds_of(traced)) + saving_s
    timely = takewhile(lambda _: not request.over, variants)

    def is_little(variant: Variant) -> bool:
        little = work_s(variant.traced, seconds_of(variant.traced)) < most_s
        if not little:
            variants.settle(variant)
        return little

    half_s = request.left_s / 2
    least_s = step_s * (1 - WORTH)
    best: Variant | None = None
    for number, variant in enumerate(
        uninterrupted(filter(is_little, timely), request, lambda: True)
    ):
        if best is not None and request.left_s < half_s:
            break
        request.say(f"recompute {number}")
        found_s = rough.step_s(variant, least_s)
        if found_s < math.inf:
            variants.settle(variant)
        if found_s < least_s:
            best, least_s = variant, found_s
    return best


def uninterrupted(
    variants: Iterable[Variant], request: Request, known: Callable[[], bool]
) -> Iterator[Variant]:
    """The variants, until a search was interrupted, or a plan is known and the time is over."""
    for variant in variants:
        if request.interruption.happened or (request.out_of_time and known()):
            return
        yield variant
