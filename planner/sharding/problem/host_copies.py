"""Copies between a device and its host: which compute they run beside, and what shows of them.

Copies run on engines of their own, one for each direction, so that they take no time of compute or
of collectives. A copy to the host starts once its value is made, one from the host with the body of
its loop or with the program, and ends before its result is read. Of a copy of n seconds that has L
seconds of compute beside it

    exposed = max(0, n - L)

Copies of one body and direction share its compute C in proportion to their bytes, so that L is the
least of C b / sum b and of the compute that neither leads to the copy nor follows from it.

Values that no loop makes come back in regions that hold nothing else. The two passes of a stage are
programs of their own, and in one program the first of these regions waits for all that is sent; so
a copy to the host has the compute before that beside it, and a copy back the compute behind.

Source: XLA, xla/service/latency_hiding_scheduler.cc: copies to and from the host are asynchronous,
and are started as early and awaited as late as their operands and readers allow.
"""

from __future__ import annotations

import numpy as np

from ir import FROM_HOST, HOST_COPIES, TO_HOST, Strategy
from ir.analysis import FlatProgram, Place

from ...solver.problem import Floats
from ..sorted_rows.value_numbers import node_at
from .records import MenuCache
from .skeleton import Outline


class HostCopies:
    """The copies of a program on one mesh.

    Args:
        outline: outline of the problem.
        least_s: least seconds of an op of each node, of one run; None where nothing runs beside
            compute.
        cache: prices on the mesh.
    """

    def __init__(self, outline: Outline, least_s: Floats | None, cache: MenuCache) -> None:
        self.flat, self.cache = outline.facts.flat, cache
        self.beside_s = {} if least_s is None else _beside_s(outline, least_s)

    def seconds(self, i: int, menu: tuple[Strategy, ...]) -> Floats:
        """Seconds of one run of a copy under each of its strategies.

        Args:
            i: the flat op.
            menu: the strategies.
        """
        return self.cache.compute.host_copy_s(self.flat.ops[i].node.op, self.nbytes(i, menu))

    def exposed_s(self, i: int, menu: tuple[Strategy, ...]) -> Floats:
        """The part of `seconds` that no compute runs beside."""
        return np.maximum(self.seconds(i, menu) - self.beside_s.get(i, 0.0), 0.0)

    def nbytes(self, i: int, menu: tuple[Strategy, ...]) -> Floats:
        """Bytes of one run of a copy on one device under each of its strategies."""
        (type_,), mesh = self.flat.ops[i].node.outputs, self.cache.mesh
        return np.array([float(s.results[0].local_bytes(type_, mesh)) for s in menu])


def _beside_s(outline: Outline, least_s: Floats) -> dict[int, float]:
    """Seconds of compute beside which each copy may run, of one run: flat op -> L."""
    flat, windows = outline.facts.flat, outline.windows
    copies = [i for i, op in enumerate(flat.ops) if op.node.op in HOST_COPIES]
    if not copies:
        return {}
    together = windows.beside_s(least_s), windows.body_s(least_s)
    begins = _second_programs(flat)
    apart = {
        op: (windows.beside_s(part), windows.body_s(part))
        for op, part in _of_passes(outline, least_s, begins).items()
    }
    at = {(p.op, p.site.at): n for n, p in enumerate(flat.passages) if p.op >= 0}
    rows: list[tuple[int, tuple[int, str], float, int]] = []
    total: dict[tuple[int, str], float] = {}
    for i in copies:
        op = flat.ops[i]
        site = "operand" if op.node.op == TO_HOST else "result"
        number = at.get((i, site))
        if number is None:  # of a value made of literals
            continue
        key = int(windows.whole[number]), op.node.op
        size = float(op.node.outputs[0].nbytes)
        rows.append((i, key, size, number))
        total[key] = total.get(key, 0.0) + size
    found: dict[int, float] = {}
    for i, key, size, n in rows:
        body = windows.body[int(windows.passage[n])]
        beside_s, body_s = apart[key[1]] if body in begins else together
        share_s = float(body_s[n]) * size / total[key] if total[key] else 0.0
        found[i] = min(float(beside_s[n]), share_s)
    return found


def _second_programs(flat: FlatProgram) -> dict[Place, int]:
    """Bodies whose passes are programs of their own -> the moment at which the second begins."""
    found: dict[Place, int] = {}
    for op in flat.ops:
        if op.node.op == FROM_HOST and len(op.place) > 2:
            region = node_at(flat.graph, op.place[:-2])
            if region.op == "remat" and all(n.op == FROM_HOST for n in region.bodies[0].nodes):
                found.setdefault(op.place[:-3], op.time)
    return found


def _of_passes(outline: Outline, least_s: Floats, begins: dict[Place, int]) -> dict[str, Floats]:
    """For copies in each direction the least seconds of the ops that their program has."""
    if not begins:
        return {}
    first = np.zeros(len(least_s), dtype=bool)
    for i, node in outline.op_node.items():
        op = outline.facts.flat.ops[i]
        first[node] |= any(
            op.place[: len(place)] == place and op.time < time for place, time in begins.items()
        )
    return {TO_HOST: np.where(first, least_s, 0.0), FROM_HOST: np.where(first, 0.0, least_s)}
