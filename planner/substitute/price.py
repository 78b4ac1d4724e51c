"""What a program costs once it is split well: a quick plan on one mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel import Cluster
from ir import Graph, Mesh

from ..mesh_search import MeshSearch
from ..options import Options
from ..program import program_of
from ..search import Search


@dataclass(frozen=True)
class Pricer:
    """Plans rewritten programs on one mesh, without a proof.

    ties, donated: of the program as it was traced, in positions of the graph's inputs.
    """

    machine: Cluster
    options: Options
    mesh: Mesh
    ties: tuple[tuple[int, int], ...]
    donated: frozenset[int]

    def step_s(self, graph: Graph) -> float:
        """Predicted seconds of a step; infinite if no plan was found that fits."""
        program = program_of(graph, self.ties, self.donated, self.options)
        options = replace(self.options, cache=False, baselines=False, baseline=None)
        search = Search(program, self.machine, options, lambda _: None)
        found = MeshSearch(search.scope, self.mesh).rough()
        return float("inf") if found is None else found.account.step_s
