"""Builds the outline of a program in one walk."""

from __future__ import annotations

import numpy as np

from ir import Literal, TensorType
from ir.analysis import FlatOp, Link

from .facts import Facts, Span
from .repeated_layers import Repeats
from .skeleton import End, Join, Outline, Sites, Slot


def outline_of(facts: Facts, repeats: Repeats | None) -> Outline:
    """Builds the outline of a program.

    Args:
        facts: facts of the program.
        repeats: its classes; None if every op is decided on its own.
    """
    return _Outliner(facts, repeats).run()


class _Outliner:
    """One walk through a program."""

    def __init__(self, facts: Facts, repeats: Repeats | None) -> None:
        self.facts, self.flat, self.free = facts, facts.flat, facts.traffic.free
        self.folded = repeats is not None
        self.op_class = repeats.op if repeats else range(len(self.flat.ops))
        self.value_class = repeats.value if repeats else range(len(self.flat.values))
        self.slots: list[Slot] = []
        self.live_intervals: list[tuple[int, int, int]] = []
        self.op_node: dict[int, int] = {}
        self.value_node: dict[int, int] = {}
        self.out_node: dict[int, int] = {}
        self.ends: list[End | None] = [None] * len(self.flat.values)
        self.results: dict[object, int] = {}
        self.stacks: list[tuple[int, Link]] = []
        self.waits: dict[int, int] = {}
        self.joins: dict[Join, int] = {}
        self.types: list[TensorType] = []
        self.counts: list[int] = []
        self.taken: list[tuple[int, int]] = []
        self.sites: list[tuple[int, int]] = []  # join, passage

    def run(self) -> Outline:
        flat, partial = self.flat, self.facts.partial
        for v in flat.inputs:
            self._value(v, Slot("value", v))
        for v, value in enumerate(flat.values):
            if value.kind == "port" and v not in flat.stacked:
                self._value(v, Slot("value", v, partial[v]))
        for outer, port in flat.stacked.items():
            self.ends[outer] = End(self.value_node[port], "lifted")
        passage = 0
        for i, op in enumerate(flat.ops):
            if self.facts.is_made(op):
                self._op(i, op, passage)
            passage += len(op.outputs) + sum(isinstance(v, int) for v in op.inputs)
        for number, link in enumerate(flat.links):
            if link.source != link.target and not self.free[link.source]:
                self._link(number, link, passage + number)
        self._outputs(passage + len(flat.links))
        return self._outline()

    def _outline(self) -> Outline:
        members = np.bincount(list(self.op_node.values()), minlength=len(self.slots))
        node, start, end = np.array(self.live_intervals, dtype=np.intp).reshape(-1, 3).T
        join, passage = np.array(self.sites, dtype=np.intp).reshape(-1, 2).T
        return Outline(
            self.facts, self.folded, tuple(self.slots), self.op_node, self.value_node,
            self.out_node,
            tuple(self.ends), tuple(self.joins), tuple(self.types), tuple(self.counts),
            tuple(self.taken), tuple(self.stacks),
            tuple((node, op) for op, node in self.waits.items()), tuple(members.tolist()),
            node, start, end, Sites(join, passage),
        )  # fmt: skip

    def _add(self, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1

    def _live(self, node: int, span: Span) -> None:
        if span[1] > span[0]:
            self.live_intervals.append((node, *span))

    def _join(self, join: Join, type_: TensorType, count: int = 1) -> int:
        """The number of a join, whose count grows by `count`."""
        number = self.joins.setdefault(join, len(self.joins))
        if number == len(self.counts):
            self.types.append(type_)
            self.counts.append(0)
        self.counts[number] += count
        return number

    def _reshard(self, v: int, source: End, target: End, weight: float, count: int = 1) -> int:
        how = "same state" if v in self.facts.on_host else "reshard"
        join = Join(source.node, target.node, how, source, target, weight)
        return self._join(join, self.flat.values[v].type, count)

    def _source(self, v: int) -> End:
        end = self.ends[v]
        assert end is not None, "read before it is made"
        return end

    def _value(self, v: int, slot: Slot) -> int:
        first = self.value_class[v]
        if first not in self.value_node:
            self.value_node[first] = self._add(slot)
        node = self.value_node[v] = self.value_node[first]
        self.ends[v] = End(node)
        self._live(node, self.facts.spans[v])
        return node

    def _op(self, i: int, op: FlatOp, passage: int) -> None:
        first = self.op_class[i]
        if first not in self.op_node:
            self.op_node[first] = self._add(Slot("op", i))
        node = self.op_node[i] = self.op_node[first]
        self._live(node, self.facts.op_span(op))
        if any(v in self.facts.waits for v in op.outputs):
            self._wait(i, op, node)
        for position, v in enumerate(op.inputs):
            if isinstance(v, Literal):
                continue
            if not self.free[v]:
                end = End(node, "operand", position)
                self.sites.append((self._reshard(v, self._source(v), end, op.weight), passage))
            passage += 1
        for position, v in enumerate(op.outputs):
            made = End(node, "result", position)
            if v not in self.facts.shared:
                self.ends[v] = made
                continue
            kept = self._value(v, Slot("value", v, self.facts.partial[v], made))
            join = self._reshard(v, made, End(kept), op.weight)
            self.sites.append((join, passage + position))

    def _wait(self, i: int, op: FlatOp, node: int) -> None:
        """Adds a node that follows the op and holds its partial results."""
        if node not in self.waits:
            self.waits[node] = self._add(Slot("wait", i, made=End(node)))
        wait = self.waits[node]
        self._join(Join(node, wait, "same", End(node), End(wait), 1.0), op.node.outputs[0])
        self._live(wait, (op.time, self.facts.at(op)))

    def _link(self, number: int, link: Link, passage: int) -> None:
        """Joins a value that enters or leaves a region; values only read have a node in between.

        The region reads the buffer outside itself, or a copy in another state that lives until the
        region ends; the node's options are first those without a copy, then those with one. A loop
        reads slices of a whole stack.
        """
        node, source = self.value_node[link.target], self._source(link.source)
        target = End(node, "lifted" if link.lift else "states")
        read = link.lift or link.target in self.facts.read_only
        passed = not read or link.source in self.facts.on_host
        join = self._reshard(link.source, source, target, link.weight, int(passed))
        self.sites.append((join, passage))
        if passed:
            return
        key = ("stack", self.value_class[link.target], source.node)
        if key not in self.results:
            self.results[key] = self._add(Slot("stack", number, made=target))
        stack, type_ = self.results[key], self.flat.values[link.source].type
        self._live(stack, (link.time, self.flat.values[link.target].region_end + 1))
        self.stacks.append((stack, link))
        copied = self._join(Join(source.node, stack, "read", source, target, link.weight), type_)
        self.sites.append((copied, passage))
        self._join(Join(stack, node, "slices", End(stack), target, 1.0), type_)

    def _outputs(self, passage: int) -> None:
        """Joins results: tied ones to their argument's node, others to a node of their own."""
        for position, v in enumerate(self.flat.outputs):
            if isinstance(v, Literal):
                continue
            tied = self.facts.tied_in.get(position)
            node = self._result(position, v) if tied is None else self.value_node[tied]
            self.out_node[position] = node
            if v not in self.facts.in_place:
                self.taken.append((node, v))
            if not self.free[v]:
                source = self._source(v)
                join = self._reshard(v, source, End(node), 1.0, int(source.node != node))
                self.sites.append((join, passage))
            passage += 1

    def _result(self, position: int, v: int) -> int:
        key = ("result", self.value_class[v] if self.folded else position)
        if key not in self.results:
            self.results[key] = self._add(Slot("result", v))
        if self.free[v]:
            self._live(self.results[key], (max(0, self.flat.clock - 1), self.flat.clock))
        return self.results[key]
