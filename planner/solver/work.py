"""Counted work: what a search may do in all, however fast the machine is."""

from __future__ import annotations

from dataclasses import dataclass

# A programme costs as much as so many passes over its columns, for each time that branch and bound
# asks whether to go on, and once for its relaxation.
PROGRAMME = 250
LEAST = 1e7  # columns that a search passes over in any case


@dataclass
class Work:
    """Work done so far, in columns passed over; the same inputs make the same count.

    limit: columns, above which each search does the least only.
    """

    limit: float = float("inf")
    done: float = 0.0

    @property
    def exhausted(self) -> bool:
        return self.done > self.limit

    @property
    def limit_of_next(self) -> float:
        """Count at which a search that begins now has to end."""
        return max(self.limit, self.done + LEAST)
