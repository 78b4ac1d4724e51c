"""Whether a program is planned with some dimensions padded, so that more devices can share them.

The program as it is has a plan first. What padding a class of dimensions could save at most follows
from that plan: the seconds of products that have the dimension and are not split over all devices,
beyond those of the padded product on all devices or of starting a kernel, and those in which
compute waits for collectives of values that have the dimension.
Classes whose sizes differ by borders are tried together (`bordered.py`), with all ops of theirs in
place of products. Where that is something, the padded program has a rough plan on the mesh of the
known one; where that is faster, it is planned as every program is, and kept if the result is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from ir.analysis import Place
from ir.trace import Traced

from ...common.errors import PlanError
from ...files.program_plan import PaddedRow
from ..search.context import Candidate
from .bordered import Borders, Group
from .candidates import Class, classes_of, padded_size, products, whole_in_products
from .classified import Classified
from .edit import padded
from .moving import MOVING

# Share of the step that padding must save. Not measured.
WORTH = 0.01
MOST_ROUGH = 3  # classes that have a rough plan


class Found(Protocol):
    """Result of a search."""

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        ...


T = TypeVar("T", bound=Found)


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """A padded program with its plan."""

    traced: Traced
    rows: tuple[PaddedRow, ...]
    found: T


def choose(
    traced: Traced,
    best: Candidate,
    devices: int,
    search: Callable[[Traced, float], T],
    rough_s: Callable[[Traced, float], float],
) -> Chosen[T] | None:
    """A plan of the program with padded dimensions, if that is faster.

    Args:
        traced: the program.
        best: its plan.
        devices: number of devices.
        search: plans a program below some seconds.
        rough_s: seconds of a step by a rough plan below some seconds; infinite if none is found.

    Raises:
        PlanError: if a search fails for another reason than that no plan is faster.
    """
    flat = best.builder.flat
    sizes = {size for value in flat.values for size in value.type.shape if size > 1}
    divides = not any(padded_size(size, devices) for size in sizes)
    if divides and not any(op.node.op in MOVING for op in flat.ops):
        return None
    step_s = least_s = best.account.step_s
    program, rows = traced, tuple[PaddedRow, ...]()
    for one, size, parts in _worth_a_try(Classified(traced.graph), best, devices)[:MOST_ROUGH]:
        known = Classified(program.graph)
        here = next((c for c in classes_of(known) if _same(c, one)), None)
        if here is None:
            continue
        padding = here.padding(size, parts)
        variant = replace(program, program=padded(program.program, padding, known))
        wanted_s = least_s * (1 - WORTH)
        found_s = rough_s(variant, wanted_s)
        if found_s < wanted_s:
            place, number, dim = here.at
            rows = (*rows, PaddedRow(place, number, dim, here.size, size, parts))
            program, least_s = variant, found_s
    if not rows:
        return None
    try:
        found = search(program, step_s * (1 - WORTH))
    except PlanError as error:
        if error.kind not in ("not-faster", "does-not-fit"):
            raise
        return None
    return Chosen(program, rows, found) if found.step_s < step_s * (1 - WORTH) else None


def _same(a: Class, b: Class) -> bool:
    """Whether two classes, before and after another one was padded, are of the same argument."""
    return a.at == b.at and a.size == b.size


def _worth_a_try(known: Classified, best: Candidate, devices: int) -> list[tuple[Class, int, int]]:
    """Classes whose padding may save something, with sizes and parts, what saves most first."""
    sizes = [(one, padded_size(one.size, devices)) for one in classes_of(known)]
    saved = _saved_at_most(known, best, devices, {c.number: s / c.size for c, s in sizes if s})
    least_s = WORTH * best.account.step_s
    worth = [(saved[one.number], one, size, 0) for one, size in sizes if size]
    groups = Borders(known).groups(devices)
    for group, gain_s in zip(groups, _saved_by(known, best, devices, groups), strict=True):
        worth.append((gain_s, group.one, group.size, group.parts))
    order = sorted(worth, key=lambda row: -row[0])
    return [(one, size, parts) for gain_s, one, size, parts in order if gain_s > least_s]


def _saved_by(
    known: Classified, best: Candidate, devices: int, groups: Sequence[Group]
) -> list[float]:
    """Seconds of a step that padding each group may save at most, as a rule.

    All ops with one of its dimensions count, as most that move elements are no products: what they
    take beyond the padded op on all devices, which is less than nothing where they are split over
    all of them as it is; and their part of the communication that compute waits for, of all ops
    that are not split over all devices.
    """
    if not groups:
        return []
    total_s, saved, whole = 0.0, [0.0] * len(groups), [0.0] * len(groups)
    for i, op in enumerate(known.flat.ops):
        seconds, ways = best.op_s(op.place), _ways(best, op.place)
        if seconds is None:
            continue
        waiting_s = seconds if ways < devices else 0.0
        total_s += waiting_s
        classes = {known.classes.of_factor(i, name) for name in known.specs.of(op).names}
        for k, group in enumerate(groups):
            if classes.isdisjoint(group.growth):
                continue
            growth = math.prod(group.growth.get(c, 1.0) for c in classes)
            whole[k] += waiting_s
            saved[k] += seconds * (1 - growth * ways / devices)
    exposed_s = best.account.exposed_s
    return [
        gain_s + (exposed_s * part_s / total_s if total_s else 0.0)
        for gain_s, part_s in zip(saved, whole, strict=True)
    ]


def _saved_at_most(
    known: Classified, best: Candidate, devices: int, growth: dict[int, float]
) -> dict[int, float]:
    """Seconds of a step that padding each class may save at most, as a rule.

    Args:
        known: the program.
        best: its plan.
        devices: number of devices.
        growth: class -> its padded size, over that without.
    """
    saved, of_products = dict.fromkeys(growth, 0.0), set[int]()
    for i, names in products(known):
        op = known.flat.ops[i]
        seconds, ways = best.op_s(op.place), _ways(best, op.place)
        assert seconds is not None  # a product is a node
        launch_s = best.builder.cache.compute.launch_s * op.weight
        for name in names & growth.keys():
            saved[name] += seconds - max(launch_s, seconds * ways * growth[name] / devices)
        of_products |= names
    waits_s = _waits_s(known, best)
    for name in growth.keys() & of_products - whole_in_products(known):
        saved[name] += waits_s[name]
    return saved


def _ways(best: Candidate, place: Place) -> int:
    """Over how many devices a plan splits an op."""
    roles = best.decisions.ops.get(place, ())
    split = zip(best.mesh.names, roles, strict=True) if roles else ()
    return best.mesh.product(tuple(axis for axis, r in split if r and r[0] != "@"))


def _waits_s(known: Classified, best: Candidate) -> defaultdict[int, float]:
    """Seconds in which compute waits for collectives of values with a dimension of each class."""
    found = defaultdict[int, float](float)
    for name, seconds in best.waits_s.items():
        if (v := known.flat.names.get(name)) is not None:
            rank = known.flat.values[v].type.rank
            for one in {known.classes.of_dim(v, d) for d in range(rank)}:
                found[one] += seconds
    return found
