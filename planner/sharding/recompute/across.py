"""How the backward pass reaches values of the forward pass.

Between nodes of one body a value is read as it is. Between a pair of loops it is stacked up by the
forward loop and enters the backward loop in slices, unless it is an argument of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir import Input

from .draft import Draft, Item, Value, with_numbers
from .passes import Pair, late_values


class InBody:
    """Forward and backward pass in one body."""

    def __init__(self, draft: Draft) -> None:
        self.source = self.target = draft
        self._late = late_values(draft)

    def forward(self, value: Value) -> Value | None:
        """The value of the forward pass that a value of the backward pass is; None if it is not."""
        return value if not isinstance(value, int) or value not in self._late else None

    def port(self, value: int) -> int:
        """A value of the forward pass in the backward pass."""
        return value

    def add(self, items: Iterable[Item]) -> None:
        """Adds nodes to the forward pass, each right after the last of its operands."""
        behind: list[list[Item]] = [[], *([one] for one in self.source.items)]
        group = {v: k for k, (one,) in enumerate(behind[1:], 1) for v in one.outs}
        for item in items:
            k = max((group.get(v, 0) for v in item.reads), default=0)
            reads = set(item.reads)
            after = (n + 1 for n, one in enumerate(behind[k]) if not reads.isdisjoint(one.outs))
            behind[k].insert(max(after, default=0), item)
            group.update(dict.fromkeys(item.outs, k))
        self.source.items = [one for each in behind for one in each]


class InLoops:
    """Forward and backward pass in the bodies of a pair of loops.

    source, target: these bodies.
    stacked: values of the forward body of which the backward loop takes slices.
    """

    def __init__(self, draft: Draft, pair: Pair) -> None:
        self.draft, self.pair = draft, pair
        self.source, self.target = draft.body(pair.forward), draft.body(pair.backward)
        self._value: dict[int, int] = {}
        self._port: dict[int, int] = {}
        self._find_known()

    def _find_known(self) -> None:
        """Values of the forward body that enter the backward body as it is."""
        forward, backward = self.pair.forward, self.pair.backward
        one, two = forward.wiring(), backward.wiring()
        entered = list(zip(forward.ins, self.source.entered, strict=True))
        fixed, _, sliced = one.operands(entered)
        constants, slices = dict(fixed), dict(sliced)
        _, stacks = one.results(list(zip(forward.outs, self.source.outputs, strict=True)))
        made: dict[Value, int] = {s: v for s, v in stacks if isinstance(v, int)}
        slices.update(made)
        fixed, _, sliced = two.operands(list(zip(backward.ins, self.target.entered, strict=True)))
        for known, ports in ((constants, fixed), (slices, sliced)):
            for outer, port in ports:
                if isinstance(outer, int) and outer in known:
                    self._value[port] = known[outer]
                    self._port.setdefault(known[outer], port)
        read = [made[outer] for outer, _ in sliced if isinstance(outer, int) and outer in made]
        self.stacked = tuple(dict.fromkeys(read))

    def forward(self, value: Value) -> Value | None:
        """The value of the forward body that a value of the backward body is; None if it is not."""
        return self._value.get(value) if isinstance(value, int) else value

    def is_same(self, value: int, forward: int) -> None:
        """Notes which value of the forward body a value of the backward body is."""
        self._value[value] = forward

    def port(self, value: int) -> int:
        """A value of the forward body in the backward body; it is stacked up if need be."""
        if value not in self._port:
            self._port[value] = port = self._enter(value)
            self._value[port] = value
        return self._port[value]

    def add(self, items: Iterable[Item]) -> None:
        """Adds nodes to the forward body."""
        self.source.items.extend(items)

    def _enter(self, value: int) -> int:
        forward, backward = self.pair.forward, self.pair.backward
        constants, _, slices = forward.wiring().operands(
            list(zip(forward.ins, self.source.entered, strict=True))
        )
        port = self.draft.numbers.new(self.draft.numbers.types[value])
        entry = port, Input("in", self.draft.numbers.types[port], "body")
        count = backward.wiring().constants
        for outer, inner in constants:
            if inner == value:
                backward.ins.insert(count, outer)
                self.target.inputs.insert(len(self.target.consts) + count, entry)
                with_numbers(backward, num_consts=count + 1)
                return port
        stack = next((outer for outer, inner in slices if inner == value), None)
        backward.ins.append(self._stack(value) if stack is None else stack)
        self.target.inputs.append(entry)
        return port

    def _stack(self, value: int) -> int:
        """The stack of a value's slices, a new one if the forward loop makes none yet."""
        forward = self.pair.forward
        carries = forward.wiring().carries
        for outer, inner in zip(forward.outs[carries:], self.source.outputs[carries:], strict=True):
            if inner == value:
                return outer
        type_, length = self.draft.numbers.types[value], forward.node.attr("length")
        assert isinstance(length, int)
        stack = self.draft.numbers.new(replace(type_, shape=(length, *type_.shape)))
        self.source.outputs.append(value)
        forward.outs.append(stack)
        return stack


Across = InBody | InLoops
