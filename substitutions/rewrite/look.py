"""One term against one value: the recursion of the matcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..text import Term
from .net import Net, Source
from .pattern import Pattern
from .views import Groups as Groups
from .views import Partial as Partial
from .views import rank_of, unify


@dataclass(frozen=True, slots=True)
class Seen:
    """What a term stands for so far."""

    source: Source
    groups: Partial
    only_shape: bool = False


Env = Mapping[Term, Seen]
Found = Iterator[tuple[Partial, Env]]
# (look, term, value, what is known of its axes, what terms stand for) -> the same, knowing more
Reader = Callable[["Look", Term, Source, Partial, Env], Found]


@dataclass(frozen=True, slots=True)
class Look:
    """Where to look, and for what.

    readers: how each op of the rules is read off the program.
    makers: primitives that may make the value of an op of the rules; none if any may.
    """

    net: Net
    pattern: Pattern
    readers: Mapping[str, Reader]
    makers: Mapping[str, Sequence[str]]

    def may_be(self, term: Term, source: Source, env: Env) -> bool:
        """Whether a value is made by one of the ops of a term: a quick test before `match`."""
        ops = self.makers.get(term.kind)
        if not ops or term in env:
            return True
        item = self.net.maker(source)
        return item is not None and item.node.op in ops

    def match(self, term: Term, source: Source, groups: Partial | None, env: Env) -> Found:
        """Ways in which a value is what a term says.

        Args:
            term: of the rule.
            source: the value.
            groups: what is known of the value's axes.
            env: what terms stand for.

        Returns:
            What is known of its axes then, and what terms stand for.
        """
        rank = rank_of(term, self.pattern.ranks)
        known: Partial = groups if groups is not None else (None,) * rank
        if len(known) != rank:
            return
        held = env.get(term)
        if held is not None:
            both = unify(held.groups, known)
            if both is None:
                return
            if (
                held.only_shape
                and self.net.type_of(held.source).shape != self.net.type_of(source).shape
            ):
                return
            if held.only_shape or self.net.equal(held.source, source):
                yield both, {**env, term: Seen(source, both)}
        elif not term.kind:
            yield known, {**env, term: Seen(source, known)}
        else:
            for found, more in self.readers[term.kind](self, term, source, known, env):
                yield found, {**more, term: Seen(source, found)}

    def shape_of(self, term: Term, source: Source, groups: Partial, env: Env) -> Found:
        """As `match` for an operand that only gives its shape, which `source` has too."""
        held = env.get(term)
        if held is None:
            yield groups, {**env, term: Seen(source, groups, only_shape=True)}
            return
        both = unify(held.groups, groups)
        same = self.net.type_of(held.source).shape == self.net.type_of(source).shape
        if both is not None and same:
            yield both, {**env, term: replace(held, groups=both)}
