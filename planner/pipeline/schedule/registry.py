"""The known schedules by name; to add one, write its file and a record here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from ...common.errors import PlanError
from .chimera import chimera
from .gpipe import gpipe
from .interleaved import interleaved
from .one_f_one_b import (
    DEEP,
    EAGER,
    one_f_one_b,
    one_f_one_b_deep,
    one_f_one_b_eager,
    warm_up,
)
from .placement import Turns
from .table import Schedule
from .token_slices import token_slices
from .weight_stashing import stashed
from .zero_bubble import zero_bubble_h1, zero_bubble_h2
from .zero_bubble_v import zero_bubble_v

InFlight = Callable[[int, int], int]
INTERLEAVED, ZB_V = "interleaved", "zb-v"


@dataclass(frozen=True, slots=True)
class KnownSchedule:
    """A schedule, and how layers are divided into stages for it.

    build: (stages, micro-batches, own options) -> schedule for `stages` devices.
    in_flight: micro-batches in flight on a stage, from the number of stages from it to the last
        and the micro-batches of a step; None where `plan` does not divide for this schedule.
    divided_as: name of another schedule, whose division `plan` takes for this one.
    turns: how stages take turns on groups of devices, of which `plan` chooses; none where each has
        a group of its own.
    """

    build: Callable[..., Schedule]
    in_flight: InFlight | None = None
    divided_as: str = ""
    turns: tuple[Turns, ...] = ()


_KNOWN: Mapping[str, KnownSchedule] = MappingProxyType(
    {
        "1f1b": KnownSchedule(one_f_one_b, warm_up),
        "1f1b-deep": KnownSchedule(one_f_one_b_deep, partial(warm_up, ahead=DEEP)),
        "1f1b-eager": KnownSchedule(one_f_one_b_eager, partial(warm_up, ahead=EAGER)),
        "1f1b-stashed": KnownSchedule(stashed),
        "chimera": KnownSchedule(chimera),
        "gpipe": KnownSchedule(gpipe, lambda left, m: m),
        INTERLEAVED: KnownSchedule(interleaved, turns=(Turns(2), Turns(4))),
        "token-slices": KnownSchedule(token_slices),
        "zb-h1": KnownSchedule(zero_bubble_h1, divided_as="1f1b"),
        "zb-h2": KnownSchedule(zero_bubble_h2, divided_as="1f1b-eager"),
        ZB_V: KnownSchedule(zero_bubble_v, turns=(Turns(2, back=True),)),
    }
)
_BUILDERS = MappingProxyType({name: known.build for name, known in _KNOWN.items()})

# Rule of the micro-batches in flight, of each schedule for which layers are divided.
IN_FLIGHT: Mapping[str, InFlight] = MappingProxyType(
    {name: known.in_flight for name, known in _KNOWN.items() if known.in_flight is not None}
)
# How stages take turns, of each schedule in which they do.
TURNS: Mapping[str, tuple[Turns, ...]] = MappingProxyType(
    {name: known.turns for name, known in _KNOWN.items() if known.turns}
)
# Schedules that `plan` chooses from; those with turns only beside another, see `families`.
PIPELINES = tuple(
    name for name, known in _KNOWN.items()
    if known.in_flight is not None or known.divided_as or known.turns
)  # fmt: skip


def families(names: Sequence[str]) -> tuple[str, ...]:
    """Schedules for which layers are divided; GPipe, which holds most and is no faster, only alone.

    Those with turns start from a division made for another schedule.
    """
    found = dict.fromkeys(_KNOWN[name].divided_as or name for name in names if name not in TURNS)
    return tuple(name for name in found if name != "gpipe" or len(found) == 1)


def family_of(name: str) -> str:
    """The family of a schedule; one with turns is a family of its own."""
    return name if name in TURNS else families((name,))[0]


def all_turns(names: Sequence[str]) -> tuple[Turns, ...]:
    """How stages may take turns on groups of devices under some schedules."""
    return tuple(each for name in names for each in TURNS.get(name, ()))


def turns_of(name: str, chunks: int) -> Turns:
    """How stages take turns under a schedule, with `chunks` of them on each group of devices."""
    return Turns(chunks, any(turns.back for turns in TURNS.get(name, ())))


def in_turns(names: Sequence[str], turns: Turns) -> tuple[str, ...]:
    """Those schedules of some under which stages take such turns."""
    return tuple(
        name for name in names
        if (name in TURNS) == (turns.chunks > 1) and turns_of(name, turns.chunks) == turns
    )  # fmt: skip


def turned(turns: Turns) -> str:
    """The schedule under which stages take such turns on groups of several."""
    return in_turns(tuple(TURNS), turns)[0]


def take(turns: Turns, groups: int, microbatches: int) -> bool:
    """Whether stages can take such turns on some groups: interleaved ones in whole rounds."""
    return turns.chunks == 1 or turns.back or not microbatches % groups


def late_families(names: Sequence[str]) -> frozenset[str]:
    """Families with a schedule in which weight gradients wait for idle time."""
    return frozenset(_KNOWN[name].divided_as for name in names if _KNOWN[name].divided_as)


def check_pipelines(names: Sequence[str]) -> None:
    """Refuses names of schedules that `plan` cannot choose from.

    Raises:
        PlanError: if there is one.
    """
    if set(names) - {*PIPELINES}:
        raise PlanError(
            f"must be some of {', '.join(PIPELINES)}, got {tuple(names)!r}", kind="bad-option",
            where="Options.schedules", remedy="for example ('1f1b',)",
        )  # fmt: skip


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
