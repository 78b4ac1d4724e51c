"""The variant of a program that is planned: what is computed again, together with its shardings.

Every choice is a program of its own, whose shardings are searched and bounded as those of any
other; so the plan that is chosen is the fastest over choices and shardings together, and the least
of the bounds of all choices is a bound for these choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from ir import digest
from ir.trace import Traced

from ...common.errors import PlanError, ShortError
from ...common.request import Request
from ...common.stop import PART, PART_STATES
from ..search.context import WORTH as LEAST_GAIN
from .choices import EVERY_CHOICE_OF, recomputable
from .chosen import Chosen, Rough, T
from .every_choice import best_of_every
from .frontier import SecondsOf
from .host_states import State
from .keep import recomputes
from .kinds import KINDS, chosen_by_kind
from .least_work import WORTH, Early, of_least_work
from .passes import differentiates
from .roughly import fastest_roughly, of_fastest_roughly, uninterrupted
from .saved import layers_of
from .variants import Variant, kept_by, may_wait, variant_of, with_states
from .variants_in_turn import VariantsInTurn, in_turn

# Share of the memory limit below which more micro-batches, choices of stages, and rewrites of the
# program that keeps all values are not looked at for want of memory; not measured.
SPARE = 0.5
# Share of the memory limit above which the least peak of the program as written, or the peak of its
# plan, may mean that memory slows it: GPT-175B on 1,024 A100 needs at least 0.17, Llama-3 405B on
# 512 H100 0.28, and both are slowed; the fastest plan that fits may need far less than another.
SLOWED = 0.1
# Nodes of which every choice has a rough plan; `benchmarks memory-oracle` has programs of 9.
ROUGHLY_EVERY_OF = 9
CHECKPOINT = ", jax.checkpoint around layers"
BISECTIONS = 3  # plans with some of the state on the host; not measured


def choose(
    traced: Traced,
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    rough: Callable[[T], Rough],
    cutoff_s: float,
    copy_s: Callable[[float], float] | None = None,
    *,
    early: Early[T] | None = None,
    states: Sequence[State] | None = None,
    always: int = 0,
) -> Chosen[T]:
    """Chooses what a program computes again and what waits on the host, and plans it.

    With "auto" a program of which another choice makes clearly less work, as it computes less again
    or keeps less that is written and read once, is planned as `of_least_work` says. Any other is
    planned first as it is written. If it does not fit, every other choice is planned. If it fits,
    but a limit of memory makes its step s seconds longer, choices that add less than s seconds of
    work have a rough plan each; the one with the fastest is planned, and kept if its step is
    shorter. With "search" every choice is planned, the program as written first.

    Args:
        traced: the program as it was written.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        seconds_of: seconds of the nodes of a program, each split evenly over all devices.
        rough: rough plans of variants, given the plan of the program as it is written.
        cutoff_s: upper limit of the step [s].
        copy_s: seconds of copying an amount of all devices together to the host [byte]; None if
            nothing may go there that the program does not send there.
        early: what is known before any full plan; None if a program that fits and is not slowed
            down by memory is planned as it is written.
        states: arguments that wait on the host in every variant, in the order in which they go
            there; of the fastest, then as few as fit. None if none may.
        always: number of those that have to, as less was tried.

    Raises:
        PlanError: if no variant has a plan that fits, or is below the cutoff.
    """
    if states is None:
        return _chosen(traced, request, search, seconds_of, rough, cutoff_s, copy_s, early)
    every = [one.argument for one in states]
    saved_s = 0.0 if copy_s is None else 2 * copy_s(sum(one.nbytes for one in states))
    tried: dict[str, Variant] = {}

    def away(variant: Variant, limit_s: float) -> T:
        name = digest(variant.traced.graph)
        tried[name] = with_states(variant, every)
        return search(tried[name], limit_s)

    # with less state on the host a step is shorter by no more than its copies
    found = _chosen(traced, request, away, seconds_of, rough, cutoff_s + saved_s, copy_s)
    most = replace(found, variant=tried[digest(found.variant.traced.graph)])
    least = _with_less_state(most, found.variant, every, always, request, search)
    if least.found.step_s >= cutoff_s:
        raise PlanError(
            "no plan with state on the host is below the step that there is already",
            kind="not-faster", where="plan", remedy="keep that one",
        )  # fmt: skip
    return least


def _with_less_state(
    most: Chosen[T],
    here: Variant,
    states: Sequence[int],
    always: int,
    request: Request,
    search: Callable[[Variant, float], T],
) -> Chosen[T]:
    """The plan with as few of the arguments on the host as fit, found by bisection.

    Args:
        most: the plan with all of them there.
        here: its variant with all of them on the devices.
        states: arguments, in the order in which they go to the host.
        always: number of those with which alone it does not fit.
        request: options and progress.
        search: plans a variant.
    """
    best, few, many = most, always, len(states)
    for _ in range(BISECTIONS):
        if many - few < 2 or request.over:
            break
        count = (few + many) // 2
        request.say(f"{count} arguments on the host")
        variant = with_states(here, states[:count])
        try:
            found = search(variant, best.found.step_s)
        except PlanError as error:
            if error.kind not in ("not-faster", "does-not-fit"):
                raise
            few = count
        else:
            many = count
            if found.step_s < best.found.step_s:
                best = Chosen(variant, found, min(best.bound_s, found.bound_s))
    return replace(best, notes=(*dict.fromkeys((*most.notes, PART_STATES)),))


def _chosen(
    traced: Traced,
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    rough: Callable[[T], Rough],
    cutoff_s: float,
    copy_s: Callable[[float], float] | None,
    early: Early[T] | None = None,
) -> Chosen[T]:
    """As `choose`, with all state on the devices."""
    wish = request.options.recompute
    if wish == "written" or not differentiates(traced.program):
        return _only(Variant(traced), search, cutoff_s)
    kept = kept_by(traced)
    layers = layers_of(kept.program)

    def variants_of(without: Sequence[Traced], *, few_first: bool) -> VariantsInTurn:
        return in_turn(kept, layers, seconds_of, without, copy_s, few_first=few_first)

    if wish in KINDS:
        return _only(variant_of(kept, chosen_by_kind(layers, wish)), search, cutoff_s)
    refused = None
    if wish == "auto":
        more = None
        if early is not None:
            more = of_least_work(traced, kept, layers, request, search, seconds_of, early, cutoff_s)
        if more is None and early is not None and recomputes(traced.program):
            variants = variants_of([traced], few_first=True)
            more = of_fastest_roughly(
                traced, variants, request, search, seconds_of, early, cutoff_s
            )
        if more is not None:
            return replace(more, notes=(PART,))
        variants = variants_of([traced], few_first=True)
        found = _written(traced, variants, request, search, seconds_of, rough, cutoff_s)
        if isinstance(found, Chosen):  # other choices may be less work by a little
            return replace(found, notes=(PART,)) if recomputable(layers) else found
        refused = found
    variants = variants_of([traced] if refused else [], few_first=refused is None)
    others = [] if refused else [Variant(traced)] if recomputes(traced.program) else []
    each = recomputable(layers)

    def first() -> Chosen[T]:
        return _best(others, variants, request, search, cutoff_s, refused)

    roughly = EVERY_CHOICE_OF < len(each) <= ROUGHLY_EVERY_OF
    best = (
        best_of_every(first, kept, each, rough, request, search, cutoff_s) if roughly else first()
    )
    every = len(each) <= EVERY_CHOICE_OF and not request.over
    every = every and (copy_s is None or not may_wait(kept.program))  # not all sets of values do
    return best if every else replace(best, notes=(PART,))


def _written(
    traced: Traced,
    variants: VariantsInTurn,
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    rough: Callable[[T], Rough],
    cutoff_s: float,
) -> Chosen[T] | PlanError:
    """As `_where_memory_slows`; the error of the program as written if it does not fit."""
    try:
        written = _only(Variant(traced), search, cutoff_s)
    except PlanError as error:
        if error.kind != "does-not-fit":
            raise
        return error
    try:
        return _where_memory_slows(written, variants, request, search, seconds_of, rough)
    except KeyboardInterrupt:
        if not request.interruption.kept(found=True):
            raise
        return replace(written, notes=(PART,))


def _only(variant: Variant, search: Callable[[Variant, float], T], cutoff_s: float) -> Chosen[T]:
    found = search(variant, cutoff_s)
    return Chosen(variant, found, found.bound_s)


def _where_memory_slows(
    written: Chosen[T],
    variants: VariantsInTurn,
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    rough: Callable[[T], Rough],
) -> Chosen[T]:
    """The plan of the program as written, or a faster one if the memory limit makes it slower."""
    if request.over:
        return replace(written, notes=(PART,))
    quick, step_s = rough(written.found), written.found.step_s
    saving_s = quick.saving_s()
    if saving_s <= WORTH * step_s:
        return written
    best = fastest_roughly(
        written.variant.traced, variants, step_s, saving_s, quick, request, seconds_of
    )
    if best is None or request.over:
        return replace(written, notes=(PART,))
    try:
        found = search(best, step_s)
    except PlanError as error:
        if error.kind not in ("not-faster", "does-not-fit"):
            raise
        return replace(written, notes=(PART,))
    chosen = Chosen(best, found, found.bound_s) if found.step_s < step_s else written
    return replace(chosen, bound_s=min(written.bound_s, found.bound_s), notes=(PART,))


def _best(
    first: Sequence[Variant],
    variants: VariantsInTurn,
    request: Request,
    search: Callable[[Variant, float], T],
    cutoff_s: float,
    refused: PlanError | None,
) -> Chosen[T]:
    """The fastest variant that fits.

    Args:
        first: variants that are planned before the others.
        variants: the others.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        cutoff_s: upper limit of the step [s].
        refused: why the program as it is written does not fit, if that is known.
    """
    best: Chosen[T] | None = None
    beaten: PlanError | None = None
    bounds: list[float] = []
    timely = uninterrupted(chain(first, variants), request, lambda: best is not None)
    for number, variant in enumerate(timely):
        request.say(f"recompute {number}")
        limit = cutoff_s if best is None else min(cutoff_s, best.found.step_s)
        try:
            found = search(variant, limit)
        except PlanError as error:
            if error.kind == "not-faster":
                variants.settle(variant)
                beaten = error
                bounds.append(limit * (1 - LEAST_GAIN))
            elif error.kind != "does-not-fit":
                raise
            elif refused is None or needed(error) < needed(refused):
                refused = error
            continue
        except KeyboardInterrupt:
            if not request.interruption.kept(found=best is not None):
                raise
            break
        variants.settle(variant)
        bounds.append(found.bound_s)
        if best is None or found.step_s < best.found.step_s:
            best = Chosen(variant, found, found.bound_s)
    if best is not None:
        return Chosen(best.variant, best.found, min(bounds))
    raise beaten or _everything_tried(refused)


def needed(error: PlanError) -> float:
    """Bytes that a plan needs at least, if its error says so."""
    return error.needs_bytes or float("inf")


def _everything_tried(error: PlanError | None) -> PlanError:
    assert error is not None
    kind = ShortError if isinstance(error, ShortError) else PlanError
    return kind(
        error.message, kind=error.kind, where=error.where, needs_bytes=error.needs_bytes,
        remedy=error.remedy.replace(CHECKPOINT, ""),
    )  # fmt: skip
