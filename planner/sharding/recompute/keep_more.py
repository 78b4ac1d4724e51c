"""A choice that computes less again than `jax.checkpoint` in a program asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from ir import TO_HOST, Graph
from ir.trace import Traced

from ...common.errors import PlanError
from ...common.request import Request
from ..edited import found_or_none
from .chosen import Chosen, Rough, T
from .frontier import SecondsOf, work_s
from .keep import recomputes
from .variants import Variant

# Share of a step that other choices must save, by rough plans or least seconds; not measured.
WORTH = 0.002
# Of what a full plan saves over a rough one, at most: 2.1 to 3.4 % in four choices of Llama-3 8B on
# 8 and 64 H100.
CLEAR = 0.05
# Of the time that is left, at most, for what comes before the first full plan; not measured.
SHARE = 0.25


@dataclass(frozen=True)
class Quick:
    """A rough plan of the program as it is written, on its best mesh by quick bounds.

    step_s: of the plan [s].
    bound_s: quick lower bound of its plans on all meshes [s].
    rough: rough plans of other choices on this mesh.
    """

    step_s: float
    bound_s: float
    rough: Rough


def keeping_more(
    traced: Traced,
    kept: Traced,
    variants: Iterable[Variant],
    request: Request,
    search: Callable[[Variant, float], T],
    seconds_of: Callable[[Traced], SecondsOf],
    quick: Callable[[], Quick | None],
    cutoff_s: float,
) -> Chosen[T] | None:
    """The plan of a choice that computes less again than the program as written.

    It is the one of the least work that has a rough plan below that of the program as written. The
    program as written is planned too if that could be faster: if its quick bound is below the step,
    and its rough plan not clearly above.

    Args:
        traced: the program as written.
        kept: the program that keeps everything.
        variants: choices.
        request: options and progress.
        search: plans a variant, if it has a plan below some seconds.
        seconds_of: seconds of the nodes of a program.
        quick: a rough plan of the program as written, if one fits.
        cutoff_s: upper limit of the step [s].

    Returns:
        None if the program computes nothing again that takes time, if it sends values to the host,
        which is as it says, if memory slows it down, or if no choice is faster.
    """
    if not recomputes(traced.program) or _offloads(traced.graph) or request.over:
        return None
    least_left_s = (1 - SHARE) * request.left_s

    def timely(_: object) -> bool:
        return request.left_s >= least_left_s and not request.over

    written = quick()
    if written is None or not timely(written):
        return None
    most_s, least_s = work_s(traced, seconds_of), WORTH * written.step_s
    if most_s - work_s(kept, seconds_of) <= least_s or written.rough.saving_s() > least_s:
        return None
    some = takewhile(timely, variants)
    works = [(work_s(one.traced, seconds_of), n, one) for n, one in enumerate(some)]
    less = [one for each_s, _, one in sorted(works, key=lambda row: row[:2]) if each_s < most_s]
    step_s = written.step_s * (1 - WORTH)
    for one in takewhile(timely, less):
        if written.rough.step_s(one, step_s) < step_s:
            return _planned(one, Variant(traced), written, request, search, cutoff_s)
    return None


def _offloads(graph: Graph) -> bool:
    """Whether a program sends values to the host."""
    return any(node.op == TO_HOST or any(map(_offloads, node.bodies)) for node in graph.nodes)


def _planned(
    variant: Variant,
    written: Variant,
    quick: Quick,
    request: Request,
    search: Callable[[Variant, float], T],
    cutoff_s: float,
) -> Chosen[T] | None:
    """The plan of a variant, or of the program as written if that is faster; None if none fits."""
    try:
        found = search(variant, cutoff_s)
    except PlanError as error:
        if error.kind not in ("not-faster", "does-not-fit"):
            raise
        return None
    best = Chosen(variant, found, found.bound_s)
    if _is_faster(found.step_s, quick) or request.over:
        return best
    other = found_or_none(request, lambda: search(written, found.step_s))
    if other is None:
        return best
    bound_s = min(found.bound_s, other.bound_s)
    return Chosen(written, other, bound_s) if other.step_s < found.step_s else best


def _is_faster(step_s: float, written: Quick) -> bool:
    """Whether a step is known to be shorter than that of the program as written, or clearly so."""
    return step_s <= max(written.bound_s, (1 - CLEAR) * written.step_s)
