"""The variant of a program that is planned: what is computed again, together with its shardings.

Every choice is a program of its own, whose shardings are searched and bounded as those of any
other; so the plan that is chosen is the fastest over choices and shardings together, and the least
of the bounds of all choices is a bound for these choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Generic, Protocol, TypeVar

from ir import digest
from ir.trace import Traced

from ...common.errors import PlanError, ShortError
from ...common.request import Request
from .frontier import SecondsOf, frontier
from .keep import recomputes
from .kinds import chosen_by_kind
from .passes import differentiates
from .saved import Key, Layer, layers_of
from .variants import Variant, kept_by, variant_of

MOST_CHOICES = 8
EVERY_CHOICE_OF = 5  # nodes of a forward pass, of which every choice is planned
CHECKPOINT = ", jax.checkpoint around layers"


class Found(Protocol):
    """Result of a search."""

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        ...

    @property
    def bound_s(self) -> float:
        """Lower bound of the step over all plans of the variant [s]."""
        ...


T = TypeVar("T", bound=Found)


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """The variant to plan.

    found: its plan.
    bound_s: lower bound of the step over all variants that were planned [s].
    """

    variant: Variant
    found: T
    bound_s: float


def choose(
    traced: Traced,
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    cutoff_s: float,
) -> Chosen[T]:
    """Chooses what a program computes again, and plans it.

    A program that keeps everything is chosen if its plan fits, as computing again only adds work;
    no other choice is looked at then.

    Args:
        traced: the program as it was written.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        seconds_of: seconds of the nodes of a program, each split evenly over all devices.
        cutoff_s: upper limit of the step [s].

    Raises:
        PlanError: if no variant has a plan that fits, or is below the cutoff.
    """
    wish = request.options.recompute
    if wish == "written" or not differentiates(traced.program):
        return _only(Variant(traced), search, cutoff_s)
    written = recomputes(traced.program)
    if wish != "auto":
        kept = kept_by(traced)
        layers = layers_of(kept.program)
        return _only(variant_of(kept, chosen_by_kind(layers, wish)), search, cutoff_s)
    kept = kept_by(traced) if written else traced
    first = variant_of(kept, ()) if written else Variant(traced)
    try:
        return _only(first, search, cutoff_s)
    except PlanError as error:
        if error.kind != "does-not-fit":
            raise
        refused = error
    layers = layers_of(kept.program)
    others = [Variant(traced)] if written else []
    return _best(kept, layers, others, request, search, seconds_of, cutoff_s, refused)


def _only(variant: Variant, search: Callable[[Variant, float], T], cutoff_s: float) -> Chosen[T]:
    found = search(variant, cutoff_s)
    return Chosen(variant, found, found.bound_s)


def _best(
    kept: Traced,
    layers: Sequence[Layer],
    others: Sequence[Variant],
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    cutoff_s: float,
    refused: PlanError,
) -> Chosen[T]:
    """The fastest variant that computes something again."""
    best: Chosen[T] | None = None
    beaten: PlanError | None = None
    bounds: list[float] = []
    for number, variant in enumerate(chain(_variants(kept, layers, seconds_of), others)):
        if number:
            request.say(f"recompute {number}")
        limit = cutoff_s if best is None else min(cutoff_s, best.found.step_s)
        try:
            found = search(variant, limit)
        except PlanError as error:
            if error.kind == "not-faster":
                beaten = error
                bounds.append(limit)
            elif error.kind != "does-not-fit":
                raise
            elif (error.needs_bytes or 0) < (refused.needs_bytes or float("inf")):
                refused = error
            continue
        bounds.append(found.bound_s)
        if best is None or found.step_s < best.found.step_s:
            best = Chosen(variant, found, found.bound_s)
    if best is not None:
        return Chosen(best.variant, best.found, min(bounds))
    raise beaten or _everything_tried(refused)


def _everything_tried(error: PlanError) -> PlanError:
    kind = ShortError if isinstance(error, ShortError) else PlanError
    return kind(
        error.message, kind=error.kind, where=error.where, needs_bytes=error.needs_bytes,
        remedy=error.remedy.replace(CHECKPOINT, ""),
    )  # fmt: skip


def _variants(
    kept: Traced, layers: Sequence[Layer], seconds_of: Callable[[Traced], SecondsOf]
) -> Iterator[Variant]:
    """Distinct variants, those that compute least again first."""
    if sum(node.again for layer in layers for node in layer.nodes) <= EVERY_CHOICE_OF:
        choices = _every_choice(layers)
    else:
        found = frontier(layers, seconds_of(kept), MOST_CHOICES)
        choices = [choice.values for choice in found]
    seen = {digest(kept.graph)}
    for values in choices:
        variant = variant_of(kept, values)
        name = digest(variant.traced.graph)
        if name not in seen:
            seen.add(name)
            yield variant


def _every_choice(layers: Sequence[Layer]) -> list[frozenset[Key]]:
    each = [layer.keys([node]) for layer in layers for node in layer.nodes if node.again]
    subsets = chain.from_iterable(combinations(each, n) for n in range(1, len(each) + 1))
    return [frozenset[Key]().union(*subset) for subset in subsets]
