"""Which values a compiler writes anew in another order of dimensions.

A product writes its result in the order of its dimensions, and a transpose only renames them. What
is computed of it element by element has the same order in memory, until two values meet whose
orders differ. Then the later one is transposed in memory where it was made, together with what is
computed of it alone, so that for instance a conversion to float32 is stored as such:

    scores = q @ k                     in memory  b k q r
    probs  = f(scores.transpose(...))             b k q r, though its dimensions are b r q k
    wide   = (d_out @ v).astype(f32)              b r q k: stored again, as b k q r, to meet probs

Source: layout assignment and transpose fusions of XLA's GPU compiler, read off its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ir import lookup
from ir.analysis import FlatOp, FlatProgram, flat_type

Order = tuple[int, ...]  # dimensions longer than one, slowest first
ROUNDS = 8  # a conflict that is settled may show another one
_NONE = list[int](), list[int]()


@dataclass
class _Orders:
    """Known memory orders of values, and the op that set each."""

    flat: FlatProgram
    free: Sequence[bool]
    turned: dict[int, Order]
    known: dict[int, tuple[Order, int]] = field(default_factory=dict[int, tuple[Order, int]])

    def __post_init__(self) -> None:
        self.family = [lookup(op.node.op).family for op in self.flat.ops]

    def plain(self, v: int) -> Order:
        return tuple(d for d, size in enumerate(self.flat.values[v].type.shape) if size > 1)

    def run(self) -> bool:
        """Goes through the program; says whether values were found whose order does not fit."""
        before = len(self.turned)
        self.known = {v: (self.plain(v), -1) for v in self.flat.inputs}
        for i, op in enumerate(self.flat.ops):
            if not op.outputs or self.free[op.outputs[0]]:
                continue
            laid = self._order(op, i)
            if laid is None:
                continue
            shape = self.flat.values[op.outputs[0]].type.shape
            for v in op.outputs:
                same = self.flat.values[v].type.shape == shape
                self.known[v] = laid if same else (self.plain(v), i)
                if v in self.turned:
                    self.known[v] = self.turned[v], laid[1]
        return len(self.turned) > before

    def _order(self, op: FlatOp, i: int) -> tuple[Order, int] | None:
        family = self.family[i]
        source = op.inputs[0] if op.inputs else None
        known = self.known.get(source) if isinstance(source, int) else None
        if family == "elementwise":
            return self._met(op)
        if family == "reduction" and op.node.has_attr("axes"):
            return None if known is None else (self._reduced(op, known[0]), known[1])
        if op.node.op == "transpose":
            return None if known is None else (self._transposed(op, known[0]), known[1])
        if op.node.op == "reshape":
            return None if known is None else (self._reshaped(op, known[0]), known[1])
        return None if family in ("layout", "random") else (self.plain(op.outputs[0]), i)

    def _alike(self, op: FlatOp) -> list[int]:
        """Operands of the shape of the result whose orders are known."""
        shape = self.flat.values[op.outputs[0]].type.shape
        return [
            v for v in op.reads
            if v in self.known and self.flat.values[v].type.shape == shape and not self.free[v]
        ]  # fmt: skip

    def _met(self, op: FlatOp) -> tuple[Order, int] | None:
        """The order that was there first; an operand that differs from it is turned."""
        alike = self._alike(op)
        if not alike:
            return None
        first = min(alike, key=lambda v: self.known[v][1])
        order = self.known[first][0]
        for v in alike:
            if self.known[v][0] != order:
                self.turned.setdefault(self._stored_as(v), order)
        return self.known[first]

    def _stored_as(self, v: int) -> int:
        """The value of a chain that is transposed in memory: as far back, then as far on."""
        while (made := self.flat.made_by(v)) and lookup(made.node.op).family == "elementwise":
            alike = self._alike(made)
            if len(alike) != 1:
                break
            v = alike[0]
        while len(read := self.flat.readers.get(v, [])) == 1:
            (op,) = read
            if lookup(op.node.op).family != "elementwise" or self._alike(op) != [v]:
                break
            v = op.outputs[0]
        return v

    def _transposed(self, op: FlatOp, order: Order) -> Order:
        permutation, source = _numbers(op, "permutation"), op.inputs[0]
        assert isinstance(source, int)
        if self._swaps_sides(source, permutation):
            return self.plain(op.outputs[0])
        place = {d: i for i, d in enumerate(permutation)}
        return tuple(place[d] for d in order)

    def _swaps_sides(self, source: int, permutation: Order) -> bool:
        """Whether a product is written with its two sides swapped, which costs nothing."""
        made = self.flat.made_by(source)
        if made is None or made.node.op != "dot_general" or len(self.flat.readers[source]) > 1:
            return False
        dims = made.node.attr("dimension_numbers")
        assert isinstance(dims, tuple)
        (contracted, _), (batch, _) = dims  # type: ignore[misc]
        rank = len(permutation)
        head = len(batch)  # type: ignore[arg-type]
        middle = flat_type(self.flat, made.inputs[0]).rank - len(contracted)  # type: ignore[arg-type]
        return permutation == (*range(head), *range(middle, rank), *range(head, middle))

    def _reduced(self, op: FlatOp, order: Order) -> Order:
        axes, source = _numbers(op, "axes"), op.inputs[0]
        assert isinstance(source, int)
        left = [d for d in range(self.flat.values[source].type.rank) if d not in axes]
        return tuple(left.index(d) for d in order if d in left)

    def _reshaped(self, op: FlatOp, order: Order) -> Order:
        """Dimensions are split and joined; if joined ones lie apart, all is in plain order."""
        source = op.inputs[0]
        assert isinstance(source, int)
        before = self.flat.values[source].type.shape
        after = self.flat.values[op.outputs[0]].type.shape
        groups, found, at = _groups(before, after), list[int](), 0
        while at < len(order):
            olds, news = next((g for g in groups if order[at] in g[0]), _NONE)
            olds = [d for d in olds if before[d] > 1]
            if not olds or list(order[at : at + len(olds)]) != olds:
                return self.plain(op.outputs[0])
            at += len(olds)
            found += [d for d in news if after[d] > 1]
        return tuple(found)


def turned(flat: FlatProgram, free: Sequence[bool]) -> frozenset[int]:
    """Values that are stored in another order because of what they meet.

    Args:
        flat: the program.
        free: values that depend on nothing but literals and have any order.
    """
    found: dict[int, Order] = {}
    orders = _Orders(flat, free, found)
    for _ in range(ROUNDS):
        if not orders.run():
            break
    return frozenset(found)


def _numbers(op: FlatOp, name: str) -> Order:
    value = op.node.attr(name)
    assert isinstance(value, tuple)
    return tuple(n for n in value if isinstance(n, int))


def _groups(before: Order, after: Order) -> list[tuple[list[int], list[int]]]:
    """Least runs of dimensions of two shapes with equal products."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        olds, news, a, b = [i], [j], before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b and i < len(before):
                a, i = a * before[i], i + 1
                olds.append(i - 1)
            elif b < a and j < len(after):
                b, j = b * after[j], j + 1
                news.append(j - 1)
            else:
                return found
        found.append((olds, news))
    return found
