"""What the estimate leaves out of the plan of a program as written, at each place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ir import Graph, Literal
from ir.analysis import Place as NodePlace
from substitutions import Place

from ..search.context import Candidate
from .estimate import Estimator


@dataclass(frozen=True)
class LeftOut:
    """Seconds of a plan that an estimate knows nothing of: waiting, and work that devices repeat.

    best: the plan.
    estimator: of even shares of work.
    """

    best: Candidate
    estimator: Estimator

    def seconds(self, graph: Graph, places: Iterable[Place]) -> float:
        """The most that rewriting some places may save of it, as a rule.

        That is what compute waits for collectives of the values that their nodes read or make, and
        what these nodes take beyond even shares.

        Args:
            graph: the program as written.
            places: in it.
        """
        built, choice = self.best.built, self.best.decided.choice
        flat, total, touched = self.best.builder.flat, 0.0, set[tuple[NodePlace, int]]()
        for place in places:
            inner = graph
            for at, body in zip(place.prefix[::2], place.prefix[1::2], strict=True):
                inner = inner.nodes[at].bodies[body]
            for n in place.nodes:
                node = inner.nodes[n]
                reads = (v for v in node.inputs if not isinstance(v, Literal))
                touched |= {(place.prefix, v) for v in (*reads, *inner.values_of(n))}
                i = self._op_at.get((*place.prefix, n))
                if i is None or i not in built.op_node:
                    continue
                row = built.op_node[i]
                seconds = float(built.work[row][choice[row]]) / built.outline.members[row]
                share_s = self.estimator.node_s(node, tuple(map(inner.type_of, node.inputs)))
                total += max(0.0, seconds - share_s * flat.ops[i].weight)
        return total + sum(self._waits_s.get(value, 0.0) for value in touched)

    @cached_property
    def _op_at(self) -> dict[NodePlace, int]:
        return {op.place: i for i, op in enumerate(self.best.builder.flat.ops)}

    @cached_property
    def _waits_s(self) -> dict[tuple[NodePlace, int], float]:
        moved = defaultdict[int, float](float)
        pairs = zip(self.best.decided.plan.reshards, self.best.account.exposed, strict=True)
        for reshard, seconds in pairs:
            moved[reshard.passage.value] += seconds
        return {name: moved[v] for name, v in self.best.builder.flat.names.items() if v in moved}
