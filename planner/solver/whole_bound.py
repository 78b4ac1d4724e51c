"""The bound of a wide problem with windows, and the options that good choices may have.

At multipliers m of the windows the problem is one without windows (`mixing.py`). Message passing
bounds it by L and gives option i a slack s_i, so that no choice with i costs less than L + s_i,
with windows neither. Any messages give a bound: those at other multipliers are continued.

Choices rounded from the messages on the way are the kernel, a small problem with good choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .arrays import Flat, flatten_problem
from .bound.memory_multipliers import Multipliers
from .bound.message_passing import Messages
from .mixing import Mixing
from .options import SolveOptions
from .problem import IntraProblem
from .reduce.for_all_costs import ForAllCosts, reduced_for_all_costs
from .reduce.options_left import OptionsLeft, options_left
from .search.kernel import Kernel
from .search.subproblems import SWEPT


class WholeBound:
    """Message passing on all options, at one multiplier of each window after another."""

    def __init__(self, problem: IntraProblem, options: SolveOptions, mixing: Mixing) -> None:
        self.problem, self.options, self.mixing = problem, options, mixing
        self.bound = -np.inf  # at the last multipliers
        self._whole: ForAllCosts | None = None
        self._known: Multipliers | None = None
        self._kernel: Kernel | None = None

    def reduce(self, given: Mapping[int, float]) -> None:
        """Goes on to other multipliers.

        Args:
            given: multipliers of the windows; 0 for those that are absent.
        """
        self._whole = reduced_for_all_costs(flatten_problem(self.mixing.at(self.problem, given)))

    @property
    def pairs(self) -> int | None:
        """Pairs of options that are left; None if there is no choice."""
        return None if self._whole is None else self._whole.flat.entries

    def prove(self, wanted: float) -> None:
        """Bounds the problem, as long as steps raise the bound.

        Args:
            wanted: cost of the best known choice [s].
        """
        assert self._whole is not None
        flat, budget = self._whole.flat, self.options.budget
        known = self._continued(flat, wanted)
        kernel = self._kernel or Kernel(flat, self.options.seed, budget)
        for _ in range(budget.whole_steps):
            known.step()
            kernel.sample_at(known)
            self.options.work.done += SWEPT * (len(flat.cost) + flat.entries)
            if known.best.bound >= wanted or known.stale >= budget.large_stale_steps:
                break
        self._known, self._kernel, self.bound = known, kernel, known.best.bound

    def _continued(self, flat: Flat, wanted: float) -> Multipliers:
        """Multipliers of memory, from the messages at the last multipliers of the windows."""
        messages, last = Messages(flat, single=True), self._known
        if last is not None:
            last.rest()
            messages.message = last.messages.message
            messages.mass = last.messages.mass + (flat.cost - last.flat.cost)
            messages.multiplier = last.messages.multiplier
        return Multipliers(flat, None, wanted, budget=self.options.budget, messages=messages)

    def near(self, cost: float, choice: Sequence[int]) -> OptionsLeft:
        """The options that choices below some cost [s] may have, and those of a choice."""
        assert self._known is not None
        return self._left(~(self._known.best.slack > cost - self.bound), choice)

    def kernel(self, choice: Sequence[int]) -> OptionsLeft:
        """The options of the rounded choices, and those of a choice."""
        assert self._kernel is not None
        return self._left(self._kernel.read, choice)

    def _left(self, held: np.ndarray, choice: Sequence[int]) -> OptionsLeft:
        assert self._whole is not None
        if choice:
            mine = self._whole.map.project(np.array(choice))
            held = held.copy()
            held[self._whole.flat.first[:-1] + mine] = True
        return options_left(self.problem, self._whole.options(held))
