"""The right side of a rule as nodes of a program; what every op's `write` is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ir import Node, TensorType

from ..term import Term
from .net import Item, Net, Source
from .nodes import reshaped, transposed
from .views import Cut, Groups, View, sizes

Cuts = tuple[tuple[Cut, ...], ...]  # for every axis where its parts meet, the last first


class NoFitError(Exception):
    """The right side cannot be written here, so the rule is not applied."""


@dataclass(frozen=True, slots=True)
class Built:
    """A value that was written, as a view."""

    source: Source
    groups: Groups
    cuts: Cuts

    @staticmethod
    def of(view: View) -> Built:
        """A value of the program, which nothing was joined into."""
        return Built(view.source, view.groups, ((),) * len(view.groups))


@dataclass
class Writer:
    """Writes terms of one instance of a rule into a net.

    views: what each variable and each output of the rule stands for.
    items: nodes that the left side of the rule is.
    writers: by op.
    swapped: whether products are written with their factors exchanged, transposed, as all those
        of the left side are. Libraries are much slower where a small factor comes second,
        transposed.
    may_stack: whether parts of equal shape may be joined along a new dimension.
    moves: whether the rule computes nothing: elements only change their places.
    """

    net: Net
    views: Mapping[Term, View]
    items: Sequence[Item]
    writers: Mapping[str, Write]
    swapped: bool
    may_stack: bool
    moves: bool
    done: dict[Term, Built] = field(default_factory=dict[Term, Built])

    def type_of(self, x: Built) -> TensorType:
        return self.net.type_of(x.source)

    def sizes(self, x: Built | View, axis: int) -> tuple[int, ...]:
        """Lengths of the dimensions of an axis."""
        return sizes(x.groups[axis], self.net.type_of(x.source))

    def write(self, term: Term) -> Built:
        """The value of a term.

        Raises:
            NoFitError: if it cannot be written.
        """
        if term not in self.done:
            if term.kind:
                self.done[term] = self.writers[term.kind](self, term)
            else:
                self.done[term] = Built.of(self.views[term])
        return self.done[term]

    def shape_of(self, term: Term) -> Built:
        """A value of which only the shape matters: one of the program where there is one."""
        view = self.views.get(term)
        return Built.of(view) if view else self.write(term)

    def sample(self, op: str) -> Item:
        """A node of the left side that a new one takes its manner from; all must be alike.

        Raises:
            NoFitError: if there is none, or they differ.
        """
        found = [item for item in self.items if item.node.op == op]
        if len({_manner(item.node) for item in found}) != 1:
            raise NoFitError
        return found[0]

    def equal_sizes(self, x: Built | View, a: int, y: Built | View, b: int) -> None:
        """Raises NoFitError where axis `a` of x and axis `b` of y have other dimensions."""
        if self.sizes(x, a) != self.sizes(y, b):
            raise NoFitError

    def ordered(self, x: Built, order: Sequence[int]) -> Source:
        """A value with dimensions in an order; those in no group, of size one, come first."""
        loose = [d for d in range(self.type_of(x).rank) if d not in order]
        return transposed(self.net, x.source, (*loose, *order))

    def aligned(self, x: Built, to: Built) -> Source:
        """A value with its dimensions in the order of those of `to`."""
        for axis in range(len(to.groups)):
            self.equal_sizes(x, axis, to, axis)
        place = {d: (axis, k) for axis, g in enumerate(to.groups) for k, d in enumerate(g)}
        rank = self.type_of(to).rank
        order = [x.groups[place[d][0]][place[d][1]] for d in range(rank) if d in place]
        return reshaped(self.net, self.ordered(x, order), self.type_of(to).shape)

    def laid(self, x: Built, lead: Sequence[int] = ()) -> Source:
        """A value with its axes in order; in front of axis k a new dimension if lead[k]."""
        shape: list[int] = []
        for axis in range(len(x.groups)):
            shape += [1] * (lead[axis] if lead else 0) + list(self.sizes(x, axis))
        order = [d for group in x.groups for d in group]
        return reshaped(self.net, self.ordered(x, order), shape)

    def settled(self, x: Built) -> Built:
        """A value whose dimensions lie in the order of its axes."""
        return Built(self.laid(x), in_order([len(group) for group in x.groups]), x.cuts)

    def as_root(self, built: Built, root: View) -> Source:
        """What was written, with the dimensions of the output that it replaces.

        Raises:
            NoFitError: if they do not fit.
        """
        wanted = self.net.type_of(root.source)
        if len(built.groups) != len(root.groups):
            raise NoFitError
        for axis in range(len(root.groups)):
            self.equal_sizes(built, axis, root, axis)
        places = sorted((d, axis, k) for axis, g in enumerate(root.groups) for k, d in enumerate(g))
        order = [built.groups[axis][k] for _, axis, k in places]
        found = reshaped(self.net, self.ordered(built, order), wanted.shape)
        if self.net.type_of(found) != wanted:
            raise NoFitError
        return found


Write = Callable[[Writer, Term], Built]


def in_order(counts: Sequence[int]) -> Groups:
    """Groups of these numbers of dimensions, one after the other."""
    starts = [sum(counts[:k]) for k in range(len(counts))]
    return tuple(tuple(range(s, s + n)) for s, n in zip(starts, counts, strict=True))


def _manner(node: Node) -> object:
    """What of a product, convolution or lookup its operands do not say."""
    own = ("dimension_numbers", "slice_sizes", "indices_are_sorted", "unique_indices")
    return tuple((k, repr(v)) for k, v in node.attrs if k not in own)
