"""Windows of a program, and the ops beside which a collective at each of its sites may run.

A window is a part of the step whose collectives may run beside its compute: the body of a loop, or
a part of one; the program itself is one such body. A body that returns scalars, most often the
loss, is divided by what they need: forward pass, then all the rest. Rounds of a loop do not run
beside each other.

Within a body a collective may run beside an op that neither leads to its operand nor follows from
its result. The ops before a maker m and those after a reader r are different ones, so that the
seconds beside a collective from m to r are

    all of the body  -  those of m and what leads to it  -  those of r and what follows from it

Loops and branches inside a body hide nothing of it: their own collectives use the link. Of the ops
only the largest count, which make up most of their body.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ir import Graph, flops_of, lookup
from ir.analysis import FlatOp, Place, is_float, operand_types

from ...solver.problem import Floats
from .facts import Facts

Ints = NDArray[np.intp]
GRAIN = 1.07  # ratio of neighbouring lengths of hidden time that are told apart
MOST = 0.95  # share of a body's work for which its largest ops are counted
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
    nodes: nodes of the problem that stand for large ops.
    ops: [rows, nodes], how many ops of each node; row 0 is empty.
    """

    count: int
    body: tuple[Place, ...]
    op: Ints
    passage: Ints
    before: Ints
    after: Ints
    whole: Ints
    nodes: Ints
    ops: NDArray[np.float32]

    def beside_s(self, least_s: Floats) -> Floats:
        """Seconds of compute beside which a collective may run, of each passage and run.

        Lengths of hidden time are rounded down to powers of 1.07, so that like sites share prices.

        Args:
            least_s: least seconds of an op of each node of the problem, of one run.
        """
        rows = self.ops @ least_s[self.nodes]
        found = rows[self.whole] - rows[self.before] - rows[self.after]
        some = found > 1e-9 * rows[self.whole]
        steps = np.floor(np.log(np.where(some, found, 1.0)) / np.log(GRAIN))
        return np.where(some, GRAIN**steps, 0.0)


@dataclass
class _Body:
    """Ops and regions of a body in order, as a graph.

    units: flat numbers of ops, -1 for regions; readers, made: units by flat value.
    size: work of each unit.
    large: units of the largest ops; bit n of a mask stands for the n-th of them.
    leads, follows: unit -> mask of what leads to it or follows from it, and itself.
    """

    place: Place
    units: list[int] = field(default_factory=list[int])
    size: list[float] = field(default_factory=list[float])
    large: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    reads: list[Sequence[int]] = field(default_factory=list[Sequence[int]])
    made: dict[int, int] = field(default_factory=dict[int, int])
    readers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    leads: list[int] = field(default_factory=list[int])
    follows: list[int] = field(default_factory=list[int])
    scalars: list[int] = field(default_factory=list[int])

    def add(self, op: int, size: float, reads: Iterable[int], makes: Iterable[int]) -> int:
        unit = len(self.units)
        self.units.append(op)
        self.size.append(size)
        self.reads.append(tuple(reads))
        for v in self.reads[-1]:
            self.readers.setdefault(v, []).append(unit)
        self.made.update(dict.fromkeys(makes, unit))
        return unit

    def close(self) -> None:
        """Works out what leads to each unit, and what follows from it."""
        count = len(self.units)
        order = np.argsort(-np.array(self.size), kind="stable")
        total = np.cumsum(np.array(self.size)[order])
        needed = int(np.searchsorted(total, MOST * float(total[-1]))) + 1 if count else 0
        self.large = np.sort(order[:needed])
        bits = [0] * count
        for n, unit in enumerate(self.large.tolist()):
            bits[unit] = 1 << n
        for unit, reads in enumerate(self.reads):
            mask = bits[unit]
            for v in reads:
                maker = self.made.get(v, unit)
                if maker < unit:
                    mask |= self.leads[maker]
            self.leads.append(mask)
        made_by: list[list[int]] = [[] for _ in range(count)]
        for v, unit in self.made.items():
            made_by[unit].append(v)
        self.follows = [0] * count
        for unit in reversed(range(count)):
            mask = bits[unit]
            for v in made_by[unit]:
                mask |= self.after(v, unit)
            self.follows[unit] = mask

    @cached_property
    def large_ops(self) -> Ints:
        """Flat number of each of the largest ops."""
        return np.array([self.units[unit] for unit in self.large.tolist()], dtype=np.intp)

    @property
    def everything(self) -> int:
        return (1 << len(self.large)) - 1

    def needed(self, v: int) -> frozenset[int]:
        """The units that a value needs."""
        found, path = set[int](), [v]
        while path:
            unit = self.made.get(path.pop(), -1)
            if unit >= 0 and unit not in found:
                found.add(unit)
                path.extend(self.reads[unit])
        return frozenset(found)

    def before(self, v: int) -> int:
        """Mask of what leads to a value."""
        return self.leads[self.made[v]] if v in self.made else 0

    def after(self, v: int, maker: int = -1) -> int:
        """Mask of what follows from a value."""
        mask = 0
        for reader in self.readers.get(v, ()):
            if reader > maker:
                mask |= self.follows[reader]
        return mask


