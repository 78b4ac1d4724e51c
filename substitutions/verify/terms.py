"""Elements as expressions of operations on elements of the inputs.

Equal expressions are one number, so that arrays of expressions are arrays of whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from ..effort import LIMITS
from ..numeric.arrays import Array, NotTypedError

ABSENT = 0  # what lies outside of a window: no operand at all

# kind, a key that tells expressions of one kind apart, operands
Node = tuple[str, object, tuple[int, ...]]
Monomial = tuple[int, ...]
Number = int | Fraction
Polynomial = dict[Monomial, Number]


class LongTermError(Exception):
    """An expression has too many terms when written out."""


@dataclass
class Terms:
    """Expressions by number, and the arithmetic of rules on arrays of them.

    `rounded` marks the result of an operation as it is stored.
    """

    nodes: list[Node] = field(default_factory=lambda: [("absent", None, ())])
    _known: dict[Node, int] = field(default_factory=dict[Node, int])
    _polynomials: dict[tuple[int, bool], Polynomial] = field(
        default_factory=dict[tuple[int, bool], Polynomial]
    )
    _loose: dict[int, int] = field(default_factory=dict[int, int])
    _depths: dict[int, Depth] = field(default_factory=dict[int, "Depth"])
    lowest: float = ABSENT

    def node(self, kind: str, what: object, args: Sequence[int]) -> int:
        """The number of an expression.

        Raises:
            NotTypedError: if an operand is the number of a row, which is below 0.
        """
        if any(a < 0 for a in args):
            raise NotTypedError("numbers of rows are computed with")
        node = (kind, what, tuple(args))
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return self._known[node]

    # --- the arithmetic of rules ---------------------------------------------------------------

    def array(self, values: Array) -> Array:
        """Numbers that the rule itself writes."""
        return self._each(self._written_number, values)

    def _written_number(self, value: float) -> int:
        return self.node("number", int(value), ())

    def input(self, name: str, shape: Sequence[int]) -> Array:
        """An array of unknowns."""
        count = int(np.prod(shape))
        found = [self.node("input", (name, k), ()) for k in range(count)]
        return np.asarray(found, np.int64).reshape(shape)

    def add(self, a: Array, b: Array) -> Array:
        return self._pairs(self._sum_of_two, a, b)

    def mul(self, a: Array, b: Array) -> Array:
        return self._pairs(self._product, a, b)

    def total(self, values: Array, axis: tuple[int, ...]) -> Array:
        kept = [d for d in range(values.ndim) if d not in axis]
        shape = [values.shape[d] for d in kept]
        flat = np.transpose(values, (*kept, *axis)).reshape(int(np.prod(shape)), -1)
        return np.asarray([self._total(row) for row in flat.tolist()], np.int64).reshape(shape)

    def largest(self, values: Array, axis: tuple[int, ...]) -> Array:
        kept = [d for d in range(values.ndim) if d not in axis]
        shape = [values.shape[d] for d in kept]
        flat = np.transpose(values, (*kept, *axis)).reshape(int(np.prod(shape)), -1)
        return np.asarray([self._largest(row) for row in flat.tolist()], np.int64).reshape(shape)

    def neg(self, a: Array) -> Array:
        return self._each(self._neg, a)

    def relu(self, a: Array) -> Array:
        return self._each(self._relu, a)

    def function(self, name: str, a: Array) -> Array:
        return self._each(partial(self._called, name), a)

    def cast(self, a: Array) -> Array:
        return self.function("cast", a)

    def _called(self, name: str, x: int) -> int:
        return self.node("function", name, (x,))

    def share(self, parts: int) -> Array:
        return np.asarray(self.node("number", Fraction(1, parts), ()))

    def rounded(self, a: Array, tag: object) -> Array:
        """The result of an operation: values that it computed are stored.

        Args:
            a: the values.
            tag: equal for operations that add up equal operands in the same order.
        """
        return self._each(partial(self._rounded, tag), a)

    def _each(self, fn: Callable[..., int], values: Array) -> Array:
        found = [fn(v) for v in values.reshape(-1).tolist()]
        return np.asarray(found, np.int64).reshape(values.shape)

    def _pairs(self, fn: Callable[[int, int], int], a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        pairs = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
        return np.asarray([fn(x, y) for x, y in pairs], np.int64).reshape(a.shape)

    @property
    def _one(self) -> int:
        return self.node("number", 1, ())

    def _sum_of_two(self, a: int, b: int) -> int:
        if ABSENT in (a, b):
            return a or b
        return self.node("add", None, sorted((a, b)))

    def _product(self, a: int, b: int) -> int:
        if ABSENT in (a, b):
            return ABSENT
        x, y = self.nodes[a], self.nodes[b]
        if x[0] == y[0] == "number":
            return self.node("number", _number(x) * _number(y), ())
        if self._one in (a, b):
            return b if a == self._one else a
        if y[:2] == ("function", "reciprocal"):
            return self.node("div", None, (a, *y[2]))
        return self.node("mul", None, sorted((a, b)))

    def _total(self, row: Iterable[int]) -> int:
        there = sorted(x for x in row if x != ABSENT)
        if not there:
            return self.node("number", 0, ())
        return there[0] if len(there) == 1 else self.node("sum", None, there)

    def _largest(self, row: Iterable[int]) -> int:
        found: set[int] = set()
        for x in row:
            found.update(self.nodes[x][2] if self.nodes[x][0] == "max" else (x,))
        found.discard(ABSENT)
        return found.pop() if len(found) == 1 else self.node("max", None, sorted(found))

    def _neg(self, a: int) -> int:
        return self.nodes[a][2][0] if self.nodes[a][0] == "neg" else self.node("neg", None, (a,))

    def _relu(self, a: int) -> int:
        return a if self.nodes[a][0] == "relu" else self.node("relu", None, (a,))

    def _rounded(self, tag: object, a: int) -> int:
        if a < 0:
            return a  # the number of a row
        kind, _, args = self.nodes[a]
        if kind == "relu":  # in the same operation as a product
            return self._relu(self._rounded(tag, args[0]))
        computed = kind in ("add", "mul", "sum", "function", "div")
        return self.node("rounded", tag, (a,)) if computed else a

    # --- what two expressions have in common ---------------------------------------------------

    def loose(self, a: int) -> int:
        """The expression without an order of additions and multiplications, or roundings."""
        if a not in self._loose:
            kind, what, args = self.nodes[a]
            if kind == "rounded":
                found = self.loose(args[0])
            elif kind in ("add", "sum"):
                found = self.node("+", None, self._flat("+", args))
            elif kind == "mul":
                found = self.node("*", None, self._flat("*", args))
            else:
                found = self.node(kind, what, tuple(map(self.loose, args)))
            self._loose[a] = found
        return self._loose[a]

    def _flat(self, kind: str, args: Sequence[int]) -> list[int]:
        found: list[int] = []
        for x in map(self.loose, args):
            found.extend(self.nodes[x][2] if self.nodes[x][0] == kind else (x,))
        return sorted(found)

    def written_out(self, a: int, absolute: bool = False) -> Polynomial:
        """The expression as a polynomial; `absolute` with all of its terms taken positive.

        Raises:
            LongTermError: if it has too many terms.
        """
        key = a, absolute
        if key not in self._polynomials:
            self._polynomials[key] = self._written_out(a, absolute)
        return self._polynomials[key]

    def _written_out(self, a: int, absolute: bool) -> Polynomial:
        kind, _, args = self.nodes[a]
        if kind == "number":
            value = _number(self.nodes[a])
            return {(): abs(value) if absolute else value} if value else {}
        if kind in ("add", "sum", "+"):
            return _added(self.written_out(x, absolute) for x in args)
        if kind in ("mul", "*"):
            found: Polynomial = {(): 1}
            for x in args:
                found = _multiplied(found, self.written_out(x, absolute))
            return found
        if kind == "rounded":
            return self.written_out(args[0], absolute)
        if kind == "neg":
            sign = 1 if absolute else -1
            return {m: sign * c for m, c in self.written_out(args[0], absolute).items()}
        return {(self._atom(a),): 1}

    def _atom(self, a: int) -> int:
        """A factor that is no sum and no product; relu and maximum of equal values are equal."""
        kind, _, args = self.nodes[a]
        if kind == "relu" and (twice := self._rectified(args[0])) is not None:
            return twice
        if kind in ("relu", "max"):
            inside = (frozenset(self.written_out(x).items()) for x in args)
            return self.node("inside", (kind, frozenset(inside)), ())
        return self.loose(a)

    def _rectified(self, a: int) -> int | None:
        """The factor that an expression is, if it is a relu: its relu is the same."""
        ((monomial, c), *more) = [*self.written_out(a).items(), ((), 0)]
        if c != 1 or len(monomial) != 1 or len(more) > 1:
            return None
        what = self.nodes[monomial[0]][1]
        return monomial[0] if isinstance(what, tuple) and "relu" in what else None

    def stored(self, roots: Iterable[int]) -> set[int]:
        """Everything that is rounded on the way to some values, without the order of sums."""
        found: set[int] = set()
        for a in self._below(roots):
            if self.nodes[a][0] == "rounded":
                found.add(self.loose(a))
        return found

    def functions(self, roots: Iterable[int]) -> set[int]:
        """Functions and quotients on the way to some values, with their operands."""
        return {a for a in self._below(roots) if self.nodes[a][0] in ("div", "function")}

    def fractions(self, roots: Iterable[int]) -> bool:
        """Whether a number that is not whole is used."""
        below = (self.nodes[a] for a in self._below(roots))
        return any(n[0] == "number" and _number(n).denominator != 1 for n in below)

    def _below(self, roots: Iterable[int]) -> set[int]:
        stack, seen = list(roots), set[int]()
        while stack:
            a = stack.pop()
            if a not in seen:
                seen.add(a)
                stack.extend(self.nodes[a][2])
        return seen

    def depth(self, a: int) -> Depth:
        """Roundings on the longest way to a value."""
        if a not in self._depths:
            kind, _, args = self.nodes[a]
            if kind == "sum":  # its products are a part of it
                args = [y for x in args for y in self._factors(x)]
            below = max(map(self.depth, args), default=Depth(0, 0, 0), key=lambda d: d.steps)
            if kind == "sum":
                count = len(self.nodes[a][2])
                below = Depth(below.sums + 1, below.ops, below.steps + count)
            elif kind in ("add", "mul", "div", "function"):
                below = Depth(below.sums, below.ops + 1, below.steps + 1)
            self._depths[a] = below
        return self._depths[a]

    def _factors(self, a: int) -> Sequence[int]:
        kind, _, args = self.nodes[a]
        return args if kind == "mul" else (a,)


class Depth(NamedTuple):
    """Sums, other operations, and all roundings: a sum of n has n, with its products."""

    sums: int
    ops: int
    steps: int


def _number(node: Node) -> Number:
    assert isinstance(node[1], int | Fraction)
    return node[1]


def _added(parts: Iterable[Polynomial]) -> Polynomial:
    total: Polynomial = {}
    for part in parts:
        for monomial, c in part.items():
            total[monomial] = total.get(monomial, 0) + c
    if len(total) > LIMITS.monomials:
        raise LongTermError
    return {m: c for m, c in total.items() if c}


def _multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    if len(a) * len(b) > LIMITS.monomials:
        raise LongTermError
    found: Polynomial = {}
    for x, c in a.items():
        for y, d in b.items():
            monomial = tuple(sorted((*x, *y)))
            found[monomial] = found.get(monomial, 0) + c * d
    return {m: c for m, c in found.items() if c}
