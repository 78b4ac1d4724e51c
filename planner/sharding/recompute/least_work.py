"""The choice of what to compute again that makes a program the least work and fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice, takewhile
from typing import Protocol

from ir import digest
from ir.analysis import offloads
from ir.trace import Traced

from ...common.request import Request
from ..edited import found_or_none, plan_or_none
from .choices import choices
from .chosen import Chosen, Found, Rough, T, T_co
from .frontier import Choice, SecondsOf, counted, work_s
from .keep import recomputes
from .saved import Key, Layer
from .variants import Variant, variant_of

# Share of its work, or of a step, that other choices must save; not measured.
WORTH = 0.002
# The same where `jax.checkpoint` computes nothing again: half of the steps that were measured are
# predicted less than this off (`python -m benchmarks one-gpu-plans`).
CLEAR = 0.025
# Of the time that is left, at most, for what comes before the first full plan; not measured.
SHARE = 0.25
# Choices whose programs are made for their work; of three, 22 layers on one H100 had the best.
PRICED = 3
MOST_TRIED = 2  # choices that have full plans, of which one fits; not measured


class Early(Protocol[T_co]):
    """What is known of programs before that as written has a full plan."""

    def bound_s(self) -> float:
        """Quick lower bound of the plans of the program as written on all meshes [s]."""
        ...

    def roughly(self) -> Rough | None:
        """Rough plans on the mesh with the least quick bound, one of the program as written.

        None if memory has room for its plans, or no such plan is found.
        """
        ...

    def excess_bytes(self, traced: Traced) -> float:
        """Bytes of all devices by which plans of a program exceed the memory that they may need."""
        ...

    def memory_s(self, nbytes: float) -> float:
        """Seconds of moving an amount of all devices through their memories [byte]."""
        ...

    def beside(self, variant: Variant, cutoff_s: float) -> T_co:
        """The plan of a variant, if it has one below some seconds, with less effort for a proof."""
        ...


def of_least_work(
    traced: Traced,
    kept: Traced,
    layers: Sequence[Layer],
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    early: Early[T],
    cutoff_s: float,
) -> Chosen[T] | None:
    """The plan of a choice whose work is less than that of the program as written.

    It is that of the least work which fits. Work is counted on the program that keeps everything,
    so that programs are only made of choices that are tried. The program as written is planned too
    if that could be faster: if its work and its quick bound are below the step.

    Where `jax.checkpoint` computes nothing again, only what loops stack up is chosen from: of what
    one body makes and reads, XLA itself computes light values again in the kernels that read them,
    which prices do not know.

    Args:
        traced: the program as written.
        kept: the program that keeps everything.
        layers: its bodies with a forward pass.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        seconds_of: seconds of the nodes of a program.
        early: what is known before any full plan.
        cutoff_s: upper limit of the step [s].

    Returns:
        None if no choice saves enough work and fits, or if the program sends values to the host,
        which is as it says.
    """
    again = recomputes(traced.program)
    worth = WORTH if again else CLEAR
    layers = [layer for layer in layers if again or layer.loop]
    if not layers or offloads(traced.graph) or request.over:
        return None
    least_left_s = (1 - SHARE) * request.left_s

    def timely(_: object) -> bool:
        return request.left_s >= least_left_s and not request.over

    most_s = work_s(traced, seconds_of(traced))
    below_s = most_s * (1 - worth)
    tried = _less(traced, kept, layers, seconds_of, below_s, early)
    for one in takewhile(timely, islice(tried, MOST_TRIED)):
        found = plan_or_none(lambda one=one: early.beside(one, cutoff_s))
        if found is not None:
            return or_written(
                Chosen(one, found, found.bound_s), traced, most_s, early, request, search
            )
    return None


def _less(
    traced: Traced,
    kept: Traced,
    layers: Sequence[Layer],
    seconds_of: Callable[[Traced], SecondsOf],
    below_s: float,
    early: Early[Found],
) -> Iterator[Variant]:
    """Programs of less work that may fit, each once, that of the least work first.

    Their order is that of `_counted`; the first few are put in the order of the work of their
    programs.

    Args:
        traced: the program as written.
        kept: the program that keeps everything.
        layers: its bodies with a forward pass.
        seconds_of: seconds of the nodes of a program.
        below_s: work below which choices are wanted [s].
        early: what is known before any full plan.
    """
    seen = {digest(traced.graph)}
    variant = cache(partial(variant_of, kept))
    counts = _counted(kept, layers, seconds_of, below_s, early, variant)
    made = _distinct((variant(one.values) for one in counts), seen)
    fitting = (one for one in made if early.excess_bytes(one.traced) <= 0.0)
    first = list(islice(fitting, PRICED))
    works = [work_s(one.traced, seconds_of(one.traced)) for one in first]
    for each_s, n in sorted(zip(works, range(len(first)), strict=True)):
        if each_s < below_s:
            yield first[n]
    yield from fitting


def _distinct(variants: Iterable[Variant], seen: set[str]) -> Iterator[Variant]:
    """Variants without those whose digests are seen."""
    for variant in variants:
        name = digest(variant.traced.graph)
        if name not in seen:
            seen.add(name)
            yield variant


def _counted(
    kept: Traced,
    layers: Sequence[Layer],
    seconds_of: Callable[[Traced], SecondsOf],
    below_s: float,
    early: Early[Found],
    variant: Callable[[frozenset[Key]], Variant],
) -> list[Choice]:
    """Choices of less work that may fit, that of the least work first, counted on what keeps all.

    What is not kept saves traffic too: kernels write less, and loops fill and slice fewer stacks.
    The seconds saved for each byte are those of one choice whose program is made: 2.5e-14 to
    3.0e-14 s in all of Llama-3 8B and 70B on 64 H100, on one 0.7e-12 to 1.9e-12 of 22 layers,
    1.5e-12 to 1.8e-12 of a GPT with dropout. A choice is left out if what it does not keep is less
    than what everything together is too large.

    Args:
        kept: the program that keeps everything.
        layers: its bodies with a forward pass.
        seconds_of: seconds of the nodes of a program.
        below_s: work below which choices are wanted [s].
        early: what is known before any full plan.
        variant: the program of a choice.
    """
    seconds = seconds_of(kept)
    least_s = work_s(kept, seconds)
    found = [counted(layers, seconds, values) for values in choices(layers, seconds)]
    most, excess = max(one.kept_bytes for one in found), early.excess_bytes(kept)
    some = [one for one in found if most - one.kept_bytes >= excess]
    if not some:
        return []
    one = _telling(some, most, below_s - least_s, early)
    made = variant(one.values).traced
    saved_s = least_s + one.again_s - work_s(made, seconds_of(made))
    rate = saved_s / max(most - one.kept_bytes, 1.0)
    works = [least_s + c.again_s - rate * (most - c.kept_bytes) for c in some]
    order = sorted(zip(works, range(len(some)), strict=True))
    return [some[n] for each_s, n in order if each_s < below_s]


def _telling(some: Sequence[Choice], most: float, room_s: float, early: Early[Found]) -> Choice:
    """The choice whose program tells what each byte that is not kept saves.

    Of those whose work is less whatever it saves, the one that keeps least. If there are none, the
    one that should save most if each byte were written and read once, and what is made again took
    half of its seconds, as part of the kernels that read it: with all of them no choice of a GPT
    with dropout seems to save anything, and a seventh of its step can be saved.

    Args:
        some: choices.
        most: bytes that are kept if all is.
        room_s: seconds that may be added to the program that keeps everything.
        early: what is known before any full plan.
    """
    sure = [one for one in some if one.again_s < room_s]
    if sure:
        return min(sure, key=lambda one: one.kept_bytes)
    return max(some, key=lambda one: early.memory_s(2 * (most - one.kept_bytes)) - one.again_s / 2)


def or_written(
    best: Chosen[T],
    traced: Traced,
    work_s: float,
    early: Early[T],
    request: Request,
    search: Callable[[Variant, float], T],
) -> Chosen[T]:
    """The plan of a choice, or that of the program as written if that is faster.

    Args:
        best: the plan of the choice.
        traced: the program as written.
        work_s: least seconds of its operations [s].
        early: what is known of it before it has a full plan.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
    """
    step_s = best.found.step_s
    if step_s <= work_s or request.over:
        return best
    bound_s = found_or_none(request, early.bound_s)
    if bound_s is None or step_s <= bound_s or request.over:
        return best
    written = Variant(traced)
    other = found_or_none(request, lambda: search(written, step_s))
    if other is None:
        return best
    bound_s = min(best.bound_s, other.bound_s)
    return Chosen(written, other, bound_s) if other.step_s < step_s else best
