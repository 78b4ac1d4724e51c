"""Borders that ops exchange before they run, beside compute that neither leads to them nor follows.

The permutes of an op that slides along a split dimension wait for its operand only. Of the n
seconds of all of them, with L seconds of other compute beside the way from the operand's maker, and
k ops that slide and read the same operand, one of which exchanges at a time,

    hidden = min(n, i L / k) / i        exposed = n - hidden

with i the factor by which they slow that compute down, as of collectives between ops. The gradient
of a convolution by its kernel is beside most of the backward pass, so that its borders are hidden;
those of a convolution on the longest way through the program are not. What is hidden is taken from
the compute of the window, since nothing else runs beside it.

Source: XLA, xla/service/latency_hiding_scheduler.cc; measured on its schedules for 8 H100s,
`tests/planner/sharding/cost/test_border_exchanges.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from costmodel import INTERFERENCE, Borders, hops_of
from ir import SLIDING, Strategy, slides
from ir.analysis import operand_types

from ...solver.problem import Floats
from .records import MenuCache
from .skeleton import Outline


class BorderExchanges:
    """The borders that the ops of a program exchange on one mesh.

    Args:
        outline: outline of the problem.
        beside_s: seconds of compute beside each passage, of one run; None where nothing runs beside
            compute.
        cache: prices on the mesh.
    """

    def __init__(self, outline: Outline, beside_s: Floats | None, cache: MenuCache) -> None:
        self.facts, self.cache, self.node = outline.facts, cache, outline.op_node
        self.members = outline.members
        self.exchanging: dict[int, Floats] = {}  # node -> seconds of all runs of its op
        self.alone = beside_s is None
        self.least_s = {} if beside_s is None else _least_s(outline, beside_s)

    def beside_s(self, i: int) -> float:
        """Seconds of compute beside the borders of a flat op, the least of ops that are alike."""
        return self.least_s.get(self.node.get(i, -1), 0.0)

    def seconds(self, i: int, menu: tuple[Strategy, ...]) -> Floats:
        """Seconds of all permutes of one run of a flat op, under each of its strategies."""
        op, spec = self.facts.flat.ops[i], self.facts.spec(self.facts.flat.ops[i])
        hops = hops_of(spec, menu, self.cache.reshard, overlap=True)
        if hops is None:
            return np.zeros(len(menu))
        ways = self.cache.parts(spec, menu)
        return Borders(op.node, operand_types(self.facts.flat, op), spec, ways, len(menu)).seconds(
            hops
        )

    def hidden_s(self, i: int, seconds: Floats) -> Floats:
        """The part of the seconds of a flat op's permutes that compute hides."""
        return np.minimum(seconds, INTERFERENCE * self.beside_s(i)) / INTERFERENCE

    def shown(self, node: int, i: int, menu: tuple[Strategy, ...], cost: Floats) -> Floats:
        """The cost of the op of a node, less what compute hides of the borders it may exchange.

        Args:
            node: number of the node, one of whose ops is i.
            i: the flat op.
            menu: its strategies.
            cost: its seconds under each of them, with all of its borders, all runs together.
        """
        op, known = self.facts.flat.ops[i], self.cache.vectors
        if self.alone or op.node.op not in SLIDING or not self.facts.spec(op).joint:
            return cost
        key = "borders", id(cost), id(menu)
        if key not in known:
            known[key], known["keep", *key] = self.seconds(i, menu), cost
        seconds = known[key]
        enough = INTERFERENCE * self.beside_s(i) >= seconds.max(initial=0.0)
        shown = "shown", *key, np.inf if enough else self.beside_s(i)
        if shown not in known:
            known[shown] = cost - self.hidden_s(i, seconds) * op.weight
        self.exchanging[node] = seconds * op.weight
        return known[shown]

    def busy(self, work: Sequence[Floats]) -> list[Floats]:
        """Seconds in which each node has compute beside which other collectives may run.

        Args:
            work: costs of the nodes, those of all members together.
        """
        found = list(work)
        for node, seconds in self.exchanging.items():
            spent = np.where(np.isfinite(seconds), seconds * self.members[node], 0.0)
            found[node] = np.maximum(work[node] - spent, 0.0)  # infinite where links send nothing
        return found


def _least_s(outline: Outline, beside_s: Floats) -> dict[int, float]:
    """Seconds of compute beside the borders of each node of ops that slide: node -> L / k."""
    flat, found = outline.facts.flat, dict[int, float]()
    moving: dict[int, set[int]] = {}
    back = set[int]()
    for i, op in enumerate(flat.ops):
        if op.node.op in SLIDING and i in outline.op_node:
            each = slides(op.node, operand_types(flat, op))
            values = {op.inputs[k] for one in each for k in one.operands}
            if each and all(isinstance(v, int) for v in values):
                moving[i] = {v for v in values if isinstance(v, int)}
                back.update([i] if any(one.returns for one in each) else [])
    if not moving:
        return {}
    readers = Counter(v for values in moving.values() for v in values)
    for number, passage in enumerate(flat.passages):
        i = passage.op
        if i not in moving:
            continue
        reads = passage.site.at == "operand" and passage.value in moving[i]
        if reads or (passage.site.at == "result" and i in back):
            node = outline.op_node[i]
            share_s = float(beside_s[number]) / max(readers[v] for v in moving[i])
            found[node] = min(found.get(node, np.inf), share_s)
    return found
