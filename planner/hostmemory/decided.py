"""A program with the states that a choice gives its values, as a compiler meets it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

from costmodel import Step
from ir import Literal, Sharding, lookup

from ..flatten import FlatOp, Place, Region
from ..intra.build import Builder
from ..intra.records import Built
from ..menu import Strategy
from ..states import port_state, state_of

HALVES = ("bfloat16", "float16")
ADDS = ("add", "add_any")


class Decided:
    """What is asked of a flat program under a choice.

    Attributes:
        strategies: of the ops that are in the program.
        bodies: body of each op; () is the program itself.
        same: value -> an equal one that was computed before; the compiler computes it once.
        left_out: ops whose results are there already.
        merged: adds -> (scatter into zeros that they read, its position): the compiler scatters
            into the other addend instead.
        squares: higher powers -> op that makes the square of the same value, out of which the
            compiler computes them.
    """

    def __init__(self, builder: Builder, built: Built, choice: Sequence[int]) -> None:
        self.builder, self.built, self.choice = builder, built, tuple(choice)
        self.flat, self.facts, self.mesh = builder.flat, builder.facts, builder.mesh
        self.free = builder.traffic.free
        self.strategies: dict[int, Strategy] = {
            i: built.refs[node].menu[choice[node]] for i, node in built.op_node.items()
        }
        self.regions: dict[Place, Region] = {r.place: r for r in self.flat.regions}
        self.bodies = [self.body(op.place) for op in self.flat.ops]
        self._states: dict[int, Sharding] = {}
        self.same: dict[int, int] = {}
        self.squares: dict[int, int] = {}
        self.left_out = self._left_out()
        self.merged = dict(self._merged())
        self.squares = dict(self._squares())

    def body(self, place: Place) -> Place:
        """The body that runs a node; what is recomputed is in the one that recomputes it."""
        for k in range(len(place) - 1, 1, -1):
            if place[: k - 1] in self.regions:
                return place[:k]
        return ()

    def backwards(self) -> list[int]:
        """Ops that are in the program, each after all that read it."""
        order = [i for i in reversed(range(len(self.flat.ops)))
                 if i in self.strategies and i not in self.left_out]  # fmt: skip
        for square in dict.fromkeys(self.squares.values()):
            first = min(i for i, j in self.squares.items() if j == square)
            if first < square:
                order.remove(square)
                order.insert(order.index(first) + 1, square)
        return order

    @cached_property
    def makers(self) -> dict[int, int]:
        """Value -> op."""
        return {v: i for i, op in enumerate(self.flat.ops) for v in op.outputs}

    def state(self, v: int) -> Sharding:
        """As which a value is kept."""
        if v not in self._states:
            self._states[v] = state_of(self.built, self.choice, v)
        return self._states[v]

    def entered(self, port: int, lift: int) -> Sharding:
        """As which a value enters a region."""
        return port_state(self.built, self.choice, port, lift)

    def result(self, position: int) -> Sharding:
        """As which a result leaves the program."""
        node = self.built.out_node[position]
        return self.built.refs[node].states[self.choice[node]]

    def is_half(self, v: int) -> bool:
        return self.flat.values[v].type.dtype in HALVES

    def size(self, v: int, state: Sharding, *, wide: bool = False) -> int:
        """Bytes of a shard; `wide` is in 32 bits what has 16."""
        local = state.local_bytes(self.flat.values[v].type, self.mesh)
        return local * 2 if wide and self.is_half(v) else local

    def steps(self, v: int, wanted: Sharding, made: Sharding | None = None) -> tuple[Step, ...]:
        """Collectives on the way from how a value is kept, or made, to how it is wanted."""
        before = self.state(v) if made is None else made
        if before == wanted:
            return ()
        path = self.builder.cache.reshard.path(self.flat.values[v].type, before, wanted)
        return tuple(step for step in path if step.collective)

    def is_turned(self, v: int, step: Step) -> bool:
        """Whether what a collective gathers lies in another order than the tensor it is of."""
        shape, dims = self.flat.values[v].type.shape, step.after.dims
        before = zip(shape[: max(step.dim, 0)], dims, strict=False)
        return any(n > self.mesh.product(axes) for n, axes in before)

    def is_gathered_anew(self, v: int, wanted: Sharding) -> bool:
        """Whether each reader has a gathered copy of its own: of an argument, as it is emitted."""
        argument = self.flat.values[v].kind == "argument"
        return argument and any(step.kind == "all-gather" for step in self.steps(v, wanted))

    def operands(self, i: int) -> Iterator[tuple[int, int, Sharding]]:
        """Position, value and wanted state of what an op reads, recipes apart; a square last."""
        op = self.flat.ops[i]
        for k, (v, state) in enumerate(zip(op.inputs, self.strategies[i].operands, strict=True)):
            if isinstance(v, int) and not self.free[v]:
                yield k, self.one(v), state
        if i in self.squares:
            ((square, state),) = self.results(self.squares[i])
            yield len(op.inputs), square, state

    def results(self, i: int) -> list[tuple[int, Sharding]]:
        """Values and the states in which an op makes them, recipes apart."""
        pairs = zip(self.flat.ops[i].outputs, self.strategies[i].results, strict=True)
        return [(v, state) for v, state in pairs if not self.free[v]]

    def one(self, v: int) -> int:
        """The first of equal values."""
        while v in self.same:
            v = self.same[v]
        return v

    def _left_out(self) -> frozenset[int]:
        known: dict[Hashable, int] = {}
        found: set[int] = set()
        for i, op in enumerate(self.flat.ops):
            if i not in self.strategies or lookup(op.node.op).family == "opaque":
                continue
            if any(self.is_gathered_anew(v, state) for _, v, state in self.operands(i)):
                continue
            operands = tuple(v if isinstance(v, Literal) else self.one(v) for v in op.inputs)
            key = (
                self.bodies[i], op.node.op, op.node.attrs, operands, op.node.outputs,
                self.strategies[i].roles,
            )  # fmt: skip
            first = known.setdefault(key, i)
            pairs = list(zip(op.outputs, self.flat.ops[first].outputs, strict=True))
            if first != i and all(self.state(a) == self.state(b) for a, b in pairs):
                self.same.update(pairs)
                found.add(i)
        return frozenset(found)

    def _merged(self) -> Iterator[tuple[int, tuple[int, int]]]:
        read = self.builder.facts.uses
        for i, op in enumerate(self.flat.ops):
            if op.node.op not in ADDS or i not in self.strategies:
                continue
            for k, u in enumerate(op.inputs):
                if isinstance(u, int) and read.get(u) == 1 and self._scattered(i, k, u):
                    yield i, (self.makers[u], k)
                    break

    def _squares(self) -> Iterator[tuple[int, int]]:
        powers = [(i, op.node.attr("y")) for i, op in enumerate(self.flat.ops)
                  if op.node.op == "integer_pow" and i in self.strategies
                  and i not in self.left_out]  # fmt: skip
        made = {self._power_of(i): i for i, y in powers if y == 2}
        for i, y in powers:
            if isinstance(y, int) and y > 2 and self._power_of(i) in made:
                yield i, made[self._power_of(i)]

    def _power_of(self, i: int) -> Hashable:
        v = self.flat.ops[i].inputs[0]
        one = v if isinstance(v, Literal) else self.one(v)
        return self.bodies[i], one, self.strategies[i].roles

    def _scattered(self, i: int, k: int, u: int) -> bool:
        """Whether an addend is a scatter into zeros, in the state in which it is added.

        Zeros into which partial sums are scattered are chosen by device: no compiler sees zeros.
        """
        j = self.makers.get(u, -1)
        if j not in self.strategies or self.flat.ops[j].node.op != "scatter-add":
            return False
        into = self.flat.ops[j].inputs[0]
        made, wanted = self.strategies[j].results[0], self.strategies[i].operands[k]
        from_zeros = isinstance(into, Literal) or self.free[into]
        seen = self.strategies[j].operands[0].partial == made.partial
        return from_zeros and seen and made == self.state(u) == wanted


def is_fused(op: FlatOp) -> bool:
    """Whether the compiler may compute an op where its result is read."""
    return lookup(op.node.op).family in ("elementwise", "layout")
