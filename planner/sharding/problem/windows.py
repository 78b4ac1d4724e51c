"""Windows of a program, and the ops beside which a collective at each of its sites may run.

A window is a part of the step whose collectives may run beside its compute: the body of a loop, or
a part of one; the program itself is one such body. A body that returns scalars, most often the
loss, is divided by what they need: forward pass, then all the rest. Rounds of a loop do not run
beside each other.

Within a body a collective may run beside an op that neither leads to its operand nor follows from
its result. The ops before a maker m and those after a reader r are different ones, so that the
seconds beside a collective from m to r are

    all of the body  -  those of m and what leads to it  -  those of r and what follows from it

Ops on the longest way through a body count in full: of the collectives beside them a window hides
no more than `BESIDE` of its compute, as each collective is beside whole ops, one after the other.
The others, casts of weights, gradients of weights, updates of
parameters, have nothing to wait for and are beside almost everything; a scheduler runs them beside
one collective. They are shared out by bytes among the values of their body that have them beside
their way from maker to reader.

A value that only becomes a slice of a loop's stacked result is sent beside the next round, as
`xla_gpu_enable_pipelined_reduce_scatter` and `_all_reduce` have it: beside all of the body, in all
rounds but the last.

Loops and branches inside a body hide nothing of it: their own collectives use the link. Of the ops
only the largest count, which make up most of their body.

Source: XLA, xla/service/latency_hiding_scheduler.cc (one collective at a time, from the end
backwards, each beside what is ready), xla/service/collective_pipeliner.cc (`kForward`: a collective
whose only use is a slice of a result moves to the next round).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ir import Graph, flops_of, lookup
from ir.analysis import FlatOp, Passage, Place, is_float, operand_types

from ...solver.problem import Floats
from .body_order import Body, Ints
from .facts import Facts

# Share of a window's compute beside which collectives run at most. XLA's schedules hide 0.59 to
# 0.89 of it, 0.77 in the median of five windows with more to hide (`scheduled-busy`), and 0.4 to
# 0.89, 0.68 of 15, in plans that count on all of it, which are slower: see design note 7.
BESIDE = 0.7
GRAIN = 1.07  # ratio of neighbouring lengths of hidden time that are told apart
# Between a collective and the slice that it becomes.
FORMATTING = frozenset({"convert_element_type", "reshape", "squeeze", "transpose"})
FLOPS_PER_BYTE = 300  # arithmetic worth a byte of memory traffic, to rank ops by size


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of the ops and passages of a flat program.

    count: number of windows.
    body: window -> place of its body, () for the program.
    op: flat op -> window.
    passage: number of a passage -> window.
    before, after: number of a passage -> row of `ops`: what leads to it, what follows from it.
    whole: number of a passage -> row of `ops`: all of its body.
    nbytes: number of a passage -> bytes of its value, 0 if it is made elsewhere.
    rounds: number of a passage -> share of its runs that have something beside them.
    nodes: nodes of the problem that stand for large ops.
    ops: [rows, nodes], how many ops of each node are on the longest way; row 0 is empty.
    shared: [rows, nodes], likewise the others, each by the bytes that share it [1 / byte].
    """

    count: int
    body: tuple[Place, ...]
    op: Ints
    passage: Ints
    before: Ints
    after: Ints
    whole: Ints
    nbytes: Floats
    rounds: Floats
    nodes: Ints
    ops: NDArray[np.float32]
    shared: Floats

    def beside_s(self, least_s: Floats) -> Floats:
        """Seconds of compute beside which a collective may run, of each passage and run.

        Lengths of hidden time are rounded down to powers of 1.07, so that like sites share prices.

        Args:
            least_s: least seconds of an op of each node of the problem, of one run.
        """
        found, all_s = np.zeros(len(self.passage)), np.zeros(len(self.passage))
        for table, times in ((self.ops, np.ones(1)), (self.shared, self.nbytes)):
            rows = table @ least_s[self.nodes]
            all_s += times * rows[self.whole]
            found += times * (rows[self.whole] - rows[self.before] - rows[self.after])
        some = found > 1e-9 * all_s
        steps = np.floor(np.log(np.where(some, found, 1.0)) / np.log(GRAIN))
        return np.where(some, GRAIN**steps, 0.0)

    def body_s(self, least_s: Floats) -> Floats:
        """Seconds of compute of the body of each passage, of one run.

        Args:
            least_s: as of `beside_s`.
        """
        tables = ((self.ops, np.ones(1)), (self.shared, self.nbytes))
        return sum(
            (times * (table @ least_s[self.nodes])[self.whole] for table, times in tables),
            np.zeros(len(self.passage)),
        )


