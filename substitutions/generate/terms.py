"""All terms of a size over the classes of smaller ones, names of inputs aside.

Only one term of each class is built upon, and only terms whose inputs are first used in their own
order are made: the others are renamings of them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..graph import Op, Ref
from ..ops import OPS
from ..term import Term
from .classes import Classes, Orbit
from .sets import OpSet, Params
from .values import Renamings, Value, applied, exchanged

Key = tuple[str, Params, tuple[Term, ...]]


@dataclass(frozen=True, slots=True)
class Made:
    """The least term of a class, with the ops that it needs and the order of its inputs."""

    term: Term
    orbit: Orbit
    renaming: int
    ops: frozenset[int]
    order: tuple[int, ...]

    def value(self, renamings: Renamings) -> Value:
        if self.orbit.value is None:
            raise AssertionError("values of orbits that are built upon are kept")
        return exchanged(self.orbit.value, renamings, self.renaming)


@dataclass
class _Level:
    """Least terms of classes of one size, by the order of their inputs and by their ops."""

    all: list[Made] = field(default_factory=list[Made])
    by_order: dict[tuple[int, ...], list[Made]] = field(
        default_factory=lambda: defaultdict[tuple[int, ...], list[Made]](list)
    )
    by_op: dict[int, list[Made]] = field(default_factory=lambda: defaultdict[int, list[Made]](list))

    def add(self, made: Made) -> None:
        self.all.append(made)
        self.by_order[made.order].append(made)
        for op in made.ops:
            self.by_op[op].append(made)


@dataclass
class Enumeration:
    """Terms by size; a size is made once all classes of the sizes below are known."""

    chosen: OpSet
    classes: Classes
    _levels: list[_Level] = field(default_factory=list[_Level])
    _ops: dict[Key, int] = field(default_factory=dict[Key, int])

    def close(self, orbits: Iterable[Orbit]) -> None:
        """Takes the orbits of the next size: all their renamings are built upon."""
        level = _Level()
        renamings = self.classes.renamings
        for orbit in orbits:
            seen: set[int] = set()
            for i, found in enumerate(orbit.prints):
                if found in seen:
                    continue
                seen.add(found)
                term = self.classes.least(orbit.class_of(i))
                ops = frozenset(self._parts(term))
                level.add(Made(term, orbit, i, ops, renamings.order(term)))
        self._levels.append(level)

    def _parts(self, term: Term) -> Iterator[int]:
        if term.kind:
            params = tuple((key, int(value)) for key, value in term.params)
            yield self._number((term.kind, params, term.args))
            for arg in term.args:
                yield from self._parts(arg)

    def _number(self, key: Key) -> int:
        return self._ops.setdefault(key, len(self._ops))

    def terms(self) -> Iterator[tuple[Term, Value]]:
        """Terms of exactly as many ops as there are closed levels, in a fixed order.

        Those of most inputs come first, so that general rules are found before their instances.
        """
        size = len(self._levels)
        for inputs in range(len(self.chosen.inputs), 0, -1):
            for kind, params in self.chosen.ops:
                yield from self._of(kind, params, size, inputs)

    def _of(
        self, kind: str, params: Params, size: int, inputs: int
    ) -> Iterator[tuple[Term, Value]]:
        """Terms of one op at the root, over `inputs` different inputs."""
        arity = OPS[kind].operands[0]
        op = Op(kind, tuple(Ref(-1, 0, str(i)) for i in range(arity)), params)
        written = tuple((key, str(value)) for key, value in params)
        for args in self._operands(size, arity):
            if len({i for arg in args for i in arg.order}) != inputs:
                continue
            terms = tuple(arg.term for arg in args)
            needed = frozenset[int]().union(*(arg.ops for arg in args))
            needed |= {self._number((kind, params, terms))}
            if len(needed) != size:
                continue
            values = [arg.value(self.classes.renamings) for arg in args]
            for part, value in enumerate(applied(op, values, parallel=self.chosen.parallel)):
                yield Term(kind, "", written, terms, part), value

    def _operands(self, size: int, arity: int) -> Iterator[tuple[Made, ...]]:
        """Operands that may need `size` - 1 ops in all, inputs in their own order."""
        ordered = self.classes.renamings.ordered
        if arity == 1:
            yield from ((made,) for made in self._levels[size - 1].all if ordered(made.order))
            return
        for i, j in itertools.product(range(size), repeat=2):
            if i + j < size - 1:
                continue
            for first in self._levels[i].all:
                if not ordered(first.order):
                    continue
                if i + j == size - 1:
                    seconds = self._continuing(first, self._levels[j])
                else:  # some ops are needed by both
                    near = (made for op in sorted(first.ops) for made in self._levels[j].by_op[op])
                    seconds = (
                        made
                        for made in {id(made): made for made in near}.values()
                        if len(first.ops | made.ops) < size and self._continues(first, made.order)
                    )
                yield from ((first, second) for second in seconds)

    def _continues(self, first: Made, order: tuple[int, ...]) -> bool:
        both = tuple(dict.fromkeys((*first.order, *order)))
        return self.classes.renamings.ordered(both)

    def _continuing(self, first: Made, level: _Level) -> Iterator[Made]:
        for order, group in level.by_order.items():
            if self._continues(first, order):
                yield from group
