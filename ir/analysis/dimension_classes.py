"""Which dimensions of a program belong together: those that a factor joins are one class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from ..factors import FactorSpec
from ..graph import Literal
from .flat_program import FlatProgram
from .union_find import find

Joint = tuple[int, int, int]  # operand or result, its dimension, number of the factor


class Classes:
    """Union of dimensions and factors over a flat program; a class is a number."""

    def __init__(self, flat: FlatProgram, specs: Sequence[FactorSpec]) -> None:
        self.flat = flat
        ranks = [value.type.rank for value in flat.values]
        self._dim = list(accumulate(ranks, initial=0))  # number of the first dimension of a value
        counts = [len(spec.sizes) for spec in specs]
        self._factor = list(accumulate(counts, initial=self._dim[-1]))  # of the first factor
        known: dict[int, tuple[dict[str, int], list[Joint]]] = {}  # equal ops share one spec
        self._names: list[dict[str, int]] = []
        self.parent = list(range(self._factor[-1]))
        for op, spec, first in zip(flat.ops, specs, self._factor, strict=False):
            if id(spec) not in known:
                known[id(spec)] = _numbered(spec), list(_joints(spec))
            names, joints = known[id(spec)]
            self._names.append(names)
            touched = (*op.inputs, *op.outputs)
            for name, members in spec.joint:
                self._join(first + names[members[0]], first + names[name])
            for position, d, factor in joints:
                value = touched[position]
                if not isinstance(value, Literal):
                    self._join(self._dim[value] + d, first + factor)
        pairs = [(link.source, link.target, link.lift) for link in flat.links]
        pairs += [(outer, port, 1) for outer, port in flat.stacked.items()]
        for outer, inner, lift in pairs:
            for d in range(ranks[inner]):
                self._join(self._dim[outer] + d + lift, self._dim[inner] + d)
        self.parent = _settled(self.parent)

    def _join(self, a: int, b: int) -> None:
        self.parent[find(self.parent, b)] = find(self.parent, a)

    def members(self) -> list[int]:
        """The class of every dimension, then of every factor, by number."""
        return self.parent

    def dims(self, value: int) -> tuple[int, int]:
        """Numbers of the dimensions of a value, from the first to behind the last."""
        return self._dim[value], self._dim[value + 1]

    def factors(self, op: int) -> tuple[int, int]:
        """The same of the factors of an op."""
        return self._factor[op], self._factor[op + 1]

    def of_dim(self, value: int, dim: int) -> int:
        """The class of a dimension."""
        return self.parent[self._dim[value] + dim]

    def of_factor(self, op: int, factor: str) -> int:
        """The class of a factor; -1 for names that are no factor of the op."""
        number = self._names[op].get(factor)
        return -1 if number is None else self.parent[self._factor[op] + number]


def _numbered(spec: FactorSpec) -> dict[str, int]:
    return {name: n for n, (name, _) in enumerate(spec.sizes)}


def _joints(spec: FactorSpec) -> Iterator[Joint]:
    """Which factor every dimension of the operands, then of the results, is of."""
    names = _numbered(spec)
    for position, dims in enumerate((*spec.operands, *spec.results)):
        for d, dim in enumerate(dims):
            if dim:  # of a compound only the major factor, which is split first
                yield position, d, names[dim[0]]


def _settled(parent: list[int]) -> list[int]:
    """Who stands for every member's set, once all are joined."""
    found = np.array(parent, dtype=np.intp)
    while not np.array_equal(further := found[found], found):
        found = further
    return found.tolist()