class _Reader:
    """Reads the windows off a program."""

    def __init__(self, facts: Facts, op_node: dict[int, int]) -> None:
        self.facts, self.flat = facts, facts.flat
        flat = self.flat
        self.op_node = op_node
        self.nodes: Ints = np.zeros(0, dtype=np.intp)
        self.column = np.full(len(flat.ops), -1, dtype=np.intp)
        self.places: dict[Place, Place] = {}
        self.bodies: dict[Place, Body] = {}
        self.regions: dict[Place, int] = {}
        self.rows: dict[tuple[Place, int], int] = {((), 0): 0}
        self.table: list[NDArray[np.float32]] = []
        self.shares: list[Floats] = []
        self.sharing: dict[Place, Floats] = {}  # bytes that share each of the largest ops
        self.runs: dict[Place, float] = {(): 1.0}  # of a body in one call

    def body_place(self, prefix: Place) -> Place:
        """The loop body, branch or program that ops at a place belong to; checkpoints are part."""
        if not prefix:
            return ()
        if prefix not in self.places:
            graph: Graph = self.flat.graph
            node = graph.nodes[prefix[0]]
            for b, i in zip(prefix[1:-1:2], prefix[2::2], strict=True):
                node = node.bodies[b].nodes[i]
            inlined = node.op == "remat"
            self.places[prefix] = self.body_place(prefix[:-2]) if inlined else prefix
        return self.places[prefix]

    def body(self, place: Place) -> Body:
        if place not in self.bodies:
            self.bodies[place] = Body(place)
        return self.bodies[place]

    def _size(self, i: int, op: FlatOp) -> float:
        """Work of an op as a whole, in units of arithmetic."""
        if i not in self.op_node:
            return 0.0
        traffic, types = self.facts.traffic, operand_types(self.flat, op)
        moved = sum(types[k].nbytes for k in traffic.reads[i])
        moved += sum(t.nbytes for t, v in zip(op.node.outputs, op.outputs, strict=True)
                     if traffic.stored[v])  # fmt: skip
        return float(max(flops_of(lookup(op.node.op), op.node, types), FLOPS_PER_BYTE * moved))

    def _runs(self, op: FlatOp) -> float:
        """Runs of an op, also where it takes no time (`Program.where`)."""
        return self.flat.values[op.outputs[0]].weight if op.outputs else op.weight

    def read(self) -> Windows:
        flat = self.flat
        self.body(())  # also where there is no op
        units: list[tuple[int, Place, int, Sequence[int], Sequence[int]]] = [
            (op.time, self.body_place(op.place[:-1]), i, op.reads, op.outputs)
            for i, op in enumerate(flat.ops)
        ]
        entering: dict[Place, list[int]] = {}
        for link in flat.links:
            if link.site.at == "operand":
                entering.setdefault(link.site.place, []).append(link.source)
        for region in flat.regions:
            reads, makes = entering.get(region.place, []), (*region.left, *region.stacks)
            outside = self.body_place(region.place[:-1])
            units.append((region.start, outside, -1, reads, makes))
            self.regions[region.place] = len(units) - 1
        at, rounds = [0] * len(units), dict[Place, float]()  # work of all rounds of each region
        sizes = [self._size(i, op) for i, op in enumerate(flat.ops)]
        for _, place, op, _, _ in units:
            if op >= 0:
                self.runs.setdefault(place, self._runs(flat.ops[op]))
                inside = place
                while inside:
                    work = sizes[op] * flat.ops[op].weight
                    rounds[inside[:-1]] = rounds.get(inside[:-1], 0.0) + work
                    inside = self.body_place(inside[:-2])
        region_of = {k: place for place, k in self.regions.items()}
        for k in sorted(range(len(units)), key=lambda k: units[k][0]):
            _, place, op, reads, makes = units[k]
            size = sizes[op] if op >= 0 else 0.0
            inner = rounds.get(region_of[k], 0.0) if op < 0 else 0.0
            length = size + (inner / self.runs.get(place, 1.0) if inner else 0.0)
            at[k] = self.body(place).add(op, size, length, reads, makes)
        self.regions = {place: at[k] for place, k in self.regions.items()}
        for body in self.bodies.values():
            body.close()
            self.sharing[body.place] = self._sharing(body)
        self._number()
        self._scalars()
        return self._windows({p: self._divided(body) for p, body in self.bodies.items()})

    def _number(self) -> None:
        """Columns of the table: the nodes of large ops."""
        large = [
            body.units[unit]
            for body in self.bodies.values()
            for unit in map(int, body.large)
            if body.units[unit] in self.op_node
        ]
        nodes = np.array([self.op_node[op] for op in large], dtype=np.intp)
        self.nodes, self.column[large] = np.unique(nodes, return_inverse=True)
        self.table.append(np.zeros(len(self.nodes), dtype=np.float32))
        self.shares.append(np.zeros(len(self.nodes)))

    def _sharing(self, body: Body) -> Floats:
        """Bytes of the values of a body that have each of its largest ops beside their way."""
        found = np.zeros(len(body.large))
        free = body.everything & ~body.critical
        sums: dict[int, int] = {}
        for v, unit in body.made.items():
            type_ = self.flat.values[v].type
            beside = free & ~body.leads[unit] & ~body.after(v)
            if beside and is_float(type_):
                sums[beside] = sums.get(beside, 0) + type_.nbytes
        for beside, size in sums.items():
            found[body.members(beside)] += size
        return found

    def _sliced(self) -> set[int]:
        """Values that only become slices of the stacked results of loops."""
        flat = self.flat
        slices, elsewhere = set(flat.stacked.values()), set[int]()
        found = {link.source for link in flat.links if link.target in slices}
        elsewhere = {link.source for link in flat.links if link.target not in slices}
        elsewhere.update(v for v in flat.outputs if isinstance(v, int))
        for op in reversed(flat.ops):
            becomes = op.node.op in FORMATTING and found.issuperset(op.outputs)
            (found if becomes else elsewhere).update(op.reads)
        return found - elsewhere

    def _scalars(self) -> None:
        """Notes the scalars that each body returns."""
        flat = self.flat
        returned = [((), v) for v in flat.outputs if isinstance(v, int)]
        returned += [
            (self.body_place(link.site.place), link.source)
            for link in flat.links
            if link.site.at == "return"
        ]
        for place, v in returned:
            type_ = flat.values[v].type
            if not type_.shape and is_float(type_):
                self.body(place).scalars.append(v)

    def _divided(self, body: Body) -> list[int]:
        """Window of each unit of a body, from 0: what each scalar result needs, then the rest."""
        needs = {body.needed(v) for v in body.scalars}
        window, count = [-1] * len(body.units), 0
        for units in (*sorted(needs, key=lambda n: (len(n), sorted(n))), range(len(body.units))):
            new = [unit for unit in units if window[unit] < 0]
            for unit in new:
                window[unit] = count
            count += bool(new)
        return window

    def _windows(self, unit_window: dict[Place, list[int]]) -> Windows:
        flat = self.flat
        places: list[Place] = []
        op_window = np.zeros(len(flat.ops), dtype=np.intp)
        for place, body in self.bodies.items():
            first, mine = len(places), unit_window[place]
            places += [place] * (max(mine, default=0) + 1)
            unit_window[place] = [first + n for n in mine]
            for unit, op in enumerate(body.units):
                if op >= 0:
                    op_window[op] = unit_window[place][unit]
        unit_of = {
            op: unit
            for body in self.bodies.values()
            for unit, op in enumerate(body.units)
            if op >= 0
        }
        count = len(flat.passages)
        window, before = np.zeros(count, dtype=np.intp), np.zeros(count, dtype=np.intp)
        after, whole = before.copy(), before.copy()
        nbytes, rounds, sliced = np.zeros(count), np.ones(count), self._sliced()
        for n, passage in enumerate(flat.passages):
            v = passage.value
            body, unit, made, follows = self._way(passage, unit_of)
            window[n] = unit_window[body.place][unit] if body.units else 0
            whole[n] = self._row(body, body.everything)
            if v in sliced:
                rounds[n] = self._rounds_beside(body.place)
                continue
            before[n], after[n] = self._row(body, made), self._row(body, follows)
            nbytes[n] = flat.values[v].type.nbytes if v in body.made else 0.0
        return Windows(
            len(places), tuple(places), op_window, window, before, after, whole, nbytes, rounds,
            self.nodes.astype(np.intp), np.stack(self.table), np.stack(self.shares),
        )  # fmt: skip

    def _way(self, passage: Passage, unit_of: dict[int, int]) -> tuple[Body, int, int, int]:
        """The body of a passage, its unit there, and what leads to it and follows from it."""
        flat, site, v = self.flat, passage.site, passage.value
        body = self.body(self.body_place(site.place if site.at == "return" else site.place[:-1]))
        made, unit = body.before(v), body.made.get(v, len(body.units) - 1)
        if passage.op >= 0:
            unit = unit_of[passage.op]
            return body, unit, made, body.after(v) if site.at == "result" else body.follows[unit]
        if site.at == "return":
            return body, unit, made, 0
        unit = self.regions[site.place]
        if site.at == "result":
            return body, unit, body.leads[unit], body.after(flat.links[passage.link].target)
        return body, unit, made, body.follows[unit]

    def _rounds_beside(self, place: Place) -> float:
        """Share of the rounds of a loop after which another one follows."""
        outside = self.runs.get(self.body_place(place[:-2]), 1.0)
        inside = self.runs.get(place, outside)
        return 1.0 - outside / inside if inside > outside else 0.0

    def _row(self, body: Body, mask: int) -> int:
        """The number of the row that counts the ops of a mask by node."""
        if not mask:
            return 0
        key = body.place, mask
        if key not in self.rows:
            self.rows[key] = len(self.table)
            on, off = body.members(mask & body.critical), body.members(mask & ~body.critical)
            shared = self.sharing[body.place][off]
            each = np.divide(1.0, shared, out=np.zeros(len(off)), where=shared > 0.0)
            self.table.append(self._counted(body, on, np.ones(len(on))).astype(np.float32))
            self.shares.append(self._counted(body, off, each))
        return self.rows[key]

    def _counted(self, body: Body, which: Ints, weights: Floats) -> Floats:
        """Sums of the weights of some of the largest ops, by node."""
        columns = self.column[body.large_ops[which]]
        some = columns >= 0
        found = np.zeros(len(self.nodes))
        np.add.at(found, columns[some], weights[some])
        return found


def windows_of(facts: Facts, op_node: dict[int, int]) -> Windows:
    """The windows of a program.

    Args:
        facts: facts of the program.
        op_node: flat op -> node of the problem.
    """
    return _Reader(facts, op_node).read()
