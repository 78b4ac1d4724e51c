"""The division with the least simulated step of all numbers of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..schedule import take
from .dynamic_programme import Division
from .placements import Placements

Row = tuple[int, Division]  # number of micro-batches, and a division like which others are


@dataclass
class Placed:
    """Divisions into stages on given groups of devices, for some numbers of micro-batches.

    rows: numbers of micro-batches, with divisions of the groups.
    known: number of a row -> the limit under which its divisions were simulated, and the family of
        schedules and the division that were found.
    least_s: number of a row -> lower bound of all its divisions.
    from_s: the limit from which on cuts are moved, where not all divisions are looked at.
    """

    placements: Placements
    rows: Sequence[Row]
    known: dict[int, tuple[float, tuple[str, Division] | None]] = field(
        default_factory=dict[int, "tuple[float, tuple[str, Division] | None]"]
    )
    least_s: dict[int, float] = field(default_factory=dict[int, float])
    from_s: dict[int, float] = field(default_factory=dict[int, float])

    def best(self, below_s: float, tried: Collection[object]) -> tuple[int, str, Division] | None:
        """Micro-batches, family of schedules and the division; None if none is below a limit [s].

        The row with the least bound is asked first, the others for what is below the best so far
        alone, and again once that is no longer the best.

        Args:
            below_s: the limit.
            tried: divisions to leave out, as of `Placements.best`.
        """
        held = [row[1][1].step_s for row in self.known.values() if row[1] is not None]
        least_s = min([below_s, *held])
        for k, (count, like) in enumerate(self.rows):
            if k not in self.least_s:
                self.least_s[k], self.from_s[k] = self.placements.least_s(count, like), below_s
        for k in sorted(self.least_s, key=lambda k: (self.least_s[k], k)):
            (count, like), (limit, found) = self.rows[k], self.known.get(k, (-math.inf, None))
            if found is not None or limit >= least_s:
                continue
            is_every = self.placements.is_every(like)
            if self.least_s[k] < least_s:
                limit_s = least_s if is_every else self.from_s[k]
                found = self.placements.best(count, like, limit_s, tried)
            else:
                limit_s = least_s
            self.known[k] = limit_s, found
            if found is not None:
                least_s = min(least_s, found[1].step_s)
        rows = [(found[1].step_s, self.rows[k][0], found)
                for k, (_, found) in sorted(self.known.items()) if found is not None]  # fmt: skip
        if not rows:
            return None
        step_s, count, found = min(rows, key=lambda row: row[:2])
        return (count, *found) if step_s < below_s else None

    def forget(self, count: int) -> None:
        """Forgets what was found for a number of micro-batches, since prices of it have changed."""
        for k, (other, _) in enumerate(self.rows):
            if other == count:
                self.known.pop(k, None)
                self.least_s.pop(k, None)


def rows_of(counts: Sequence[int], likes: Sequence[Division]) -> list[Row]:
    """The rows of which a schedule takes the number of micro-batches."""
    return [
        (m, like) for m in counts for like in likes
        if take(like.turns, len(like.sizes) // like.turns.chunks, m)
    ]  # fmt: skip
