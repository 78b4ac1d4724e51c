"""Large neighbourhoods: some nodes are chosen anew, exactly, with the others held fixed.

A neighbourhood is solved by the reductions and the 0/1 programme, memory included. Which nodes:
those around a node in the graph, those next to each other in program order, or those around some
that share a tight moment of memory. Which of their options: those that message passing has nearest
to the bound. A neighbourhood that was solved with ease is followed by a larger one. Once every node
was free several times and nothing better came of it, the search is to begin elsewhere; what it
ended at before is then a neighbourhood too: the nodes and options in which two choices differ.

Sources: Shaw, Using constraint programming and local search methods to solve vehicle routing
problems, CP 1998; Rothberg, An evolutionary algorithm for polishing mixed integer programming
solutions, INFORMS Journal on Computing 19(4), 2007.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...common.stop import Stop
from ..arrays import Flat, Ints
from ..budget import DEFAULT, Budget
from ..exact.ilp import columns, solve_ilp
from ..problem import Floats
from ..reduce.arc_consistency import incidence
from ..reduce.reduce import reduce
from ..reduce.remap import keeping, remap

HUB = 60  # a node with more neighbours does not hand the neighbourhood on
FEWEST_COLUMNS = 1_000
LEAST, FIRST = 12, 60
SHARERS = 8  # nodes for each one that is picked because it uses memory
GROW, SHRINK = 1.15, 0.8


class Neighbours:
    """Improves one choice of one problem."""

    def __init__(
        self, flat: Flat, choice: Ints, slack: Floats, seed: int, budget: Budget = DEFAULT,
        others: Sequence[Ints] = (),
    ) -> None:  # fmt: skip
        """Takes the problem, where to begin, options above the bound, and good choices."""
        self.budget = budget
        self.flat, self.choice, self.slack, self.others = flat, choice, slack, others
        self.cost = flat.cost_of(choice)
        self.random = np.random.default_rng(seed)
        self.at, self.edge = incidence(flat)
        self.node = np.repeat(np.arange(flat.size), flat.sizes)
        self.kinds = [self._around, self._in_a_row, self._together]
        if others:
            self.kinds.append(self._between)
        self.size = [float(min(FIRST, flat.size))] * len(self.kinds)
        self.columns = [budget.round_columns] * len(self.kinds)
        self.turn = 0
        self.work = 0  # columns of the programmes so far
        self.programmes_work = 0.0  # columns passed over in solving them
        self.freed = 0  # nodes since the choice was last improved
        self.also = np.zeros(0, dtype=np.int64)  # options to hold beside those near the bound

    @property
    def stuck(self) -> bool:
        """Whether it is time to begin elsewhere."""
        return self.freed > self.budget.stuck_rounds * self.flat.size

    def improve(self, least: float, time_limit_s: float) -> bool:
        """Tries one neighbourhood; whether it was all there is and has nothing better.

        Args:
            least: by so much a choice must be better.
            time_limit_s: for this neighbourhood.
        """
        kind = self.turn % len(self.kinds)
        self.turn += 1
        self.also = self.also[:0]
        part = self.kinds[kind](int(self.size[kind]))
        held = self._options(part, self.columns[kind])
        self.freed += len(part)
        step = keeping(self.flat, held)
        small = reduce(remap(self.flat, step))
        if small.broken:
            return False
        self.work += columns(small.flat)
        found = solve_ilp(
            small.flat, time_limit_s=time_limit_s, cutoff=self.cost - least,
            nodes=self.budget.round_nodes, work=self.budget.round_work,
        )  # fmt: skip
        self.programmes_work += found.work
        easy = found.stop in (Stop.OPTIMAL, Stop.INFEASIBLE)
        self._resize(kind, easy=easy)
        if found.choice is None:
            return found.stop is Stop.INFEASIBLE and bool(held.all())
        choice = step.lift(small.lift(found.choice))
        cost = self.flat.cost_of(choice)
        if cost < self.cost and self.flat.fits(choice):
            self.choice, self.cost, self.freed = choice, cost, 0
        return False

    def _resize(self, kind: int, *, easy: bool) -> None:
        factor = GROW if easy else SHRINK
        grown = self.size[kind] * factor
        if not easy or grown > self.flat.size:  # all nodes: more options of each
            self.columns[kind] = max(FEWEST_COLUMNS, self.columns[kind] * factor)
        self.size[kind] = float(np.clip(grown, min(LEAST, self.flat.size), self.flat.size))

    # --- which options ---

    def _options(self, part: Ints, most: float) -> np.ndarray:
        """Options near the bound of the nodes that are free, so few that the programme is small."""
        flat = self.flat
        free = np.zeros(flat.size, dtype=np.bool_)
        free[part] = True
        chosen = np.zeros(len(flat.cost), dtype=np.bool_)
        chosen[flat.first[:-1] + self.choice] = True
        chosen[self.also] = True
        mine = free[self.node]
        inner = flat.ends[free[flat.ends].all(axis=1)]
        levels = np.unique(self.slack[mine])
        low, high = 0, len(levels) - 1
        while low < high:  # the largest level whose programme is small enough
            middle = (low + high + 1) // 2
            if self._columns(mine & (self.slack <= levels[middle]) | chosen, inner) <= most:
                low = middle
            else:
                high = middle - 1
        return chosen | mine & (self.slack <= levels[low])

    def _columns(self, held: np.ndarray, inner: Ints) -> int:
        left = np.bincount(self.node[held], minlength=self.flat.size)
        return int((left[inner[:, 0]] * left[inner[:, 1]]).sum())

    # --- which nodes ---

    def _doubtful(self) -> int:
        """A node, likelier the farther its option is above the bound."""
        doubt = self.slack[self.flat.first[:-1] + self.choice]
        total = float(doubt.sum())
        if not 0.0 < total < np.inf or self.random.random() < 0.3:
            return int(self.random.integers(self.flat.size))
        return int(self.random.choice(self.flat.size, p=doubt / total))

    def _around(self, size: int) -> Ints:
        return self._near([self._doubtful()], size)

    def _near(self, start: list[int], size: int) -> Ints:
        """Nodes around some others."""
        seen = np.zeros(self.flat.size, dtype=np.bool_)
        seen[start] = True
        part = list(start)
        for n, v in enumerate(part):
            edges = self.edge[self.at[v] : self.at[v + 1]]
            if len(part) >= size or (len(edges) > HUB and n >= len(start)):
                continue
            near = self.flat.ends[edges].sum(axis=1) - v
            fresh = self.random.permutation(near[~seen[near]])[: size - len(part)]
            seen[fresh] = True
            part.extend(fresh.tolist())
        return np.array(part)

    def _in_a_row(self, size: int) -> Ints:
        start = max(0, min(self._doubtful() - size // 2, self.flat.size - size))
        return np.arange(start, min(start + size, self.flat.size))

    def _together(self, size: int) -> Ints:
        """Nodes around some that use memory at one of the tightest moments."""
        flat = self.flat
        if not len(flat.limit):
            return self._around(size)
        room = flat.room(self.choice) / np.maximum(flat.limit, 1e-300)
        tight = np.argsort(room, kind="stable")[: max(1, len(room) // 20)]
        moment = int(self.random.choice(tight))
        users = np.unique(flat.owner[(flat.begin <= moment) & (moment < flat.end)])
        if not len(users):
            return self._around(size)
        return self._near(self.random.permutation(users)[: max(2, size // SHARERS)].tolist(), size)

    def _between(self, size: int) -> Ints:
        """Nodes that another good choice has otherwise."""
        other = self.others[int(self.random.integers(len(self.others)))]
        part = np.flatnonzero(other != self.choice)
        if not len(part):
            return self._around(size)
        part = self.random.permutation(part)[:size]
        self.also = self.flat.first[part] + other[part]
        return part
