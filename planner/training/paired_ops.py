"""One op of a loss traced at two batch sizes, with the shares of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ir import Literal, Node, TensorType
from ir.trace import Binding

from .edits import SHARE, Change, Edits, Place, Value, body_name
from .shares import SAME, Share, at, joined, mixed

# Attributes implied by the shapes of the results.
SHAPES = frozenset({"limit_indices", "new_sizes", "shape", "sizes", "slice_sizes"})
HIGHEST_POWER = 3
# Ops inside which nothing may change; custom derivatives are nested in one another.
_BOUND, _DERIVED = ("call_hi", "while"), "custom"
INSIDE = "inside a while loop or a function with a derivative of its own"


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Sizes of the two traces: `batch` examples in the first, `ratio` times fewer in the second.

    edits: changes that make the second a part of the first; None to derive a reduction.
    drawn: ops that draw random numbers for all examples together.
    """

    batch: int
    ratio: int
    edits: Edits | None = None
    drawn: list[str] = field(default_factory=list[str])

    def power(self, large: object, small: object) -> int | None:
        """The p of a number that is c B^p; None if there is none."""
        if large == small or (_is_nan(large) and _is_nan(small)):
            return 0
        if not isinstance(large, int | float) or not isinstance(small, int | float) or not small:
            return None
        for p in range(-HIGHEST_POWER, HIGHEST_POWER + 1):
            if p and math.isclose(large, small * float(self.ratio) ** p, rel_tol=1e-6):
                return p
        return None


def _is_nan(value: object) -> bool:
    return isinstance(value, float | complex) and value != value


@dataclass(frozen=True, slots=True)
class Known:
    """Knowledge of a value: its share, whether it depends on parameters, and its maker."""

    share: Share
    fixed: bool = False
    home: Value | None = None


def movable(place: Place) -> bool:
    """Whether numbers and draws may change there."""
    names = [name for name in place if isinstance(name, str)]
    derived = [name for name in names if name.startswith(_DERIVED)]
    return len(derived) < 2 and not any(name.startswith(_BOUND) for name in names)


def free(place: Place) -> bool:
    """Whether values made there may be computed beforehand or after all parts."""
    names = [name for name in place if isinstance(name, str)]
    return not any(name.startswith((*_BOUND, _DERIVED)) for name in names)


@dataclass(frozen=True)
class Pair:
    """One op at both sizes.

    large, small: the op at each size.
    operands: knowledge of the operands; shares: their shares, with numbers of the batch size.
    walk: (number of a body, knowledge of its inputs) -> knowledge of its outputs.
    """

    a: Node
    b: Node
    large: Binding
    small: Binding
    types: tuple[TensorType, ...]
    place: Place
    lockstep: Lockstep
    operands: tuple[Known, ...]
    shares: tuple[Share, ...]
    walk: Callable[[Pair, int, Sequence[Known]], tuple[Known, ...]]

    def operand(self, k: int) -> Share:
        """Share of an operand; a number of the batch size becomes that of the whole batch."""
        share, edits = self.shares[k], self.lockstep.edits
        x, y = self.a.inputs[k], self.b.inputs[k]
        if edits is None or not isinstance(x, Literal) or not isinstance(y, Literal):
            return share
        if x.value == y.value or share == SAME or isinstance(x.value, complex):
            return share
        if not movable(self.place):
            return mixed(f"{at(self.a)} reads the batch size, {INSIDE}")
        edits.operands[self.place, k] = Change("number", number_of(x))
        return SAME

    def alike(self) -> bool:
        """Whether both are the same op, except for attributes that follow from shapes."""
        a, b = self.a.attrs, self.b.attrs
        # written out, so that NaN, as a value to fill with, is equal to itself
        odd = [k for (k, x), (_, y) in zip(a, b, strict=False) if repr(x) != repr(y)]
        there = self.lockstep.edits is None or self.large.path == self.small.path
        return len(a) == len(b) and set(odd) <= SHAPES and there

    @property
    def fixed(self) -> bool:
        """Whether the batch alone decides the results."""
        return all(known.fixed for known in self.operands)

    def mixed(self, what: str) -> tuple[Share, ...]:
        """Shares of kind `mixed` for all results."""
        return (mixed(f"{at(self.a)} {what}"),) * len(self.a.outputs)

    def inside(self, number: int) -> Place:
        """The place of a body."""
        return (*self.place, body_name(self.a.op, number))

    def body(self, number: int) -> Place:
        """The place of a body, without notes."""
        if self.lockstep.edits is not None:
            self.lockstep.edits.forget(self.inside(number))
        return self.inside(number)

    def body_of(self, number: int, shares: Sequence[Share]) -> tuple[Share, ...]:
        """Shares of the outputs of a body."""
        found = self.walk(self, number, [Known(share) for share in shares])
        return tuple(known.share for known in found)

    def joined(self, first: Sequence[Share], second: Sequence[Share]) -> tuple[Share, ...]:
        """The narrowest shares that hold for both."""
        exact = self.lockstep.edits is not None
        pairs = zip(first, second, strict=True)
        return tuple(joined(a, b, self.a, exact=exact) for a, b in pairs)

    def shared_out(self, values: Sequence[Value], before: Sequence[Share], after: Share) -> Share:
        """The share; if it is a sum, notes that operands of kind `same` are divided among parts."""
        edits = self.lockstep.edits
        if edits is None or after.kind != "total":
            return after
        for (place, k), share in zip(values, before, strict=True):
            if share.kind == "same" and not movable(place):
                return mixed(f"{at(self.a)} adds what is no sum over examples, {INSIDE}")
            if share.kind == "same":
                notes = edits.operands if place == self.place else edits.ends
                notes[place, k] = SHARE
        return after


def number_of(x: Literal) -> float:
    """The value of a literal that is a real number."""
    assert isinstance(x.value, bool | int | float)
    return x.value
