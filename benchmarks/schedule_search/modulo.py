"""Patterns by list scheduling modulo the period, with seeded restarts.

Blocks are placed one by one in the order of their needs, each as early as its device has room in
the cycle. A block goes at once where it is ready, or next to a block that is there already, which
leaves no gap that nothing fills. Restarts vary the order and the places.
"""

from __future__ import annotations

import heapq

import numpy as np

from planner.pipeline.schedule.round import TOLERANCE, Round
from planner.pipeline.schedule.task import Kind

from .pattern import Pattern


def modulo_patterns(
    round_: Round, period_s: float, *, tries: int = 64, seed: int = 0
) -> list[Pattern]:
    """Patterns of this period, least memory excess first and then the shortest; may be none.

    Args:
        round_: what repeats.
        period_s: to try; no pattern exists below the work of the busiest device.
        tries: restarts.
        seed: of the restarts.
    """
    rng = np.random.default_rng(seed)
    found: dict[tuple[float, ...], Pattern] = {}
    for number in range(tries):
        loose, noise = number % 2 == 0, number >= 2
        offsets = _attempt(round_, period_s, rng if noise else None, loose=loose)
        if offsets is not None:
            found.setdefault(offsets, Pattern(round_, period_s, offsets))
    return sorted(found.values(), key=lambda p: (p.excess_bytes(), p.span_s, p.offset_s))


def _attempt(
    round_: Round, period_s: float, rng: np.random.Generator | None, *, loose: bool
) -> tuple[float, ...] | None:
    """One pass; None if some block found no room.

    loose: blocks may leave gaps beside them, as long as the rest of the device's work still fits.
    """
    blocks = round_.blocks
    offset = [0.0] * len(blocks)
    used: list[list[tuple[float, float]]] = [[] for _ in range(round_.placement.devices)]
    left = list(round_.load_s)
    waits = [len(round_.sources[b]) for b in range(len(blocks))]
    noise = rng.random(len(blocks)) if rng is not None else np.zeros(len(blocks))

    def key(b: int) -> tuple[bool, float, int]:
        late = blocks[b].kind is Kind.WEIGHT_GRADIENT
        return late, -(round_.tail_s[b] + blocks[b].seconds) * (1.0 + float(noise[b])), b

    ready = [key(b) for b, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    while ready:
        b = heapq.heappop(ready)[-1]
        block = blocks[b]
        at = max((offset[a] + blocks[a].seconds + gap for a, gap in round_.sources[b]), default=0.0)
        left[block.device] -= block.seconds
        start = _place(used[block.device], at, block.seconds, period_s, left[block.device], loose)
        if start is None:
            return None
        offset[b] = start
        used[block.device].append((start % period_s, block.seconds))
        for after in round_.readers[b]:
            waits[after] -= 1
            if waits[after] == 0:
                heapq.heappush(ready, key(after))
    return tuple(offset)


def _place(
    used: list[tuple[float, float]],
    at: float,
    seconds: float,
    period_s: float,
    left_s: float,
    loose: bool,
) -> float | None:
    """Earliest start from `at` on; `left_s` of other work must fit in what stays free."""
    slack = TOLERANCE * period_s
    edges = [begin + length for begin, length in used] + [begin - seconds for begin, _ in used]
    starts = {at + (edge - at) % period_s for edge in edges}
    # A remainder of a whole period is a start at once.
    starts |= {start - period_s for start in starts if start - period_s >= at - slack}
    if loose or not used:
        starts.add(at)
    for start in sorted(starts):
        if _is_free(used, start, seconds, period_s, slack) and (
            not loose or start != at or _fits(used, start, seconds, period_s, left_s)
        ):
            return max(start, at)
    return None


def _is_free(
    used: list[tuple[float, float]], start: float, seconds: float, period_s: float, slack: float
) -> bool:
    for begin, length in used:
        ahead = (start - begin) % period_s
        if ahead > period_s - slack:
            ahead = 0.0
        if (
            length > slack
            and seconds > slack
            and not (length - slack <= ahead <= period_s - seconds + slack)
        ):
            return False
    return seconds <= period_s + slack


def _fits(
    used: list[tuple[float, float]], start: float, seconds: float, period_s: float, left_s: float
) -> bool:
    """Whether the gaps that a block leaves can still take the work that is left, in all.

    A gap shorter than the block itself counts as lost.
    """
    ends = sorted([*used, (start % period_s, seconds)])
    free = 0.0
    for (begin, length), (following, _) in zip(ends, [*ends[1:], ends[0]], strict=True):
        gap = (following - begin - length) % period_s if len(ends) > 1 else period_s - seconds
        free += gap if gap >= seconds * (1 - TOLERANCE) else 0.0
    return free >= left_s - TOLERANCE * period_s
