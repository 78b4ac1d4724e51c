"""How far the search for rules goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, so that a search gives the same rules on every machine.

    ops: the most on a side of a rule.
    steps, reached: of the rewriting that derives a candidate from rules found before, and terms
        that it goes on from; longer derivations are left to saturation.
    members: terms of one class that are tried where a rule is matched.
    rounds, terms: of the saturation that derives a proved rule from rules kept before.
    derived: rules up to which those that follow from later ones are dropped at the end; above it
        only instances are, as derivations take time with the square of the number of rules.
    cached: results that each cache holds before it is emptied.
    """

    ops: int = 4
    steps: int = 2
    reached: int = 12
    members: int = 16
    rounds: int = 3
    terms: int = 1500
    derived: int = 400
    cached: int = 500_000


LIMITS = Limits()
