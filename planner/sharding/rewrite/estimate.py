"""Seconds of a program if everything in it could be split evenly: a quick test for rewrites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from costmodel import Cluster, CollectiveModel, ComputeModel, Group, OpWork, group_for, op_seconds
from costmodel.compiler import is_fused
from ir import Graph, Literal, Node, TensorType, lookup, runs_of


@dataclass
class Estimator:
    """Adds up products, convolutions, lookups, and the operands that are written for them.

    Elementwise chains between them are taken to be free, as they move along with a rewrite. The
    estimate knows nothing of communication.
    """

    cluster: Cluster
    compute: ComputeModel
    collectives: CollectiveModel
    known: dict[object, float] = field(default_factory=dict[object, float])
    totals: dict[str, float] = field(default_factory=dict[str, float])

    def seconds(self, graph: Graph) -> float:
        """Seconds on all devices together, kernel starts on each."""
        fused = [is_fused(node) for node in graph.nodes]
        needed: set[int | Literal] = set()
        for node, within in zip(graph.nodes, fused, strict=True):
            if not within:
                needed.update(node.inputs)
        total = 0.0
        for node, first, within in zip(graph.nodes, graph.first_value, fused, strict=True):
            if node.bodies:
                parts = [self._body(body) for body in node.bodies]
                total += runs_of(node) * (max(parts) if node.op == "cond" else sum(parts))
            elif not within or not needed.isdisjoint(range(first, first + len(node.outputs))):
                total += self.node_s(node, tuple(graph.type_of(o) for o in node.inputs))
        return total

    def _body(self, graph: Graph) -> float:
        """The same of a body; equal ones, such as those of layers, are gone through once."""
        if graph.digest not in self.totals:
            self.totals[graph.digest] = self.seconds(graph)
        return self.totals[graph.digest]

    def most_s(self, graph: Graph, nodes: Iterable[int]) -> tuple[float, float]:
        """What some nodes can cost at most: computing, and one exchange of all they touch.

        Args:
            graph: that they are in.
            nodes: their numbers.
        """
        work, touched = 0.0, set[int]()
        for i in nodes:
            node = graph.nodes[i]
            work += self.node_s(node, tuple(graph.type_of(o) for o in node.inputs))
            touched |= {o for o in node.inputs if not isinstance(o, Literal)}
            touched |= set(graph.values_of(i))
        moved = sum(graph.types[v].nbytes for v in touched)
        return work, self.collectives.seconds("all-reduce", self._all, float(moved))

    @property
    def _all(self) -> Group:
        return group_for(self.cluster, (self.cluster.num_devices,), (0,))

    def node_s(self, node: Node, types: tuple[TensorType, ...]) -> float:
        """Seconds of an op in a device's even share, with the start of its kernel."""
        key = (node.op, types, node.outputs, repr(node.attrs))
        if key not in self.known:
            record = lookup(node.op)
            spec = record.factors(types, node.outputs, dict(node.attrs))
            ways: Mapping[str, np.ndarray] = {name: np.ones(1) for name in spec.names}
            everything = tuple(range(len(types))), tuple(range(len(node.outputs)))
            work = OpWork(node, record, types, spec, *everything, 0)
            whole = float(np.max(op_seconds(work, ways, self.compute)))
            starts = 0.0 if is_fused(node) else self.compute.launch_s
            self.known[key] = whole / self.cluster.num_devices + starts
        return self.known[key]
