"""One term of a rule against one value of a program: the recursion of the matcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..term import Term
from .net import Item, Net, Source
from .views import Partial, unify


@dataclass(frozen=True, slots=True)
class Binding:
    """The value that a term stands for, and the dimensions of its axes as far as they are known.

    only_shape: whether the rule reads its shape and not its elements.
    """

    source: Source
    groups: Partial
    only_shape: bool = False


Env = Mapping[Term, Binding]
Found = Iterator[tuple[Partial, Env]]
# (matcher, term, value, its axes as far as known, bindings) -> the last two, with more known
Read = Callable[["Matcher", Term, Source, Partial, Env], Found]


@dataclass(frozen=True, slots=True)
class Matcher:
    """A program, and how the ops of one rule are read off it.

    ranks: axes of each term of the rule.
    moves: whether the rule computes nothing: elements only change their places.
    readers: by op.
    makers: primitives that may make the value of an op; an op that others may make too has none.
    """

    net: Net
    ranks: Mapping[Term, int]
    moves: bool
    readers: Mapping[str, Read]
    makers: Mapping[str, Sequence[str]]

    def maker(self, source: Source, ops: Sequence[str]) -> Item | None:
        """The item that makes a value, if it is of one of some primitives."""
        item = self.net.maker(source)
        return item if item is not None and item.node.op in ops else None

    def same_shape(self, a: Source, b: Source) -> bool:
        return self.net.type_of(a).shape == self.net.type_of(b).shape

    def scalar_of(self, source: Source) -> Source:
        """The scalar that was spread to this value, or the value itself."""
        item = self.net.maker(source)
        while item is not None and item.node.op in ("broadcast_in_dim", "reshape"):
            inner = self.net.type_of(item.inputs[0]).size
            kept = inner == self.net.type_of(source).size
            if inner != 1 and (not kept or item.node.op == "reshape"):
                break
            source, item = item.inputs[0], self.net.maker(item.inputs[0])
        return source

    def may_be(self, term: Term, source: Source, env: Env) -> bool:
        """Whether a primitive of a term's op makes a value: a quick test before `match`."""
        ops = self.makers.get(term.kind)
        return not ops or term in env or self.maker(source, ops) is not None

    def match(self, term: Term, source: Source, groups: Partial | None, env: Env) -> Found:
        """Ways in which a value is the value of a term.

        Args:
            term: of the rule.
            source: the value.
            groups: the value's axes as far as known.
            env: bindings of other terms.

        Returns:
            Its axes, and the bindings with its own.
        """
        rank = self.ranks[term]
        known: Partial = groups if groups is not None else (None,) * rank
        if len(known) != rank:
            return
        held = env.get(term)
        if held is not None:
            both = unify(held.groups, known)
            if both is None or (held.only_shape and not self.same_shape(held.source, source)):
                return
            if held.only_shape or self.net.equal(held.source, source):
                yield both, {**env, term: Binding(source, both)}
        elif not term.kind:
            yield known, {**env, term: Binding(source, known)}
        else:
            for found, more in self.readers[term.kind](self, term, source, known, env):
                yield found, {**more, term: Binding(source, found)}

    def match_operands(
        self, term: Term, operands: Sequence[tuple[Source, Partial]], found: Partial, env: Env
    ) -> Found:
        """Ways in which two values are the operands of a term, whose own axes are `found`."""
        (a, left), (b, right) = operands
        for _, more in self.match(term.args[0], a, left, env):
            for _, last in self.match(term.args[1], b, right, more):
                yield found, last

    def shape_of(self, term: Term, source: Source, groups: Partial, env: Env) -> Found:
        """As `match` for an operand of which only the shape matters, which is that of `source`."""
        held = env.get(term)
        if held is None:
            yield groups, {**env, term: Binding(source, groups, only_shape=True)}
            return
        both = unify(held.groups, groups)
        if both is not None and self.same_shape(held.source, source):
            yield both, {**env, term: replace(held, groups=both)}
