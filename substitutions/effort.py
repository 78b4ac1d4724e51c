"""How much work the verdict on one rule may take.

A count of steps of about a microsecond, so that a verdict does not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_STEPS = 3_000_000  # for proofs, and again for numbers; published rules take 700,000
LABEL = 40  # for an element that is read or written out
DRAW = 60  # for sizes that are tried
INSTANCE = 300  # for numbers that are tried
OP = 20  # for an op on numbers
ELEMENTS = 30  # that are computed in one step


class SpentError(Exception):
    """The work on a rule was given up."""


@dataclass
class Effort:
    """What is left of it."""

    left: int = MOST_STEPS

    def spend(self, steps: int) -> None:
        """Counts steps.

        Raises:
            SpentError: if none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise SpentError(f"given up after {MOST_STEPS} steps")
