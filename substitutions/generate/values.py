"""Values of terms in a prime field, under all exchanges of inputs at once.

Row i of a value is what the term is with inputs exchanged by renaming i. So the fingerprints of
a term are also those of all terms that differ from it by names only.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..graph import Op
from ..numeric.arrays import Array, Field, NotTypedError
from ..numeric.devices import Cut, Run, Tensor, spread, tensor
from ..ops import OPS
from ..term import Term
from ..verify.concrete import apply
from .limits import LIMITS
from .sets import OpSet

SALT = 1_000_003
SPREAD = 0x9E3779B97F4A7C15  # spreads sets of inputs over 64 bits


@dataclass(frozen=True, slots=True)
class Value:
    """Data [renaming, replica, dims...], with degrees and joints as in each row."""

    data: Array
    degrees: tuple[int, ...]
    cuts: tuple[Cut | None, ...]


@dataclass
class Renamings:
    """Exchanges of inputs of one shape: number 0 leaves all, `after[i, j]` is i after j."""

    chosen: OpSet
    all: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    after: list[list[int]] = field(default_factory=list[list[int]])
    inverse: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        kinds: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for i, given in enumerate(self.chosen.inputs):
            kinds.setdefault((given.shape, given.replicas), []).append(i)
        groups = list(kinds.values())
        for choice in itertools.product(*map(itertools.permutations, groups)):
            found = list(range(len(self.chosen.inputs)))
            for group, order in zip(groups, choice, strict=True):
                for i, j in zip(group, order, strict=True):
                    found[i] = j
            self.all.append(tuple(found))
        self._number = {each: i for i, each in enumerate(self.all)}
        self._place = {given.name: i for i, given in enumerate(self.chosen.inputs)}
        self._groups = {i: group for group in groups for i in group}
        self._canonical: dict[tuple[int, ...], int] = {}
        self._orders: dict[Term, tuple[int, ...]] = {}
        self.after = [[self._number[tuple(a[i] for i in b)] for b in self.all] for a in self.all]
        self.inverse = [row.index(0) for row in self.after]

    def order(self, term: Term) -> tuple[int, ...]:
        """Numbers of a term's inputs, in the order of their first use."""
        if not term.kind:
            return (self._place[term.name],)
        known = self._orders.get(term)
        if known is None:
            known = tuple(dict.fromkeys(i for arg in term.args for i in self.order(arg)))
            if len(self._orders) >= LIMITS.cached:
                self._orders.clear()
            self._orders[term] = known
        return known

    def ordered(self, order: Sequence[int]) -> bool:
        """Whether inputs of each shape are first used in their own order."""
        return self.to_canonical(tuple(order)) == 0

    def to_canonical(self, order: tuple[int, ...]) -> int:
        """The renaming that gives inputs, used in this order, their own order."""
        if order not in self._canonical:
            found: dict[int, int] = {}
            for i in order:
                free = [j for j in self._groups[i] if j not in found.values()]
                found[i] = free[0]
            for i, group in self._groups.items():
                if i not in found:  # those not used keep their name where they can
                    free = [j for j in group if j not in found.values()]
                    found[i] = i if i in free else free[0]
            # An input that is not used may have had to make way; only used ones matter.
            number = self._number[tuple(found[i] for i in range(len(found)))]
            if all(found[i] == i for i in order):
                number = 0
            self._canonical[order] = number
        return self._canonical[order]

    def renamed(self, term: Term, number: int) -> Term:
        """The term with inputs renamed."""
        if number == 0:
            return term
        if not term.kind:
            return Term("", self.chosen.inputs[self.all[number][self._place[term.name]]].name)
        args = tuple(self.renamed(arg, number) for arg in term.args)
        return Term(term.kind, "", term.params, args, term.part)


def input_values(chosen: OpSet, renamings: Renamings) -> dict[str, Value]:
    """Random values of the inputs."""
    plain: list[Tensor] = []
    for i, given in enumerate(chosen.inputs):
        rng = np.random.default_rng([SALT, i])
        shape = (given.replicas, *given.shape)
        data = Field(SALT).array(rng.integers(0, 2**31 - 1, size=shape))
        plain.append(tensor(data, (given.replicas,) + (1,) * len(given.shape)))
    return {
        given.name: Value(
            np.stack([plain[each[i]].whole for each in renamings.all]),
            plain[i].degrees,
            plain[i].cuts,
        )
        for i, given in enumerate(chosen.inputs)
    }


def exchanged(value: Value, renamings: Renamings, number: int) -> Value:
    """The value of a term after its inputs are renamed."""
    if number == 0:
        return value
    return Value(value.data[[row[number] for row in renamings.after]], value.degrees, value.cuts)


def applied(op: Op, args: Sequence[Value], *, parallel: bool) -> tuple[Value, ...]:
    """The outputs of an op; none if it does not take these operands."""
    run = Run(Field(SALT), parallel)
    record = OPS[op.kind]
    tensors = len(args) - record.scalars
    if [arg.data.ndim == 2 for arg in args] != [i >= tensors for i in range(len(args))]:
        return ()  # laws of numbers are not searched for
    try:
        if record.replicas_apart and not parallel:
            rows = len(args[0].data)
            given = [spread(a.data[:, 0], (rows, *a.degrees[1:]), a.cuts) for a in args]
            made = apply(op, given, run)
            return tuple(Value(t.whole[:, None], (1, *t.degrees[1:]), t.cuts) for t in made)
        every = [
            apply(op, [spread(arg.data[i], arg.degrees, arg.cuts) for arg in args], run)
            for i in range(len(args[0].data))
        ]
    except (NotTypedError, ValueError, IndexError):
        return ()
    return tuple(
        Value(np.stack([t.whole for t in part]), part[0].degrees, part[0].cuts)
        for part in zip(*every, strict=True)
    )


_weights: dict[int, Array] = {}


def fingerprints(value: Value, renamings: Renamings, order: Sequence[int]) -> tuple[int, ...]:
    """64 bits for each renaming: of the values, shape, degrees, and the set of inputs (`order`).

    Terms over other inputs are never the two sides of a rule, even where their values are equal.
    """
    rows = value.data.reshape(len(value.data), -1).astype(np.uint64)
    size = rows.shape[1]
    if size not in _weights:
        drawn = np.random.default_rng([SALT, size]).integers(0, 2**64, size, dtype=np.uint64)
        _weights[size] = drawn | np.uint64(1)
    text = f"{value.data.shape[1:]} {value.degrees}".encode()
    head = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    mixed = (rows ^ (rows << np.uint64(32))) @ _weights[size]
    used = [sum(1 << each[i] for i in order) for each in renamings.all]
    mixed ^= np.array(used, dtype=np.uint64) * np.uint64(SPREAD)
    return tuple((mixed ^ np.uint64(head)).tolist())
