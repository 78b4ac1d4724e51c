"""What the estimate leaves out of the plan of a program as written, at each place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ir import Graph, Literal, runs_of
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
        total, touched = 0.0, set[tuple[NodePlace, int]]()
        for place in places:
            inner, runs = graph, 1.0
            for at, body in zip(place.prefix[::2], place.prefix[1::2], strict=True):
                runs *= runs_of(inner.nodes[at])
                inner = inner.nodes[at].bodies[body]
            for n in place.nodes:
                node = inner.nodes[n]
                reads = (v for v in node.inputs if not isinstance(v, Literal))
                touched |= {(place.prefix, v) for v in (*reads, *inner.values_of(n))}
                seconds = self.best.op_s((*place.prefix, n))
                if seconds is not None:
                    share_s = self.estimator.node_s(node, tuple(map(inner.type_of, node.inputs)))
                    total += max(0.0, seconds - share_s * runs)
        return total + sum(self.best.waits_s.get(value, 0.0) for value in touched)
