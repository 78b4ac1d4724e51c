"""Whether two terms are equal by rules found before: rewriting, with equal parts replaced freely.

A step applies a rule at the root, or at a part that no class is known of; parts are matched by any
term of their class, and the result is normalised. Rules are used for tensors of any rank.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..term import Term
from .classes import Class, Classes
from .limits import LIMITS

Head = tuple[str, tuple[tuple[str, str], ...], int]
Bound = Mapping[str, Term]


def _head(term: Term) -> Head:
    return term.kind, term.params, term.part


@dataclass
class Rewriter:
    """Rules found so far, in the directions in which they hold without a condition."""

    classes: Classes
    _ways: dict[Head, list[tuple[Term, Term]]] = field(
        default_factory=lambda: defaultdict[Head, list[tuple[Term, Term]]](list)
    )
    _conditional: dict[Head, list[tuple[Term, Term]]] = field(
        default_factory=lambda: defaultdict[Head, list[tuple[Term, Term]]](list)
    )

    def add(self, left: Term, right: Term, ways: str) -> None:
        """A rule; `ways` has > and < where it holds without a condition, from left and right."""
        for way, source, target in ((">", left, right), ("<", right, left)):
            if source.kind:
                table = self._ways if way in ways else self._conditional
                table[_head(source)].append((source, target))

    def equal(self, term: Term, goal: Term, goal_class: Class | None) -> bool:
        """Whether rules make a term the goal, or of its class.

        Args:
            term: with normal arguments.
            goal: with normal arguments.
            goal_class: of the goal, if it is known.
        """
        if self._is(term, goal, goal_class):
            return True
        for found in self._at_root(term, self._conditional):
            if self._is(found, goal, goal_class):
                return True
        reached = {term: None}
        last = [term]
        for _ in range(LIMITS.steps):
            fresh: list[Term] = []
            for each in last:
                for found in self._steps(each):
                    if self._is(found, goal, goal_class):
                        return True
                    if found not in reached and len(reached) < LIMITS.reached:
                        reached[found] = None
                        fresh.append(found)
            last = fresh
        return self._back(goal, reached)

    def _back(self, goal: Term, reached: Mapping[Term, None]) -> bool:
        """Whether one step from the goal, or from a term equal to it, meets what was reached."""
        for member in self.classes.members(goal):
            for found in itertools.chain(
                self._at_root(member, self._ways), self._at_root(member, self._conditional)
            ):
                if found in reached:
                    return True
        return False

    def _is(self, term: Term, goal: Term, goal_class: Class | None) -> bool:
        if term == goal:
            return True
        return goal_class is not None and self.classes.class_of(term) == goal_class

    def _steps(self, term: Term) -> Iterator[Term]:
        yield from self._at_root(term, self._ways)
        for i, arg in enumerate(term.args):
            if arg.kind and self.classes.class_of(arg) is None:
                for found in self._steps(arg):
                    args = (*term.args[:i], found, *term.args[i + 1 :])
                    yield self.classes.normal(Term(term.kind, "", term.params, args, term.part))

    def _at_root(self, term: Term, table: Mapping[Head, list[tuple[Term, Term]]]) -> Iterator[Term]:
        for source, target in table.get(_head(term), ()):
            for bound in self._matches(source, term, {}, top=True):
                yield self.classes.normal(_filled(target, bound))

    def _matches(self, pattern: Term, term: Term, bound: Bound, *, top: bool) -> Iterator[Bound]:
        if not pattern.kind:
            if pattern.name not in bound:
                yield {**bound, pattern.name: term}
            elif bound[pattern.name] == term:
                yield bound
            return
        for each in [term] if top or not term.kind else self.classes.members(term):
            if _head(each) == _head(pattern) and len(each.args) == len(pattern.args):
                yield from self._match_all(pattern.args, each.args, bound)

    def _match_all(
        self, patterns: tuple[Term, ...], terms: tuple[Term, ...], bound: Bound
    ) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        for found in self._matches(patterns[0], terms[0], bound, top=False):
            yield from self._match_all(patterns[1:], terms[1:], found)


def _filled(pattern: Term, bound: Bound) -> Term:
    if not pattern.kind:
        return bound[pattern.name]
    args = tuple(_filled(arg, bound) for arg in pattern.args)
    return Term(pattern.kind, "", pattern.params, args, pattern.part)
