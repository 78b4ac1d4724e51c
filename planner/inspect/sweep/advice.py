"""How many devices to use, as a sentence that states its basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .record import DEVICES, DOES_NOT_FIT, Line, Point, Sweep, lines_of

# Twice the devices that do not bring at least so many times the speed are not recommended: at 1.5
# three quarters of the added devices' work is work done, a convention and not a measurement.
WORTH = 1.5


@dataclass(frozen=True, slots=True)
class Advice:
    """A number of devices for one line of a sweep; None where nothing fits."""

    line: str
    devices: int | None
    sentence: str


def advice(sweep: Sweep) -> tuple[Advice, ...]:
    """A number of devices for every line; none where devices were not swept.

    From the fewest devices that fit, the next number is taken as long as it brings at least
    `WORTH` times the speed for each doubling. Speed is steps in a second, times the number of
    devices where the batch is given per device.
    """
    if sweep.across != DEVICES:
        return ()
    return tuple(_advice(line) for line in lines_of(sweep))


def _advice(line: Line) -> Advice:
    begin = f"{line.name}: " if line.name else ""
    fitting = line.fitting
    if not fitting:
        return Advice(line.name, None, f"{begin}no number of devices that was planned fits")
    first, *others = fitting
    found, beyond = _worthwhile(line, fitting)
    parts = [f"{begin}use {found.label} devices{'' if beyond else ', the most that were planned'}"]
    if not others:
        parts.append("the only number that fits")
    elif found is not first:
        share = _per_device(line, found) / _per_device(line, first)
        parts.append(f"they have {share:.0%} of the speed per device of {first.label}")
    if beyond is not None:
        times = beyond.speed(grows=line.grows) / found.speed(grows=line.grows)
        work = " with as many times the batch" if line.grows else ""
        parts.append(
            f"{beyond.label} would be {times:.2f} times as fast{work}, where each doubling should "
            f"give {WORTH:g}"
        )
    elif others:
        parts.append(f"each doubling gives at least {WORTH:g} times the speed")
    if any(_too_small(point, first) for point in line.points):
        parts.append(f"fewer than {first.label} do not fit")
    return Advice(line.name, int(found.x), "; ".join(parts))


def _worthwhile(line: Line, fitting: Sequence[Point]) -> tuple[Point, Point | None]:
    """The last point that is worth its devices, and the first one that is not."""
    found = fitting[0]
    for point in fitting[1:]:
        times = point.speed(grows=line.grows) / found.speed(grows=line.grows)
        if times < WORTH ** math.log2(point.x / found.x):
            return found, point
        found = point
    return found, None


def _per_device(line: Line, point: Point) -> float:
    return point.speed(grows=line.grows) / point.x


def _too_small(point: Point, first: Point) -> bool:
    error = point.row.error
    return error is not None and error.kind == DOES_NOT_FIT and point.x < first.x
