"""Rewrites and shardings of a small part of a program chosen together, in one exact extraction.

The search in `search.py` prices one program after the other. Here each rewrite that could pay is
made by itself; an e-graph holds the programs (`value_classes.py`), and the cheapest choice of nodes
and shardings is extracted (`sharded_egraph.py`). Ops that no rewrite touches or is next to keep
their strategies of the plan (`extraction_part.py`). The rewrites that were chosen are then made one
after the other, so that the answer is a chain of rules at places, as that of the search is.

Prices here ignore memory and most of fusion, and all devices are one axis of the mesh, since meshes
of several axes have too many shardings for an exact choice. So the answer is only a candidate. All
limits are counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ir import digest
from substitutions import Draft, Effort, Place, apply, extract, find

from ..search.context import Candidate
from .extraction_part import Part
from .search import WORTH, RewriteSearch, RewriteStep, Rewritten
from .sharded_egraph import Prices, product_of
from .value_classes import ProgramClasses, ValueClasses

EFFORT = Effort(passes=8, rounds=40, branches=200, landmarks=500)


@dataclass(frozen=True, slots=True)
class JointBudget:
    """For which programs rewrites and shardings are chosen together, and how far that goes.

    nodes: of the largest program.
    fewest: rewrites that there must be to choose from.
    moves: rewrites that are made, the most promising first.
    product: nodes of the largest e-graph of programs times shardings.
    effort: of the extraction.
    """

    nodes: int = 600
    fewest: int = 2
    moves: int = 16
    product: int = 3500
    effort: Effort = EFFORT


BUDGET = JointBudget()


@dataclass(frozen=True, slots=True)
class Move:
    """A rule at a place that stands for all that look alike.

    nodes: of the place, by the classes of their results.
    """

    rule: str
    nodes: frozenset[int]


@dataclass
class Moves:
    """Rewrites of a program, each made by itself."""

    rewrite_search: RewriteSearch
    classes: ValueClasses = field(default_factory=ValueClasses)
    found: list[Move] = field(default_factory=list[Move])
    gone: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def explore(self, draft: Draft) -> None:
        """Makes the moves of a program, the most promising first, if there are some to choose."""
        groups = [members for _, members in self.rewrite_search.first]
        if len(groups) < BUDGET.fewest:
            return
        first = self.classes.add(draft)
        for members in groups[: BUDGET.moves]:
            after, count = apply(draft, members[:1], self.rewrite_search.trial)
            if count:
                self.found.append(Move(members[0].rule, _classes(first, members[0])))
                fresh = self.classes.add(after, len(self.found) - 1)
                self.gone |= first.traced - fresh.traced

    def chain(self, draft: Draft, wanted: set[int]) -> tuple[Draft, tuple[RewriteStep, ...]]:
        """The program after some moves, each at all places that look alike, and the steps."""
        steps: list[RewriteStep] = []
        for number in sorted(wanted):
            move = self.found[number]
            nodes = {self.classes.find(c) for c in move.nodes}
            seen, places = self.classes.add(draft, number), find(draft, [move.rule])
            here = (p for p in places if {self.classes.find(c) for c in _classes(seen, p)} == nodes)
            first = next(here, None)
            if first is None:
                continue  # an earlier move made it needless, or took its place
            kind = first.kind, len(first.prefix)
            alike = [p for p in places if (p.kind, len(p.prefix)) == kind]
            after, count = apply(draft, alike, self.rewrite_search.trial)
            if count:
                steps.append(RewriteStep(move.rule, alike[0].path, count))
                draft = after
        return draft, tuple(steps)


def _classes(seen: ProgramClasses, place: Place) -> frozenset[int]:
    return frozenset(c for n in place.nodes for c in seen.outs[*place.prefix, n])


Planned = Callable[[Draft], Candidate | None]


def searched(rewrite_search: RewriteSearch, draft: Draft, planned: Planned) -> Rewritten | None:
    """The cheapest rewritten program of the search and of the exact choice; None if none pays.

    Args:
        rewrite_search: the search, which has not begun.
        draft: the program as written.
        planned: gives a plan of it for the exact choice to begin with.
    """
    found = rewrite_search.run(draft)
    chosen = chosen_together(rewrite_search, draft, planned)
    if chosen is None or digest(chosen[0].graph) in rewrite_search.seen:
        return found
    after, steps = chosen
    step_s = rewrite_search.price(after)
    least_s = rewrite_search.step_s if found is None else found.step_s
    return Rewritten(after, steps, step_s) if step_s < least_s * (1 - WORTH) else found


def chosen_together(
    rewrite_search: RewriteSearch, draft: Draft, planned: Planned
) -> tuple[Draft, tuple[RewriteStep, ...]] | None:
    """The rewrites of an exact choice of rewrites and shardings, as a chain of steps.

    Args:
        rewrite_search: whose estimate says which rewrites could pay.
        draft: the program as written.
        planned: gives a plan of it on a mesh of one axis.

    Returns:
        None if the program is too large, or if there is nothing to choose or nothing is rewritten.
    """
    if draft.graph.count_nodes() > BUDGET.nodes:
        return None
    moves = Moves(rewrite_search)
    moves.explore(draft)
    plain = planned(draft) if len(moves.found) >= BUDGET.fewest else None
    if plain is None:
        return None
    wanted = _extracted(moves, plain)
    after, steps = moves.chain(draft, wanted) if wanted else (draft, ())
    return (after, steps) if steps else None


def _extracted(moves: Moves, plain: Candidate) -> set[int]:
    """Numbers of the moves whose forms are in the cheapest program."""
    forms = tuple(moves.classes.forms())
    part, cache = (
        Part(moves.classes, forms, moves.gone, plain.decisions.values),
        plain.builder.cache,
    )
    prices = Prices(plain.mesh, cache.compute, cache.reshard)
    if part.count(prices) > BUDGET.product:
        return set()
    found = product_of(part.items, moves.classes.types, prices, part.wish, runs=part.runs)
    if len(found.graph.nodes) > BUDGET.product:
        return set()
    answer = extract(found.graph, "ilp", effort=BUDGET.effort)
    if answer is None or answer.stop == "none":
        return set()
    chosen = [c.item.name for i in answer.chosen if (c := found.choices[i]) and c.item]
    return {forms[k].move for k in chosen if k >= 0 and forms[k].move >= 0}
