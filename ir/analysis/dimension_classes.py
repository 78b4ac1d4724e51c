"""Which dimensions of a program belong together: the batch, the sequence, the experts.

Dimensions that a factor joins are one class. Hand-written plans speak of such classes ("split the
batch"), and so do the baselines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from ..factors import FactorSpec
from ..graph import Literal
from ..table import lookup
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


class Kinds:
    """Which dimensions are of the batch, of the sequence, of the experts.

    Attributes:
        batch: classes of the first dimensions of batch arguments.
        sequence: classes of their second dimensions.
        experts: classes of batch dimensions of products one operand of which is a parameter, cast
            or reshaped.
    """

    def __init__(
        self, classes: Classes, specs: Sequence[FactorSpec], batch: Sequence[int],
        parameters: Sequence[int],
    ) -> None:  # fmt: skip
        """Takes the classes, the factors of every op, and arguments by role (flat values)."""
        self.classes = classes
        flat = classes.flat
        ranked = [(v, flat.values[v].type.rank) for v in batch]
        self.batch = {classes.of_dim(v, 0) for v, rank in ranked if rank > 0}
        self.sequence = {classes.of_dim(v, 1) for v, rank in ranked if rank > 1} - self.batch
        experts = _expert_classes(classes, specs, _weights(flat, parameters))
        self.experts = experts - self.batch - self.sequence
        groups = (("batch", self.batch), ("sequence", self.sequence), ("experts", self.experts))
        self._names = {member: name for name, members in groups for member in members}
        self._named = [self._names.get(member, "") for member in classes.members()]

    def of_dim(self, value: int, dim: int) -> str:
        """batch, sequence, experts or nothing."""
        return self._names.get(self.classes.of_dim(value, dim), "")

    def of_value(self, value: int) -> tuple[str, ...]:
        """The same for all dimensions of a value."""
        return tuple(self._named[slice(*self.classes.dims(value))])

    def of_op(self, op: int) -> tuple[str, ...]:
        """The same for all factors of an op."""
        return tuple(self._named[slice(*self.classes.factors(op))])

    def of_factor(self, op: int, factor: str) -> str:
        """The same for a factor."""
        return self._names.get(self.classes.of_factor(op, factor), "")


def _expert_classes(classes: Classes, specs: Sequence[FactorSpec], weights: set[int]) -> set[int]:
    found: set[int] = set()
    for i, (op, spec) in enumerate(zip(classes.flat.ops, specs, strict=True)):
        if op.node.op == "dot_general" and any(v in weights for v in op.inputs):
            lhs, rhs = ({f for dim in dims for f in dim} for dims in spec.operands)
            out = {f for dim in spec.results[0] for f in dim}
            found.update(classes.of_factor(i, f) for f in lhs & rhs & out)
    return found


def _weights(flat: FlatProgram, parameters: Sequence[int]) -> set[int]:
    """Parameters and values made of parameters alone without arithmetic between them."""
    weights = set(parameters)
    entering = {link.target: link.source for link in flat.links}
    for op in flat.ops:
        for value in op.inputs:
            if isinstance(value, int) and entering.get(value) in weights:
                weights.add(value)
        sources = [v for v in op.inputs if isinstance(v, int)]
        simple = lookup(op.node.op).family in ("elementwise", "layout") and len(sources) == 1
        if simple and sources[0] in weights:
            weights.update(op.outputs)
    return weights
