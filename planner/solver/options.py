"""How far a problem is to be searched."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .budget import DEFAULT, QUICK, Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How long and how far to search; the same options give the same answer.

    budget: effort, in counted work.
    tolerance: relative gap at which to stop; 0 for a proof.
    seed: of the neighbourhoods.
    interruptible: whether Ctrl-C ends the search with the best choice so far.
    cutoff: only choices below this cost are of interest; the search ends when the bound reaches it.
    start: a choice that is known already, of every node; taken if it is allowed, and memory is
        limited nowhere.
    """

    time_limit_s: float = 60.0
    budget: Budget = DEFAULT
    tolerance: float = 1e-4
    seed: int = 0
    interruptible: bool = False
    cutoff: float = float("inf")
    start: tuple[int, ...] = ()


# Baselines need a fair price, not a proof.
ROUGH = SolveOptions(tolerance=1e-3, budget=QUICK)
# Under a tightened limit the bound is known already.
REFINED = SolveOptions(tolerance=1e-3, budget=replace(QUICK, steps=320))
# A bound that tells which of several problems to begin with.
GLIMPSE = SolveOptions(budget=replace(QUICK, steps=8))
