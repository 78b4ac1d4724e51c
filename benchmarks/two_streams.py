"""Seconds of a step whose collectives run beside compute: two streams with dependencies.

    no overlap      sum of compute + sum of communication
    full overlap    bounded from below by each stream alone and by the longest chain of waits

In between, the two streams are played through: a transfer starts when the work that makes its
operand is done and the link is free, and the work that needs its result waits for it. So a
prefetched gather is free only as far as there is compute before its reader to hide it, and a
collective whose result is needed at once hides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel import INTERFERENCE


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective between two places of a program.

    seconds: alone on the link.
    ready: position of the work that makes its operand; -1 if it is there from the start.
    needed: position of the first work that reads its result; the number of works if none does.
    early: number of works before `needed` at which it may start at the earliest; None for no limit.
        A limit stands for the memory that a prefetched result occupies.
    """

    seconds: float
    ready: int
    needed: int
    early: int | None = None

    def __post_init__(self) -> None:
        if not self.seconds >= 0.0 or self.ready < -1 or self.needed <= self.ready:
            raise ValueError(f"Transfer: needs seconds >= 0 and -1 <= ready < needed, found {self}")
        if self.early is not None and self.early < 1:
            raise ValueError(f"Transfer: `early` must be at least 1, found {self.early}")

    @property
    def after(self) -> int:
        """Position of the last work that must be done before it starts."""
        return self.ready if self.early is None else max(self.ready, self.needed - 1 - self.early)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of one step.

    exposed_s: the part of `step_s` in which compute waits or is slowed, step_s - compute_s.
    """

    step_s: float
    compute_s: float
    communication_s: float

    @property
    def exposed_s(self) -> float:
        return self.step_s - self.compute_s


def overlapped(
    work_s: Sequence[float],
    transfers: Sequence[Transfer],
    *,
    enabled: bool = True,
    interference: float = INTERFERENCE,
) -> Overlap:
    """Plays one compute stream and one link through a step.

    Works run in order. Transfers run in the order in which they become ready, then in the order in
    which they are needed. A work beside a running transfer is slower by `interference`. The link
    is one queue: collectives on different axes do not overlap each other, as NCCL runs them.

    Args:
        work_s: seconds of each work, in program order.
        transfers: between positions of `work_s`.
        enabled: False adds everything up.
        interference: at least 1.

    Returns:
        Seconds between max(compute, communication) and compute + communication: a schedule that
        would lose by interference is not run overlapped.

    Raises:
        ValueError: if some seconds are negative or a position lies outside the program.
    """
    if interference < 1.0 or any(not s >= 0.0 for s in work_s):
        raise ValueError("overlapped: needs seconds >= 0 and interference >= 1")
    if any(t.needed > len(work_s) for t in transfers):
        raise ValueError(f"overlapped: a transfer is needed beyond the {len(work_s)} works")
    compute_s, communication_s = sum(work_s), sum(t.seconds for t in transfers)
    total = compute_s + communication_s
    step_s = min(total, _played(work_s, transfers, interference)) if enabled else total
    return Overlap(step_s, compute_s, communication_s)


def _played(work_s: Sequence[float], transfers: Sequence[Transfer], interference: float) -> float:
    queue = sorted(transfers, key=lambda t: (t.after, t.needed))
    ends = [0.0] * len(work_s)  # when each work is done
    link_free, sent = 0.0, 0
    busy: list[tuple[float, float]] = []  # intervals in which the link runs
    clock = 0.0
    due: dict[int, float] = {}

    def send(until: int) -> None:
        """Starts the transfers whose operand is made by works up to `until`."""
        nonlocal link_free, sent
        while sent < len(queue) and queue[sent].after <= until:
            t = queue[sent]
            start = max(link_free, ends[t.after] if t.after >= 0 else 0.0)
            link_free = start + t.seconds
            due[t.needed] = max(due.get(t.needed, 0.0), link_free)
            busy.append((start, link_free))
            sent += 1

    first = 0  # intervals before it are over
    send(-1)
    for i, seconds in enumerate(work_s):
        clock = max(clock, due.get(i, 0.0))
        first, clock = _advance(clock, seconds, busy, first, interference)
        ends[i] = clock
        send(i)
    return max(clock, due.get(len(work_s), 0.0))


def _advance(
    clock: float, seconds: float, busy: list[tuple[float, float]], first: int, interference: float
) -> tuple[int, float]:
    """Runs a work from `clock` on, slower while the link is busy."""
    left = seconds
    while first < len(busy) and busy[first][1] <= clock:
        first += 1
    for start, end in busy[first:]:
        gap = max(start - clock, 0.0)
        if left <= gap:
            return first, clock + left
        left, clock = left - gap, clock + gap
        slowed = (end - clock) / interference
        if left <= slowed:
            return first, clock + left * interference
        left, clock = left - slowed, end
    return first, clock + left
