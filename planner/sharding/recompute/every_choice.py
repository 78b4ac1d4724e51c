"""All choices of what a small program computes again, by their rough plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, takewhile

from ir import digest
from ir.trace import Traced

from ...common.errors import PlanError
from ...common.request import Request
from .chosen import Chosen, Rough, T
from .saved import Key
from .variants import Variant, variant_of


def every_choice(each: Sequence[frozenset[Key]]) -> list[frozenset[Key]]:
    """The results of every set of operations but the empty one, small sets first."""
    subsets = chain.from_iterable(combinations(each, n) for n in range(1, len(each) + 1))
    return [frozenset[Key]().union(*subset) for subset in subsets]


def best_of_every(
    first: Callable[[], Chosen[T]],
    kept: Traced,
    each: Sequence[frozenset[Key]],
    rough: Callable[[T], Rough],
    request: Request,
    search: Callable[[Variant, float], T],
    cutoff_s: float = float("inf"),
) -> Chosen[T]:
    """The best plan after all choices whose rough plan is faster, the fastest of these first.

    Args:
        first: the best of some choices; where none of them fits, any that does takes its place.
        kept: the program that keeps everything.
        each: results of every operation that may be computed again.
        rough: rough plans on the mesh of a plan.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        cutoff_s: upper limit of the step [s].

    Raises:
        PlanError: if no choice fits, or is below the cutoff.
    """
    try:
        best = first()
    except PlanError as error:
        if error.kind != "does-not-fit" or request.over:
            raise
        best = _first_that_fits(error, [*_distinct(kept, each)], request, search, cutoff_s)
    if request.over:
        return best
    quick = rough(best.found)
    timely = takewhile(lambda _: not request.over, _distinct(kept, each))
    priced = [(quick.step_s(variant), i, variant) for i, variant in enumerate(timely)]
    for step_s, number, variant in sorted(priced, key=lambda row: row[:2]):
        if step_s >= best.found.step_s or request.over:
            break
        request.say(f"recompute {number} of all")
        try:
            found = search(variant, best.found.step_s)
        except PlanError as error:
            if error.kind not in ("not-faster", "does-not-fit"):
                raise
            continue
        if found.step_s < best.found.step_s:
            best = Chosen(variant, found, min(best.bound_s, found.bound_s))
    return best


def _first_that_fits(
    error: PlanError,
    variants: Sequence[Variant],
    request: Request,
    search: Callable[[Variant, float], T],
    cutoff_s: float,
) -> Chosen[T]:
    """The first variant that fits, those that compute most again first; else raises the error."""
    for variant in reversed(variants):
        if request.over:
            break
        try:
            found = search(variant, cutoff_s)
        except PlanError as other:
            if other.kind not in ("not-faster", "does-not-fit"):
                raise
            continue
        return Chosen(variant, found, found.bound_s)
    raise error


def _distinct(kept: Traced, each: Sequence[frozenset[Key]]) -> Iterator[Variant]:
    """Every choice, of those that make equal programs the first."""
    seen: set[str] = set()
    for values in [frozenset[Key](), *every_choice(each)]:
        variant = variant_of(kept, values)
        name = digest(variant.traced.graph)
        if name not in seen:
            seen.add(name)
            yield variant