class _Reader:
    """Reads the windows off a program."""

    def __init__(self, facts: Facts, op_node: dict[int, int]) -> None:
        self.facts, self.flat = facts, facts.flat
        flat = self.flat
        self.op_node = op_node
        self.nodes: Ints = np.zeros(0, dtype=np.intp)
        self.column = np.full(len(flat.ops), -1, dtype=np.intp)
        self.places: dict[Place, Place] = {}
        self.bodies: dict[Place, _Body] = {}
        self.regions: dict[Place, int] = {}
        self.rows: dict[tuple[Place, int], int] = {((), 0): 0}
        self.table: list[NDArray[np.float32]] = []

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

    def body(self, place: Place) -> _Body:
        if place not in self.bodies:
            self.bodies[place] = _Body(place)
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
        at = [0] * len(units)
        for k in sorted(range(len(units)), key=lambda k: units[k][0]):
            _, place, op, reads, makes = units[k]
            size = self._size(op, flat.ops[op]) if op >= 0 else 0.0
            at[k] = self.body(place).add(op, size, reads, makes)
        self.regions = {place: at[k] for place, k in self.regions.items()}
        for body in self.bodies.values():
            body.close()
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

    def _divided(self, body: _Body) -> list[int]:
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
        for n, passage in enumerate(flat.passages):
            site, v = passage.site, passage.value
            inside = site.place if site.at == "return" else site.place[:-1]
            place = self.body_place(inside)
            body = self.body(place)
            made, unit = body.before(v), -1
            if passage.op >= 0:
                unit = unit_of[passage.op]
                follows = body.after(v) if site.at == "result" else body.follows[unit]
            elif site.at == "return":
                follows = 0
            else:
                unit = self.regions[site.place]
                follows = body.follows[unit]
                if site.at == "result":
                    made, follows = body.leads[unit], body.after(flat.links[passage.link].target)
            if unit < 0:
                unit = body.made.get(v, len(body.units) - 1)
            window[n] = unit_window[place][unit] if body.units else 0
            before[n], after[n] = self._row(body, made), self._row(body, follows)
            whole[n] = self._row(body, body.everything)
        return Windows(
            len(places), tuple(places), op_window, window, before, after, whole,
            self.nodes.astype(np.intp), np.stack(self.table),
        )  # fmt: skip

    def _row(self, body: _Body, mask: int) -> int:
        """The number of the row that counts the ops of a mask by node."""
        if not mask:
            return 0
        key = body.place, mask
        if key not in self.rows:
            columns = self.column[body.large_ops[_members(mask, len(body.large))]]
            counted = np.bincount(columns[columns >= 0], minlength=len(self.nodes))
            self.rows[key] = len(self.table)
            self.table.append(counted.astype(np.float32))
        return self.rows[key]


def _members(mask: int, count: int) -> Ints:
    """Numbers of the bits of a mask of `count` bits."""
    data = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little", count=count))


def windows_of(facts: Facts, op_node: dict[int, int]) -> Windows:
    """The windows of a program.

    Args:
        facts: facts of the program.
        op_node: flat op -> node of the problem.
    """
    return _Reader(facts, op_node).read()
