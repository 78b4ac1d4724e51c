"""The kernel of a large problem: options of its good choices, which form a small problem.

Near good memory multipliers most nodes of a large problem are decided. The undecided options are
found by sampling: choices are rounded from the messages at scaled multipliers, with random
perturbations, and with or without the memory limit. Choices at low multipliers are faster than any
choice that fits, those at high multipliers use less memory. The options of all samples form the
kernel. Optimising the multipliers of the kernel alone takes no time and gives a choice; once its
bound is near that of the whole problem, the kernel is searched. It grows as multipliers improve.

Source: Angelelli, Mansini and Speranza, Kernel search: a general heuristic for the
multi-dimensional knapsack problem, Computers and Operations Research 37, 2010.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import Flat, Ints
from ..bound.memory_multipliers import Multipliers
from ..budget import DEFAULT, Budget
from ..reduce.reduce import reduce
from .restarts import carried_over

SHARES = (1.0, 0.96, 0.9, 0.84, 0.78, 0.7, 1.06)  # factors on the multipliers
SWEEPS = 2  # message-passing sweeps at each factor
READ = 8  # choices rounded at each factor
FITTING = 4  # every fourth choice is rounded within the memory limit
COOLEST = 4  # the smallest mean perturbation is the gap per node over 4 to this power


class Kernel:
    """The options of one problem that some sampled choice has."""

    def __init__(self, flat: Flat, seed: int, budget: Budget = DEFAULT) -> None:
        self.flat, self.budget = flat, budget
        self.random = np.random.default_rng(seed)
        self.read = np.zeros(len(flat.cost), dtype=np.bool_)
        self.free = np.full(len(flat.limit), np.inf)  # no memory limit [bytes]

    def add(self, choice: Ints) -> None:
        """Adds the options of a choice."""
        self.read[self.flat.first[:-1] + choice] = True

    def sample_at(self, multipliers: Multipliers) -> None:
        """Rounds choices at given multipliers, of this problem or of a subproblem."""
        heat = multipliers.gap / self.flat.size
        for n in range(READ):
            least = heat * 4.0 ** (n % (COOLEST + 1) - COOLEST) if n else 0.0
            wrong = self.random.exponential(least, len(self.read))
            fitting = n % FITTING == FITTING - 1
            self.add(multipliers.messages.round(None if fitting else self.free, wrong))

    def sample(self, multipliers: Multipliers) -> None:
        """Rounds choices near given multipliers, whose state is restored afterwards."""
        messages = multipliers.messages
        state, multiplier, momentum = messages.state(), messages.multiplier, messages.momentum
        for share in SHARES:
            messages.restore(state)
            messages.set_multiplier(multiplier * share)
            for _ in range(SWEEPS if share != 1.0 else 0):
                messages.sweep()
            self.sample_at(multipliers)
        messages.restore(state)
        messages.momentum = momentum

    def restricted(
        self,
        multipliers: Multipliers,
        held: np.ndarray,
        ceiling: float,
        offer: Callable[[Ints], None],
    ) -> Multipliers | None:
        """Optimised multipliers of the problem restricted to some options; None if it is empty.

        Args:
            multipliers: multipliers of the whole problem.
            held: mask of the options of the whole problem that are kept.
            ceiling: cost of the best known choice [s].
            offer: receiver of choices of the whole problem.
        """
        below = reduce(self.flat, held)
        if below.broken or not below.flat.size:
            return None
        budget = self.budget
        found = Multipliers(
            below.flat, carried_over(multipliers, below.flat), ceiling, budget=budget
        )
        for _ in range(budget.steps):
            if found.step():
                assert found.choice is not None
                offer(below.lift(found.choice))
            if found.stale >= budget.stale_steps:
                break
        return found

    def promising(self, multipliers: Multipliers, margin: float) -> np.ndarray:
        """Mask of the kernel options that a choice within `margin` [s] of the bound may have."""
        return self.read & (multipliers.best.slack <= margin)
