"""How far a problem is to be searched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .budget import DEFAULT, NO_LIMIT, QUICK, Budget
from .work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """Tolerance and limits of a search; the same options give the same answer.

    time_limit_s: time limit [s]; with one, the answer depends on the machine.
    budget: limits of the effort, in counted work.
    tolerance: relative gap at which the search ends; 0 for a proof.
    seed: seed of the neighbourhoods.
    interruptible: whether Ctrl-C ends the search with the best choice so far.
    cutoff: cost below which choices are wanted [s]; the search ends when the bound reaches it.
    start: a known choice; without windows, it is used where memory is not limited, or where
        message passing finds nothing that fits.
    multipliers: of windows of overlap, (window, multiplier) to begin with; 0 for others.
    work: work of this and other searches together.
    """

    time_limit_s: float = NO_LIMIT
    budget: Budget = DEFAULT
    tolerance: float = 1e-4
    seed: int = 0
    interruptible: bool = False
    cutoff: float = float("inf")
    start: tuple[int, ...] = ()
    multipliers: tuple[tuple[int, float], ...] = ()
    work: Work = field(default_factory=Work, compare=False, repr=False)


# For baselines: a fair price without a proof.
ROUGH = SolveOptions(tolerance=1e-3, budget=QUICK)
# From multipliers of a similar problem. Of 22 choices of what GPT-175B in a loop computes again,
# with two solves and no cutoff in 72 s, with one and the best so far as cutoff in 36: the same one.
ROUGH_AGAIN = replace(ROUGH, budget=replace(QUICK, window_solves=1))
# For those that may be the best: on 8 H100 0.3 % less for Llama-3 8B, 0.7 for a two-layer Llama.
COMBINED = replace(
    ROUGH, budget=replace(QUICK, window_solves=2, combined_columns=DEFAULT.combined_columns)
)
# For solves under a tightened limit, whose bound is known.
REFINED = SolveOptions(tolerance=1e-3, budget=replace(QUICK, steps=320))
# For the best of them once more. On 512 H100 a step of Llama-3 405B is 0.8 % less after 11 s of
# processor time, one of GPT-3 175B 0.7 % after 26 s; with `DEFAULT` 0.8 % after 87 s.
FURTHER = replace(DEFAULT, rounds=12, kernels=2)
# For a quick bound, which orders several problems.
GLIMPSE = SolveOptions(budget=replace(QUICK, steps=8, window_solves=1))
# For the moments at which plans exceed the memory limit, where not all are watched. For twelve
# layers of GPT-175B with 1,024 devices in one axis three full solves and seven of these take 18 s,
# eleven full ones took 57, with a bound 0.15 % below the best choice in both.
MOMENTS = replace(QUICK, window_solves=1)
