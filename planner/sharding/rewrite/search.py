"""Best-first search for rewrites that make the plan of a program faster.

A state is a program, its price that of a quick plan on the mesh that suits the program as written.
A move applies one rule at all places that look alike: at every layer of a program whose layers are
written out, once in the body of a loop over layers. States wait in a queue, the cheapest first;
one that costs much more than the cheapest is not followed. The budget is made of counts, never of
time.

Source: Jia et al., TASO, SOSP 2019, section 5; Unger et al., Unity, OSDI 2022, section 6.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ir import Graph, digest, runs_of
from substitutions import Draft, Place, Trial, apply, find

from .estimate import Estimator
from .left_out import LeftOut
from .searched_rules import SEARCHED

# A rewrite must make the step faster by this share: prices are not known better.
WORTH = 1e-2
# The largest share of a step that rewrites are expected to save.
MOST_SAVED = 0.2


@dataclass(frozen=True, slots=True)
class RewriteBudget:
    """How far the search for rewrites of one program goes; all limits are counts.

    A move that does not shorten the estimate can only pay by what the estimate leaves out: moving
    data between devices, and work that they all repeat.

    priced: programs that are priced by planning them.
    kinds: kinds of places, the most promising first, whose moves are made in one state.
    missed: moves in a row that are priced without a gain by the estimate, and do not pay.
    large: nodes of a program from which on `missed` is 1, as a price takes long.
    relaxed: a state is followed if it costs at most this times the cheapest one.
    left_out: share of the step that the estimate must leave out for such moves to be priced.
    """

    priced: int = 5
    kinds: int = 6
    missed: int = 2
    large: int = 4_000
    relaxed: float = 1.05
    left_out: float = 0.05


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rule applied at all places that look alike.

    place: the first of them, in the program before this step.
    count: how many there are.
    """

    rule: str
    place: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten program, and the steps that led to it."""

    draft: Draft
    steps: tuple[RewriteStep, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class _Move:
    """A step that was made, not priced yet."""

    step: RewriteStep
    kind: str
    draft: Draft
    gain_s: float  # by the estimate


@dataclass
class _State:
    """A priced program.

    moves: those from it that were not priced yet, the last next; None before it is followed.
    refused: kinds of places that did not pay here or where this state came from.
    """

    draft: Draft
    steps: tuple[RewriteStep, ...]
    step_s: float
    moves: list[_Move] | None
    refused: set[str]


# Places that look alike, and the most that they can save of what the estimate leaves out.
Hope = tuple[float, list[Place]]


@dataclass
class RewriteSearch:
    """The search for rewrites of one program.

    price: seconds of a program's step, planned.
    estimator: seconds without communication.
    step_s: of the plan of the program as written.
    budget: how far it goes.
    rules: that may be applied.
    trial: every rewrite on numbers, before it is made.
    left_out: what the estimate leaves out of the plan of the program as written.
    first: what could pay in the program as written, once the search has begun.
    """

    price: Callable[[Draft], float]
    estimator: Estimator
    step_s: float
    budget: RewriteBudget = RewriteBudget()
    rules: tuple[str, ...] = SEARCHED
    trial: Trial = field(default_factory=Trial)
    left_out: LeftOut | None = None
    priced: int = 0
    missed: int = 0
    seen: set[str] = field(default_factory=set[str])
    first: list[Hope] = field(default_factory=list[Hope])

    def run(self, draft: Draft) -> Rewritten | None:
        """The cheapest program found; None if no rewrite pays."""
        self.seen.add(digest(draft.graph))
        if draft.graph.count_nodes() > self.budget.large:
            self.budget = replace(self.budget, missed=min(self.budget.missed, 1))
        self.first = self.hopeful(draft, set())
        start = _State(draft, (), self.step_s, self._moves(draft, self._narrowed(draft)), set())
        best, queue, number = start, [(start.step_s, 0, start)], 0
        while queue and self.priced < self.budget.priced:
            step_s, at, state = heapq.heappop(queue)
            if step_s > self.budget.relaxed * best.step_s:
                break
            if state.moves is None:
                hopes = self.hopeful(state.draft, state.refused)
                state.moves = self._moves(state.draft, hopes)
            if not state.moves:
                continue
            found = self._follow(state, state.moves.pop())
            heapq.heappush(queue, (step_s, at, state))
            if found is None:
                continue
            number += 1
            heapq.heappush(queue, (found.step_s, number, found))
            best = found if found.step_s < best.step_s * (1 - WORTH) else best
        return None if best is start else Rewritten(best.draft, best.steps, best.step_s)

    def _narrowed(self, draft: Draft) -> list[Hope]:
        """What could pay in the program as written, by what its plan leaves to be saved."""
        if self.left_out is None:
            return self.first
        return [
            (min(saved_s, self.left_out.seconds(draft.graph, members)), members)
            for saved_s, members in self.first
        ]

    def _follow(self, state: _State, move: _Move) -> _State | None:
        """The state after a move, if it is worth being followed."""
        blind = move.gain_s <= WORTH * self.step_s
        if blind and self.missed >= self.budget.missed:
            return None
        key = digest(move.draft.graph)
        if key in self.seen:
            return None
        self.seen.add(key)
        self.priced += 1
        step_s = self.price(move.draft)
        pays = step_s <= state.step_s * (1 - WORTH)
        self.missed = 0 if pays else self.missed + blind
        if not pays:
            state.refused.add(move.kind)
        if step_s > self.budget.relaxed * state.step_s:
            return None
        steps = *state.steps, move.step
        return _State(move.draft, steps, step_s, None, set(state.refused))

    def _moves(self, draft: Draft, hopes: list[Hope]) -> list[_Move]:
        """Moves that could pay, the most promising last.

        A move is left out if what it can save at most is too little, or less than it costs.
        """
        found: list[_Move] = []
        before: float | None = None
        for saved_s, members in hopes[: self.budget.kinds]:
            after, count = apply(draft, members, self.trial)
            if not count:
                continue
            before = self.estimator.seconds(draft.graph) if before is None else before
            gain_s = before - self.estimator.seconds(after.graph)
            if gain_s + saved_s > WORTH * self.step_s:
                step = RewriteStep(members[0].rule, members[0].path, count)
                found.append(_Move(step, members[0].kind, after, gain_s))
        return sorted(found, key=lambda move: move.gain_s)

    def hopeful(self, draft: Draft, refused: set[str]) -> list[Hope]:
        """What could pay, the most promising first.

        Args:
            draft: a program.
            refused: kinds of places that are left out.
        """
        classes: dict[tuple[str, int], list[Place]] = {}
        for place in find(draft, self.rules):
            if place.kind not in refused:
                classes.setdefault((place.kind, len(place.prefix)), []).append(place)
        if not classes:
            return []
        left_s = max(self.step_s - self.estimator.seconds(draft.graph), 0.0)
        if left_s <= self.budget.left_out * self.step_s or self.missed >= self.budget.missed:
            left_s = 0.0  # no move is priced that the estimate sees no gain in
        hopes = [
            (*self._hope(draft.graph, members, left_s), members) for members in classes.values()
        ]
        hopes = [hope for hope in hopes if hope[0] + hope[1] > WORTH * self.step_s]
        hopes.sort(key=lambda hope: -hope[0] - hope[1])
        return [(saved_s, members) for _, saved_s, members in hopes]

    def _hope(self, graph: Graph, members: list[Place], left_s: float) -> tuple[float, float]:
        """The most that rewriting some places can save: of the estimate, and of what it leaves.

        left_s: what the estimate leaves out of the step.
        """
        inner, runs = graph, 1.0
        prefix = members[0].prefix
        for at, body in zip(prefix[::2], prefix[1::2], strict=True):
            runs *= runs_of(inner.nodes[at])
            inner = inner.nodes[at].bodies[body]
        work_s, moved_s = self.estimator.most_s(inner, members[0].nodes)
        times = runs * len(members)
        alike_s = work_s * (self.estimator.cluster.num_devices - 1)
        return work_s * times, min((moved_s + alike_s) * times, left_s)
