"""Wide problems by classes of options that cost about the same, such as those of equal mesh axes.

With one option for each class, at the least that its members cost, the problem is a relaxation:

    costs and hidden seconds of a pair of classes   the least of their pairs of options
    bytes                                           the least
    work beside which communication hides           the most

so that its bound is one of the problem. Where classes are alike up to the order of mesh axes, the
members of the classes chosen hold a choice at that bound as a rule. Else the options are searched
whose classes a better choice may have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..common.stop import Stop
from .arrays import Ints
from .budget import Budget
from .exact.window_programme import windows_of
from .incumbent import EXACT
from .mixing import Mixing
from .options import SolveOptions
from .problem import Floats, IntraProblem, IntraSolution, Point
from .reduce.options_left import options_left
from .tables import Deferred, Table, least_of_classes
from .whole_bound import WholeBound

# Class of every option of each node, numbered from 0; equal arrays may be one object.
Classes = tuple[Ints, ...]
Watch = Callable[[Point], None]
Plain = Callable[[IntraProblem, SolveOptions, Watch | None], IntraSolution]


def pairs_of(problem: IntraProblem) -> int:
    """Pairs of options at all edges."""
    return sum(edge.table.size for edge in problem.edges)


def one_for_each_class(problem: IntraProblem, classes: Classes) -> IntraProblem:
    """The relaxation whose options are the classes.

    Args:
        problem: with or without windows.
        classes: of its options.
    """
    counts = {id(each): int(each.max(initial=-1)) + 1 for each in classes}
    made: dict[tuple[object, ...], Floats] = {}

    def least(array: Table, *nodes: int) -> Floats:
        key = (id(array), *[id(classes[n]) for n in nodes])
        if key not in made:
            of = [classes[n] for n in nodes]
            shape = [counts[id(each)] for each in of]
            if isinstance(array, Deferred):
                made[key] = array.least(of[0], of[1], shape)
                return made[key]
            made[key] = np.full(shape, np.inf)
            if len(of) == 1:
                np.minimum.at(made[key], of[0], array)
            else:
                least_of_classes(np.ascontiguousarray(array), of[0], of[1], made[key])
        return made[key]

    def most(array: Floats, node: int) -> Floats:
        key = ("most", id(array), id(classes[node]))
        if key not in made:
            made[key] = np.full(counts[id(classes[node])], -np.inf)
            np.maximum.at(made[key], classes[node], array)
        return made[key]

    return problem.with_arrays(least, most)


def some_options(problem: IntraProblem, budget: Budget) -> Budget:
    """The budget for some of the options of a problem, whose bound is none of all options.

    With windows, choices are combined in the end: of a two-layer GPT on 8 H100 with 0.7 of its
    memory, branch and bound of kernels takes half of the time and leads to the same step.

    Args:
        problem: the problem.
        budget: of the whole problem.
    """
    return replace(budget, exact_if_memory_binds=False) if windows_of(problem) else budget


def solve_by_classes(
    problem: IntraProblem,
    classes: Classes,
    options: SolveOptions,
    plain: Plain,
    watch: Watch | None = None,
) -> IntraSolution:
    """Best choice found of a problem, with a proven lower bound.

    Args:
        problem: the problem.
        classes: of its options.
        options: tolerance and limits.
        plain: solver without classes.
        watch: receiver of every improvement.
    """
    return _ClassSearch(problem, classes, options, plain, watch).run()


class _ClassSearch:
    """The search of one problem: its classes, their members, then what else may be better."""

    def __init__(
        self,
        problem: IntraProblem,
        classes: Classes,
        options: SolveOptions,
        plain: Plain,
        watch: Watch | None,
    ) -> None:
        self.problem, self.classes, self.options = problem, classes, options
        self.plain, self.watch = plain, watch
        self.some = some_options(problem, options.budget)
        self.begin = time.monotonic()
        self.first = np.cumsum([0, *map(len, classes)])
        self.choice: tuple[int, ...] = ()
        self.cost, self.bound = np.inf, -np.inf
        self.multipliers = options.multipliers
        self.stop: Stop | None = None

    def run(self) -> IntraSolution:
        """The search."""
        if self.options.start and self.problem.is_feasible(self.options.start):
            self._take(self.options.start)
        relaxed = one_for_each_class(self.problem, self.classes)
        pairs = zip(self.classes, self.options.start, strict=False)
        start = tuple(int(each[k]) for each, k in pairs)
        found = self._solve(relaxed, start, self._bounds, self.options.budget)
        self.bound, self.multipliers = found.bound, found.multipliers
        if found.stop is Stop.INFEASIBLE:
            return found
        if not found.choice:
            return self._answer()
        self._search(self._in([np.array([k]) for k in found.choice]))
        if self.stop is None and not self._close:
            self._search_near(relaxed, found.choice)
        return self._answer()

    @property
    def _close(self) -> bool:
        tolerance = max(self.options.tolerance, EXACT)
        proved = bool(self.choice) and self.cost - self.bound <= tolerance * abs(self.cost)
        return proved or self.bound >= self.options.cutoff

    def _answer(self) -> IntraSolution:
        none = not self.choice and self.bound == np.inf
        ended = Stop.OPTIMAL if self.choice and self._close else Stop.GAP
        stop = self.stop or (Stop.INFEASIBLE if none else ended)
        bound, seconds = min(self.bound, self.cost), time.monotonic() - self.begin
        return IntraSolution(self.choice, self.cost, bound, stop, (), seconds, self.multipliers)

    def _solve(
        self, problem: IntraProblem, start: Sequence[int], watch: Watch | None, budget: Budget
    ) -> IntraSolution:
        """A solution within the time that is left; notes what cut it short."""
        left_s = max(self.options.time_limit_s - (time.monotonic() - self.begin), 1.0)
        options = replace(
            self.options, start=tuple(start), time_limit_s=left_s, multipliers=self.multipliers,
            budget=budget,
        )  # fmt: skip
        found = self.plain(problem, options, watch)
        if found.stop in (Stop.INTERRUPTED, Stop.TIME_LIMIT):
            self.stop = found.stop
        return found

    def _take(self, choice: tuple[int, ...]) -> None:
        cost = self.problem.cost(choice)
        if cost < self.cost:
            self.choice, self.cost = choice, cost

    def _search(self, held: np.ndarray, *, proving: bool = False) -> float:
        """Searches the options of a mask, and those of the best choice; their lower bound.

        Args:
            held: the mask.
            proving: whether the bound is one of all options, so that it is worth work.
        """
        if self.choice:
            held = held.copy()
            held[self.first[:-1] + np.array(self.choice)] = True
        left = options_left(self.problem, held)
        budget = self.options.budget if proving else self.some
        found = self._solve(left.problem, left.lowered(self.choice), self._costs, budget)
        self.multipliers = found.multipliers or self.multipliers
        if found.choice:
            self._take(left.lift(found.choice))
        return found.bound

    def _search_near(self, relaxed: IntraProblem, chosen: tuple[int, ...]) -> None:
        """Searches more options, until they are all that a better choice may have, or many.

        Kernels of the relaxation find choices, and other multipliers of the windows. All options
        are searched where the relaxation is solved at once, and where nothing else is found.
        """
        every = np.full(int(self.first[-1]), True)
        whole = WholeBound(relaxed, self.options, Mixing())
        for _ in range(self.options.budget.kernels):
            whole.reduce(dict(self.multipliers))
            if not whole.pairs:
                self.bound = max(self.bound, self._search(every, proving=True))
                return
            whole.prove(self.cost)
            wanted = self.cost - max(self.options.tolerance, EXACT) * abs(self.cost) / 2
            near = whole.near(wanted + EXACT * abs(self.cost), chosen).kept if self.choice else ()
            held = self._in(near) if near else None
            if held is not None and self._pairs(held) <= self.options.budget.narrowed_pairs:
                self.bound = max(self.bound, min(self._search(held, proving=True), wanted))
                return
            before = self.cost
            self._search(self._in(whole.kernel(chosen).kept))
            if self.stop is not None or self._close or self.cost >= before:
                break
        if not self.choice and self.stop is None:
            self.bound = max(self.bound, self._search(every, proving=True))

    def _pairs(self, held: np.ndarray) -> int:
        """Pairs of the options of a mask at all edges."""
        counts = np.add.reduceat(held, self.first[:-1], dtype=np.int64)
        return sum(int(counts[edge.u] * counts[edge.v]) for edge in self.problem.edges)

    def _in(self, kept: Sequence[Ints]) -> np.ndarray:
        """Mask of the options in some classes of each node."""
        held: list[np.ndarray] = []
        for each, some in zip(self.classes, kept, strict=True):
            mine = np.zeros(int(each.max(initial=-1)) + 1, dtype=np.bool_)
            mine[some] = True
            held.append(mine[each])
        return np.concatenate(held)

    def _bounds(self, point: Point) -> None:
        """Tells of a bound of the relaxation, whose choices are none of the problem."""
        if self.watch is not None:
            self.watch((point[0], self.cost, point[2]))

    def _costs(self, point: Point) -> None:
        """Tells of a choice among some options, whose bound is not one of all."""
        if self.watch is not None:
            self.watch((point[0], point[1], self.bound))
