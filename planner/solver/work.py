"""Counted work: what a search may do in all, however fast the machine is."""

from __future__ import annotations

from dataclasses import dataclass

# Passes over the columns of a 0/1 programme that count for its relaxation, and for each node at
# which branch and bound asks whether to go on. Of a two-layer GPT whose memory binds, 2,000 to
# 8,000 columns take 40,000 columns times nodes a second, message passing 80 million columns.
PROGRAMME = 2000
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
