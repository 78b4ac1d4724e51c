"""Sums over every possible stage, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .convention import Convention
from .downset_lattice import Lattice, lattice
from .graph import LayerGraph
from .problem import Problem
from .recompute import Selections, choices, mask, selections

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Option:
    """Stages on one device kind at one degree, by selection of layers that recompute.

    All [stages, selections], of one micro-batch on one replica; `forward_s` is infinite where a
    selection is not possible.
    """

    forward_s: Floats
    backward_s: Floats
    flight_bytes: Floats
    fixed_bytes: Floats


class Tables:
    """Everything that the price of a stage needs, for all stages of a problem.

    recompute: which selections are considered: `exact`, `greedy` (Piper's), `none`, `full`, or
        `either` (all layers or none).
    """

    def __init__(
        self, problem: Problem, convention: Convention, degrees: Sequence[int], recompute: str
    ) -> None:
        self.problem, self.convention, self.recompute = problem, convention, recompute
        self.graph = problem.graph
        self.degrees = tuple(d for d in problem.degrees if d in degrees)
        self.lattice: Lattice = lattice(self.graph)
        self.stages = self.lattice.stages
        self.kinds = tuple(dict.fromkeys(host.kind for host in problem.machine.hosts))
        self.selections = {degree: self._selections(degree) for degree in self.degrees}

    @cached_property
    def exact(self) -> bool:
        """Whether no selection that matters was left out."""
        return all(found.exact for found in self.selections.values())

    def _selections(self, degree: int) -> Selections:
        graphs = {kind: self.problem.graphs[kind] for kind in self.kinds}
        if self.recompute in ("exact", "greedy"):
            return selections(graphs, degree, greedy=self.recompute == "greedy")
        every = tuple(range(len(self.graph.layers)))
        able = all(
            "full" in choices(graph.layers[v].at(degree))
            for graph in graphs.values()
            for v in every
        )
        counts = {"none": (0,), "full": (len(every),), "either": (0, len(every))}[self.recompute]
        kept = tuple(count for count in counts if able or not count)
        return Selections(tuple((((every, count)),) for count in kept), exact=False)

    @cached_property
    def options(self) -> dict[tuple[str, int], Option]:
        """By device kind and degree."""
        return {
            (kind, degree): self._option(self.problem.graphs[kind], degree)
            for kind in self.kinds
            for degree in self.degrees
        }

    def _option(self, graph: LayerGraph, degree: int) -> Option:
        found = self.selections[degree]
        scale = self.problem.scale
        rows = np.zeros((2, 5, len(graph.layers)))
        for v, layer in enumerate(graph.layers):
            by = choices(layer.at(degree))
            plain = by.get("none") or by["full"]
            for row, variant in enumerate((plain, by.get("full") or plain)):
                stash = variant.parameter_bytes if self.convention.stashes else 0.0
                rows[row, :, v] = (
                    variant.forward_s * scale, variant.backward_s * scale,
                    variant.flight_bytes * scale, variant.fixed_bytes, stash,
                )  # fmt: skip
        shape = (len(self.stages), len(found.chosen))
        sums = np.zeros((5, *shape))
        inside = self.stages.astype(np.float64)
        base: Floats = inside @ rows[0].T
        for j in range(shape[1]):
            again, possible = mask(found, j, self.stages)
            extra: Floats = again.astype(np.float64) @ (rows[1] - rows[0]).T
            sums[:, :, j] = (base + extra).T
            sums[0, ~possible, j] = np.inf
        return Option(sums[0], sums[1], sums[2] + sums[4], sums[3])

    @cached_property
    def weights(self) -> dict[int, Floats]:
        """Gradient bytes of each stage by degree."""
        found: dict[int, Floats] = {}
        for degree in self.degrees:
            row = [layer.at(degree)[0].parameter_bytes for layer in self.graph.layers]
            found[degree] = self.stages.astype(np.float64) @ np.array(row)
        return found

    def edge_bytes(self, degree: int) -> tuple[Floats, Floats, Floats]:
        """Bytes of a micro-batch over edges of each stage: all with exchange, entering, leaving."""
        graph, scale = self.graph, self.problem.scale
        source = [edge.source for edge in graph.edges]
        target = [edge.target for edge in graph.edges]
        plain = np.array([edge.size_bytes for edge in graph.edges]) * scale
        into = plain + np.array([edge.into(degree) for edge in graph.edges]) * scale
        out = plain + np.array([edge.out(degree) for edge in graph.edges]) * scale
        if not graph.edges:
            nothing = np.zeros(len(self.stages))
            return nothing, nothing, nothing
        if graph.shared:
            enter, leave = self._once(plain)
            return enter + leave, enter, leave
        enters = self.stages[:, target] & ~self.stages[:, source]
        leaves = self.stages[:, source] & ~self.stages[:, target]
        return enters @ into + leaves @ out, enters @ plain, leaves @ plain

    def _once(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Bytes that enter and leave each stage, one tensor for each layer that sends."""
        enter = np.zeros(len(self.stages))
        leave = np.zeros(len(self.stages))
        for source in sorted({edge.source for edge in self.graph.edges}):
            edges = [i for i, edge in enumerate(self.graph.edges) if edge.source == source]
            inside = self.stages[:, [self.graph.edges[i].target for i in edges]]
            own = self.stages[:, source]
            enter += np.where(own, 0.0, (inside * sizes[edges]).max(axis=1))
            leave += np.where(own, (~inside * sizes[edges]).max(axis=1), 0.0)
        return enter, leave

    def late(self, kind: str, degree: int, replicas: int, ring: float) -> Floats:
        """Gradient exchange left after backward, if each layer's begins when it is ready.

        Layers finish backward from last to first; one ring at a time, each no earlier than its
        layer. Measured against backward without recomputation.
        """
        if replicas == 1:
            return np.zeros(len(self.stages))
        share = 2 * (replicas - 1) / replicas / ring
        clock = np.zeros(len(self.stages))
        busy = np.zeros(len(self.stages))
        graph = self.problem.graphs[kind]
        for v in range(len(graph.layers) - 1, -1, -1):
            variant = graph.layers[v].at(degree)[0]
            inside = self.stages[:, v]
            clock = clock + inside * (variant.backward_s * self.problem.scale / replicas)
            began = np.maximum(busy, clock)
            if variant.parameter_bytes:
                busy = np.where(inside, began + share * variant.parameter_bytes, busy)
        return np.maximum(busy - clock, 0.0)
