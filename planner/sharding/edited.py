"""The plan of an edited program as the plan of the program that it was made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from ..common.errors import PlanError
from ..common.request import Request
from ..common.stop import PROVED, Stop
from ..files.program_plan import ProgramPlan
from .searched import Searched

T = TypeVar("T")
ROUNDING = 1e-9  # relative: a bound that is a step less its least gain


def plan_or_none(search: Callable[[], T]) -> T | None:
    """What a search finds; None if nothing fits or is below its limit."""
    try:
        return search()
    except PlanError as error:
        if error.kind not in ("not-faster", "does-not-fit"):
            raise
        return None


def found_or_none(request: Request, search: Callable[[], T]) -> T | None:
    """What a search beside a known plan finds; None if nothing is faster, or Ctrl-C ends it."""
    try:
        return plan_or_none(search)
    except KeyboardInterrupt:
        if not request.interruption.kept(found=True):
            raise
        return None


def as_edited(known: Searched, found: Searched, **rows: Any) -> Searched:
    """A faster plan with the baselines, the earlier edits and the bound of the one before it.

    Args:
        known: the plan of the program before the edit.
        found: the plan of the edited program.
        rows: fields of the plan that say what was edited.
    """
    before, program = known.plan.program, found.plan.program
    earlier = {
        name: getattr(before, name)
        for name in (
            "baselines", "recomputed", "hosted", "host_states", "padded", "ordered",
            "sorted_blocks",
        )
    }  # fmt: skip
    whole = msgspec.structs.replace(
        bounded(program, program.lower_bound_s, before.lower_bound_s), **{**earlier, **rows}
    )
    return replace(found, plan=replace(found.plan, program=whole))


def bounded(program: ProgramPlan, *bounds_s: float) -> ProgramPlan:
    """A plan with the least of the bounds of several programs, which may be no proof of it [s]."""
    bound_s = min(program.step_s, *bounds_s)
    gap_s = program.step_s - bound_s
    proved = gap_s <= PROVED * (1 + ROUNDING) * program.step_s
    stop = Stop.GAP.name if program.stop == Stop.OPTIMAL.name and not proved else program.stop
    return msgspec.structs.replace(program, lower_bound_s=bound_s, stop=stop)
