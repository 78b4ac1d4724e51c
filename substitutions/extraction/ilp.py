# pyright: basic
"""Extraction as a 0/1 programme; cycles are forbidden as they occur in answers.

    min  sum c_n x_n     x_n: node n is chosen,  y_c: class c is needed
    y_root = 1,   sum of x_n over the nodes of c = y_c
    sum of x_n over the nodes of c that need d <= y_d          for every edge c -> d
    sum over a cycle c_1 -> c_2 -> ... -> c_1 of the x_n that take its edges <= length - 1

The last rows are added for the cycles of each answer, until an answer has none. The bound of the
programme with some of these rows is a bound for all. The programme is written in PuLP and solved by
HiGHS, in a thread so that Ctrl-C reaches Python.

Source: Yang et al., Equality Saturation for Tensor Graph Superoptimization (TENSAT), MLSys 2021,
whose rows for classes and children these are; it forbids cycles by an order of classes instead.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import pulp

from .egraph import NOTHING, EGraph, Extraction, components, extraction, needed
from .founded import Cut, Floats, Founding
from .greedy import greedy_dag, greedy_tree
from .landmarks import MOST_LANDMARKS, landmarks
from .quiet_highs import QuietHighs
from .simplify import MOST_PASSES

MOST_CYCLES = 200  # rows that are added for one answer
GRACE_S = 1.0  # for the solver to end after its deadline
SCALE = 1000.0  # cost of the known answer within the programme
RELATIVE = 1e-9  # gap below which an answer is optimal
RELAXED = 0.4  # share of the time for the programme without integers


@dataclass(frozen=True, slots=True)
class Effort:
    """How far an exact extraction goes: counts, so that its answer does not depend on a clock.

    passes: of the simplification.
    rounds: programmes that are solved, first without integers and then with them.
    branches: of one programme with integers.
    landmarks: cuts to begin with.
    """

    passes: int
    rounds: int
    branches: int
    landmarks: int


UNCOUNTED = Effort(MOST_PASSES, 2**31 - 1, 2**31 - 1, MOST_LANDMARKS)
FOREVER_S = 1e6  # where counts alone decide


def solve_ilp(graph: EGraph, limit_s: float = 60.0, effort: Effort | None = None) -> Extraction:
    """The best extraction, or the best found within the limit with a bound.

    Args:
        graph: what to extract from.
        limit_s: seconds, if no effort is given.
        effort: limits that are counts.
    """
    ended = "time limit" if effort is None else "effort limit"
    limit_s, effort = (limit_s, UNCOUNTED) if effort is None else (FOREVER_S, effort)
    deadline = time.monotonic() + limit_s
    best = min((greedy_tree(graph), greedy_dag(graph)), key=lambda found: found.cost)
    if best.stop == "none":
        return NOTHING
    model, founding = Programme(graph, best.cost, effort.branches), Founding(graph)
    floor, cuts = landmarks(graph, time.monotonic() + limit_s * RELAXED / 2, effort.landmarks)
    model.demand(cuts)
    relaxed_s = time.monotonic() + limit_s * RELAXED
    bound, best = _relaxed(graph, model, founding, best, relaxed_s, effort.rounds)
    bound = max(bound, floor)
    model.make_integral()
    part = components(graph)
    for _ in range(effort.rounds):
        if best.cost - bound <= RELATIVE * best.cost:
            return _finished(best, best.cost, "optimal")
        model.start_from(best.chosen)
        status, values, found = model.run(deadline)
        bound = max(bound, found)
        if values is None:
            return _finished(best, bound, ended)
        choice = model.choice(values)
        cyclic = needed(graph, choice) is None
        fresh = _repaired(graph, values) if cyclic else extraction(graph, choice, 0.0, "heuristic")
        best = min(best, fresh, key=lambda e: e.cost)
        if status != "optimal":
            return _finished(best, bound, ended)
        if not cyclic:
            return _finished(best, best.cost, "optimal")
        model.forbid(_cycles(graph, choice, part))
        model.demand(founding.cuts(*model.split(values)))
    return _finished(best, bound, ended)


def _relaxed(
    graph: EGraph, model: Programme, founding: Founding, best: Extraction, deadline: float,
    rounds: int,
) -> tuple[float, Extraction]:  # fmt: skip
    """Bound of the linear programme with the cuts that it needs, and what it suggests."""
    bound = 0.0
    for _ in range(rounds):
        status, values, found = model.run(deadline)
        if status != "optimal" or values is None:
            return bound, best
        bound = max(bound, found)
        best = min(best, _repaired(graph, values), key=lambda e: e.cost)
        cuts = founding.cuts(*model.split(values))
        if not cuts or best.cost - bound <= RELATIVE * best.cost:
            return bound, best
        model.demand(cuts)
    return bound, best


def _finished(best: Extraction, bound: float, stop: str) -> Extraction:
    return Extraction(best.chosen, best.cost, max(0.0, min(bound, best.cost)), stop)


def _repaired(graph: EGraph, values: Sequence[float]) -> Extraction:
    """A greedy extraction that prefers the nodes of a cyclic or fractional answer."""
    prices = [node.cost * (1.001 - min(1.0, values[i])) for i, node in enumerate(graph.nodes)]
    return greedy_dag(graph, prices)


def _cycles(graph: EGraph, choice: dict[int, int], part: Sequence[int]) -> list[list[int]]:
    """Cycles of a choice, as classes in order; each class is on one of them at most."""
    found: list[list[int]] = []
    state: dict[int, int] = {}
    for start in graph.roots:
        path: list[int] = []
        work = [(start, 0)] if start not in state else []
        while work:
            c, at = work.pop()
            if at == 0:
                state[c] = 1
                path.append(c)
            children = graph.nodes[choice[c]].children if c in choice else ()
            if at == len(children):
                state[c] = 2
                path.pop()
                continue
            work.append((c, at + 1))
            child = children[at]
            if child not in state:
                work.append((child, 0))
            elif state[child] == 1 and part[child] == part[c]:
                found.append(path[path.index(child) :])
    return sorted(found, key=len)[:MOST_CYCLES]


class Programme:
    """The programme; variables are nodes (x), then classes (y)."""

    def __init__(self, graph: EGraph, known: float, branches: int) -> None:
        self.graph, self.members = graph, graph.members()
        # the solver's tolerances are absolute, so a known answer is made to cost SCALE
        self.scale = SCALE / known if known > 0 else 1.0
        self.problem = pulp.LpProblem("extraction")
        roots = frozenset(graph.roots)
        self.x = [self._variable("x", i, 0.0) for i in range(len(graph.nodes))]
        self.y = [self._variable("y", c, float(c in roots)) for c in range(graph.classes)]
        self.problem.setObjective(
            pulp.LpAffineExpression(
                (x, node.cost * self.scale) for x, node in zip(self.x, graph.nodes, strict=True)
            )
        )
        for c, group in enumerate(self.members):
            self._add(group, self.y[c], pulp.LpConstraintEQ, 0.0)
            for d in dict.fromkeys(d for i in group for d in graph.nodes[i].children):
                users = [i for i in group if d in graph.nodes[i].children]
                self._add(users, self.y[d], pulp.LpConstraintLE, 0.0)
        self.whole, self._stop = False, False
        self.branches = branches
        self.highs = self._empty()
        self.problem.solverModel = self.highs  # pyright: ignore[reportAttributeAccessIssue]
        pulp.HiGHS(mip=False).buildSolverModel(self.problem)

    def _variable(self, kind: str, number: int, least: float) -> pulp.LpVariable:
        wide = len(str(max(len(self.graph.nodes), self.graph.classes)))  # PuLP sorts names
        return self.problem.add_variable(f"{kind}{number:0{wide}}", least, 1.0)

    def _add(
        self, nodes: Sequence[int], less: pulp.LpVariable | None, sense: int, most: float
    ) -> pulp.LpConstraint:
        """The row: sum of nodes, less a class if there is one, compared with a number."""
        terms = [(self.x[i], 1.0) for i in nodes] + ([(less, -1.0)] if less is not None else [])
        row = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=most)
        self.problem.addConstraint(row)
        return row

    def _empty(self) -> highspy.Highs:
        """A solver without a programme."""
        highs: Any = QuietHighs()
        options = {
            "mip_rel_gap": RELATIVE, "mip_abs_gap": 0.0, "threads": 1, "random_seed": 1,
            "mip_max_nodes": self.branches,
            "mip_allow_restart": False,  # HiGHS 1.15 may restart for ever
        }  # fmt: skip
        for name, value in options.items():
            highs.setOptionValue(name, value)
        for event in ("cbSimplexInterrupt", "cbIpmInterrupt", "cbMipInterrupt"):
            getattr(highs, event).subscribe(self._ask)
        return highs

    def _ask(self, event: object) -> None:
        if self._stop:
            event.interrupt()  # type: ignore[attr-defined]

    def start_from(self, chosen: Sequence[int]) -> None:
        """Gives the next run an answer to begin with."""
        solution = highspy.HighsSolution()
        values = [0.0] * (len(self.x) + len(self.y))
        for i in chosen:
            values[i] = 1.0
            values[len(self.x) + self.graph.nodes[i].owner] = 1.0
        solution.col_value = values
        programme = self.highs.getLp()
        programme.integrality_ = [highspy.HighsVarType.kInteger] * len(values)
        self.highs = self._empty()  # one that ran before may not end after rows were added
        self.highs.passModel(programme)
        self.highs.setSolution(solution)

    def run(self, deadline: float) -> tuple[str, list[float] | None, float]:
        """Status, values if there are any, and the bound."""
        left = deadline - time.monotonic()
        if left <= 0:
            return "time limit", None, 0.0
        self.highs.setOptionValue("time_limit", float(self.highs.getRunTime()) + left)
        thread = threading.Thread(target=self.highs.run, daemon=True)
        thread.start()
        try:
            thread.join(left + GRACE_S)
        finally:
            self._stop = True  # Ctrl-C reaches Python; the solver stops at its next callback
            thread.join()
            self._stop = False
        info = self.highs.getInfo()
        optimal = self.highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        bound = float(info.mip_dual_bound if self.whole else info.objective_function_value)
        bound = bound / self.scale if self.whole or optimal else 0.0
        feasible = info.primal_solution_status == highspy.kSolutionStatusFeasible
        values = list(self.highs.getSolution().col_value) if feasible else None
        return "optimal" if optimal else "time limit", values, bound if bound > 0 else 0.0

    def make_integral(self) -> None:
        """From now on all variables are 0 or 1."""
        self.whole = True

    def split(self, values: Sequence[float]) -> tuple[Floats, Floats]:
        """Values of the nodes and of the classes."""
        array = np.asarray(values)
        return array[: len(self.x)], array[len(self.x) :]

    def demand(self, cuts: Sequence[Cut]) -> None:
        for cut in cuts:
            self._cut(cut.nodes, self.y[cut.needed], pulp.LpConstraintGE, 0.0)

    def choice(self, values: Sequence[float]) -> dict[int, int]:
        nodes = self.graph.nodes
        return {node.owner: i for i, node in enumerate(nodes) if values[i] > 0.5}

    def forbid(self, cycles: Sequence[Sequence[int]]) -> None:
        for cycle in cycles:
            index: list[int] = []
            for c, d in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                index += [i for i in self.members[c] if d in self.graph.nodes[i].children]
            self._cut(index, None, pulp.LpConstraintLE, len(cycle) - 1.0)

    def _cut(
        self, nodes: Sequence[int], less: pulp.LpVariable | None, sense: int, most: float
    ) -> None:
        """A row that is added between two runs."""
        row = self._add(nodes, less, sense, most)
        low, high = row.getLb(), row.getUb()
        self.highs.addRow(
            -math.inf if low is None else low, math.inf if high is None else high, len(row),
            np.array([v.index for v in row], dtype=np.int32), np.array(list(row.values())),
        )  # fmt: skip
