"""How far a problem is to be searched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How long and how far to search; the same options give the same answer.

    tolerance: relative gap at which to stop; 0 for a proof.
    sweeps, price_steps: their product limits the sweeps of message passing over one problem.
    ilp: whether HiGHS may be used.
    seed: of the neighbourhoods.
    rounds: at most so many neighbourhoods, fewer for a small gap or where they are
        large, and short runs of HiGHS; None to use all the time.
    interruptible: whether Ctrl-C ends the search with the best choice so far.
    cutoff: only choices below this cost are of interest; the search ends when the bound reaches it.
    start: a choice that is known already, of every node; taken if it is allowed, and memory is
        limited nowhere.
    """

    time_limit_s: float = 60.0
    tolerance: float = 1e-4
    sweeps: int = 120
    price_steps: int = 14
    ilp: bool = True
    seed: int = 0
    rounds: int | None = 120
    interruptible: bool = False
    cutoff: float = float("inf")
    start: tuple[int, ...] = ()


# Baselines need a fair price, not a proof.
ROUGH = SolveOptions(tolerance=1e-3, sweeps=72, price_steps=6, ilp=False)
# Under a tightened limit the bound is known already.
REFINED = SolveOptions(tolerance=1e-3, price_steps=8, ilp=False)
# A bound that tells which of several problems to begin with.
GLIMPSE = SolveOptions(sweeps=24, price_steps=1, ilp=False)
