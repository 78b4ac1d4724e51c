# pyright: basic
"""Choices that give the least work for what they keep, at every price of memory.

At a price of a byte, the best choice is a minimum cut: each node of the forward pass is on the side
of the forward pass, or is computed again on the side of the backward pass, and what crosses from
one to the other is kept,

    minimise   sum of t_i over nodes computed again  +  price * sum of bytes over values kept

so that everything the backward pass reads is kept, or computed again out of what is kept. A node is
computed again once at most. As a linear programme, whose vertices are whole,

    minimise   sum of t_i (1 - x_i)  +  price * sum of b_v z_v,    0 <= x <= 1,  z >= 0
    z_v >= x_i - x_r   for each node r of the forward pass that reads value v of node i
    z_v  = x_i         where the backward pass reads v

Only its costs change with the price, so that each solve begins with the basis of the one before.
The prices at which the choice changes are found from both ends. Source of the cut: Zheng et al.,
Min-cut rematerialization in AOTAutograd (PyTorch), 2022; of the prices: Eisner and Severance, 1976.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from ir.analysis import Place
from ir.trace import Traced
from substitutions import QuietHighs

from .kinds import cuts, narrow, root_stride
from .saved import Key, Layer

SecondsOf = Callable[[Place], float]
NEARLY = 1e-6  # share of all work that a change of the choice is worth
# Costs of a cut are in units of which all work and all bytes together are so many, so that what a
# change is worth is above the tolerance of the solver, 1e-7; of cuts that cost the same to that
# tolerance one with fewer nodes computed again is preferred, for so many units each.
UNITS, FEWER = 1e6, 1e-7


@dataclass(frozen=True, slots=True)
class Choice:
    """Values that are computed again.

    again_s: seconds of computing them again, each split evenly over all devices.
    kept_bytes: bytes of what is kept for the backward pass, on one device.
    """

    values: frozenset[Key]
    again_s: float
    kept_bytes: float


def work_s(traced: Traced, seconds: SecondsOf) -> float:
    """Least seconds of all operations of a program [s].

    Args:
        traced: the program.
        seconds: of the node at a place, over the whole step.
    """
    return sum(seconds((i,)) for i in range(len(traced.graph.nodes)))


def counted(layers: Sequence[Layer], seconds: SecondsOf, values: Collection[Key]) -> Choice:
    """A choice, counted on the program that keeps everything.

    Args:
        layers: bodies with a forward pass.
        seconds: as of `frontier`.
        values: what is computed again, some of which nothing may need.
    """
    chosen = frozenset(values)
    again_s = kept_bytes = 0.0
    for layer in layers:
        nodes, nbytes = layer.made_again(chosen)
        again_s += sum(seconds((*layer.place, node.index)) for node in nodes)
        kept_bytes += nbytes
    return Choice(chosen, again_s, kept_bytes)


def frontier(layers: Sequence[Layer], seconds: SecondsOf, most: int) -> list[Choice]:
    """Choices from the least work to the least memory.

    Args:
        layers: bodies with a forward pass.
        seconds: seconds of the node at a place, over the whole step.
        most: number of choices, about.
    """
    found: dict[frozenset[Key], Choice] = {}
    for stops in _stops(layers):
        for choice in _swept(layers, seconds, stops, most):
            found.setdefault(choice.values, choice)
    ordered = sorted(found.values(), key=lambda c: (c.again_s, c.kept_bytes))
    best: list[Choice] = []
    for choice in ordered:
        if not best or choice.kept_bytes < best[-1].kept_bytes:
            best.append(choice)
    return best


def _stops(layers: Sequence[Layer]) -> list[frozenset[Key]]:
    """Values that are always kept, so that not all of a long forward pass is made again at once."""
    flat = [layer for layer in layers if not layer.loop]
    if len(flat) < len(layers) or all(len(narrow(layer)) < 2 for layer in flat):
        return [frozenset()]
    found: dict[frozenset[Key], None] = {}
    for coarse in (False, True):
        strides = [(layer, root_stride(layer) if coarse else 1) for layer in flat]
        keys = [layer.keys(cuts(layer, stride)) for layer, stride in strides]
        found[frozenset().union(*keys)] = None
    return list(found)


def _swept(
    layers: Sequence[Layer], seconds: SecondsOf, stops: Collection[Key], most: int
) -> list[Choice]:
    bodies = [Cuts(layer, seconds, stops) for layer in layers]
    work, size = sum(each.work_s for each in bodies), sum(each.read_bytes for each in bodies)
    if not size or not work:
        return []

    def at(price: float) -> Choice:
        return _joined([each.at(price) for each in bodies])

    first, last = at(NEARLY * work / size), at(work / size / NEARLY)
    found = [first, last]
    todo = [(first, last)]
    while todo and len(found) < most:
        few, many = todo.pop(0)
        if few.kept_bytes <= many.kept_bytes or few.again_s >= many.again_s:
            continue
        middle = at((many.again_s - few.again_s) / (few.kept_bytes - many.kept_bytes))
        if middle.values not in (few.values, many.values):
            found.append(middle)
            todo += [(few, middle), (middle, many)]
    return found


def _joined(choices: Sequence[Choice]) -> Choice:
    values = frozenset[Key]().union(*(c.values for c in choices))
    return Choice(values, sum(c.again_s for c in choices), sum(c.kept_bytes for c in choices))


class Cuts:
    """Minimum cuts of a body at prices; where the solver finds none, all is kept.

    work_s: seconds of all nodes; read_bytes: bytes of what the backward pass reads.
    """

    def __init__(self, layer: Layer, seconds: SecondsOf, stops: Collection[Key]) -> None:
        self.layer, nodes = layer, layer.nodes
        self._again_s = np.array([seconds((*layer.place, node.index)) for node in nodes])
        self.work_s = float(self._again_s.sum())
        self.read_bytes = sum(layer.nbytes(node, v) for node in nodes for v in node.read)
        at = {v: (i, node) for i, node in enumerate(nodes) for v in node.outs}
        readers: dict[int, list[int]] = {}
        for i, node in enumerate(nodes):
            for v in node.reads:
                if v in at:
                    readers.setdefault(v, []).append(i)
        self._bytes, self._waiting = np.zeros(len(nodes)), list[float]()
        rows: list[tuple[int, int, int]] = []  # column of z, of the maker, of the reader
        for v, (i, node) in at.items():
            if v in node.read:
                self._bytes[i] += layer.nbytes(node, v)
            elif v in readers:
                column = len(nodes) + len(self._waiting)
                self._waiting.append(layer.nbytes(node, v))
                rows += [(column, i, r) for r in readers[v]]
        fixed = [
            not node.again or any((layer.place, v) in stops for v in node.outs) for node in nodes
        ]
        self._fixed = np.array(fixed, dtype=bool)
        self._rows = np.array(rows, dtype=np.int32).reshape(-1, 3)
        self._solver = self._programme(fixed)

    def _programme(self, fixed: Sequence[bool]) -> QuietHighs:
        rows, columns = self._rows, len(self._again_s) + len(self._waiting)
        count = len(rows)
        lower = np.zeros(columns)
        lower[: len(fixed)] = fixed
        solver = QuietHighs()
        solver.setOptionValue("threads", 1)
        solver.passModel(
            columns, count, 3 * count, int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize), 0.0, np.zeros(columns), lower, np.ones(columns),
            np.zeros(count), np.full(count, np.inf), np.arange(0, 3 * count, 3, dtype=np.int32),
            rows.ravel(), np.tile([1.0, -1.0, 1.0], count), np.zeros(columns, dtype=np.int32),
        )  # fmt: skip
        return solver

    def at(self, price: float) -> Choice:
        """The best choice at a price [s/byte]."""
        count, waiting = len(self._again_s), np.array(self._waiting)
        units = UNITS / max(self.work_s + price * (self._bytes.sum() + waiting.sum()), 1e-300)
        cost = np.concatenate((price * self._bytes - self._again_s, price * waiting)) * units
        cost[:count] -= FEWER
        columns = np.arange(len(cost), dtype=np.int32)
        self._solver.changeColsCost(len(cost), columns, cost)
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self._solver.clearSolver()  # the basis of another price may mislead it
            self._solver.run()
        here = np.ones(count, dtype=bool)  # what is not computed again
        if self._solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            here = self._fixed | (np.asarray(self._solver.getSolution().col_value)[:count] > 0.5)
        column, maker, reader = self._rows.T
        crosses = np.zeros(len(cost), dtype=bool)
        crosses[column[here[maker] & ~here[reader]]] = True
        kept = float(self._bytes[here].sum() + waiting[crosses[count:]].sum())
        nodes = [node for node, stays in zip(self.layer.nodes, here, strict=True) if not stays]
        return Choice(self.layer.keys(nodes), float(self._again_s[~here].sum()), kept)
