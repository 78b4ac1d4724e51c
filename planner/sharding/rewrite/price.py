"""What a program costs once it is split well: a quick plan on one mesh."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from costmodel import Cluster, ComputeModel
from ir import Graph, digest
from substitutions import Draft

from ...common.options import Options
from ...common.request import Request
from ..cost.account import Account
from ..problem.program import Programs
from ..search.context import Candidate
from ..search.mesh_shapes import mesh_of
from ..search.on_mesh import MeshSearch
from ..search.over_meshes import Search
from .local_menus import limits_near

# In programs of more ops than this, those further away from a change keep the strategy that they
# have in the plan.
SMALL, REACH = 64, 1


@dataclass(frozen=True)
class Pricer:
    """Plans rewritten programs on the mesh of a plan, without a proof.

    best: the plan of the program as it was traced.
    ties, donated: of that program, in positions of the graph's inputs.
    programs: programs that have been prepared.
    plans: found so far, by the digest of their program.
    """

    machine: Cluster
    options: Options
    best: Candidate
    ties: tuple[tuple[int, int], ...]
    donated: frozenset[int]
    programs: Programs = field(default_factory=Programs)
    plans: dict[str, Candidate] = field(default_factory=dict[str, Candidate])

    def step_s(self, draft: Draft) -> float:
        """Predicted seconds of a step as `wall_s` has them; infinite if no plan that fits is found.

        Args:
            draft: a rewritten program.
        """
        searcher = self._searcher(draft.graph)
        flat, known = searcher.scope.program.flat, self.best.decisions.ops
        large = len(flat.ops) > SMALL
        found = searcher.rough(limits_near(draft, flat, known, REACH) if large else None)
        if found is None:
            return float("inf")
        self.plans[digest(draft.graph)] = found
        return wall_s(found.account, self.machine)

    def anew(
        self,
        graph: Graph,
        cutoff_s: float = float("inf"),
        multipliers: tuple[tuple[int, float], ...] = (),
    ) -> Candidate | None:
        """A plan of a program all of whose strategies are chosen anew; None if none is found.

        Args:
            graph: the program.
            cutoff_s: step below which plans are wanted [s].
            multipliers: of windows, of such a plan of a similar program.
        """
        return self._searcher(graph).rough(cutoff_s=cutoff_s, multipliers=multipliers)

    def known(self, draft: Draft) -> tuple[Candidate, ...]:
        """The plan that a program was priced by."""
        found = self.plans.get(digest(draft.graph))
        return () if found is None else (found,)

    def on_one_axis(self, draft: Draft) -> Candidate | None:
        """A plan of the program as it was traced with all devices in one axis; None if none is.

        Args:
            draft: that program.
        """
        if len(self.best.mesh.axes) == 1:
            return self.best
        if self.options.mesh is not None:
            return None
        scope = self._searcher(draft.graph).scope
        return MeshSearch(scope, mesh_of((self.machine.num_devices,))).rough()

    def _searcher(self, graph: Graph) -> MeshSearch:
        alone = self.machine.num_devices == 1
        program = self.programs.of(graph, self.ties, self.donated, self.options, alone=alone)
        options = replace(self.options, cache=False, baselines=False, baseline=None)
        search = Search(program, Request(self.machine, options))
        # specs are known by their address, which is theirs only as long as their program lives
        cache = replace(self.best.builder.cache, forms={})
        return MeshSearch(search.scope, self.best.mesh, cache)


def wall_s(sums: Account, machine: Cluster) -> float:
    """Seconds of a step, with those in which a CPU device takes new memory for its temporaries.

    A plan's own step adds up operations and results; joined weights, say, are temporaries that live
    through the whole step, and may cost more than joining them saves.
    """
    taking_s = float(ComputeModel(machine).taking_s(sums.peak_bytes - sums.argument_bytes))
    return sums.step_s + max(0.0, taking_s - sums.taking_s)
