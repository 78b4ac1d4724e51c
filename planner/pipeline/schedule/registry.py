"""The known schedules by name; to add one, write its file and a line here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ...common.errors import PlanError
from .chimera import chimera
from .gpipe import gpipe
from .interleaved import interleaved
from .one_f_one_b import one_f_one_b, one_f_one_b_eager
from .table import Schedule
from .token_slices import token_slices
from .weight_stashing import stashed
from .zero_bubble import zero_bubble_h1, zero_bubble_h2
from .zero_bubble_v import zero_bubble_v

# Each takes (stages, microbatches, *, own options) and returns a schedule for `stages` devices.
_BUILDERS: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {
        "1f1b": one_f_one_b,
        "1f1b-eager": one_f_one_b_eager,
        "1f1b-stashed": stashed,
        "chimera": chimera,
        "gpipe": gpipe,
        "interleaved": interleaved,
        "token-slices": token_slices,
        "zb-h1": zero_bubble_h1,
        "zb-h2": zero_bubble_h2,
        "zb-v": zero_bubble_v,
    }
)


def schedules() -> Mapping[str, Callable[..., Schedule]]:
    """Name -> builder, which takes (stages, microbatches) and keyword options of its own."""
    return _BUILDERS


def build(name: str, stages: int, microbatches: int, **options: Any) -> Schedule:
    """Builds the schedule of a name.

    Args:
        name: one of `schedules()`.
        stages: devices of the pipeline; each may hold several chunks.
        microbatches: in a step.
        **options: of the schedule: `chunks` (on each device) of `interleaved`, `in_flight` of
            `1f1b`, `slices` of `token-slices`, ...; see the builder.

    Raises:
        PlanError: for a name, count or option that the schedule does not take.
    """
    if name not in _BUILDERS:
        near = difflib.get_close_matches(name, _BUILDERS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise _bad(f"no schedule is called '{name}'", f"{hint}there are {', '.join(_BUILDERS)}")
    for what, count in (("stages", stages), ("microbatches", microbatches)):
        if count < 1:
            raise _bad(f"{count} {what}", "use 1 or more")
    known = list(inspect.signature(_BUILDERS[name]).parameters)[2:]
    if unknown := sorted(set(options) - set(known)):
        takes = ", ".join(known) or "none"
        raise _bad(f"'{name}' does not take {', '.join(unknown)}", f"its options: {takes}")
    return _BUILDERS[name](stages, microbatches, **options)


def _bad(message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-schedule", where="schedule", remedy=remedy)
