"""Records shared by the searches on all meshes: scope, effort and outcome."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from costmodel import CollectiveModel, ComputeModel
from ir import Mesh
from ir.analysis import Decisions, Place

from ...common.request import Request
from ...common.stop import Stop
from ...common.store.keys import Memory
from ...common.units_text import seconds_text
from ...solver.budget import DEFAULT
from ...solver.options import SolveOptions
from ...solver.problem import IntraProblem, IntraSolution, Point
from ...solver.work import Work
from ..cost.account import Account, account
from ..lower import Decided
from ..problem.build import Builder
from ..problem.program import Program
from ..problem.records import Built, Menus
from .mesh_shapes import MOST_AXES

WORTH = 1e-3
# Columns that all solves of one search may pass over before each does the least only: Llama-3 8B on
# 64 H100 takes 7e9, and 25 s of a processor.
MOST_WORK = 5e10


@dataclass(frozen=True)
class Effort:
    """The effort of a search.

    first: budget of the first solve on a mesh.
    axes: greatest number of mesh axes.
    """

    first: SolveOptions = field(default_factory=SolveOptions)
    axes: int = MOST_AXES


THOROUGH = Effort()
# Of a program that computes less again than the one as written: where memory binds, 0/1 programmes
# add little. Llama-3 70B on 64 H100 takes 3.5 s of processor time on its best mesh for a step of
# 3.764 s, with the budget of `THOROUGH` 55 s for one of 3.767.
BESIDE = Effort(
    SolveOptions(budget=replace(DEFAULT, exact_if_memory_binds=False, combined_columns=0.0))
)


@dataclass
class Scope:
    """State shared by the searches on all meshes.

    memory: the plan store, with solved problems.
    menus: menus on the meshes of the cluster.
    seconds: seconds spent building and solving.
    late: whether the time limit cut some search short.
    work: work of all solves together.
    least: smallest peaks of meshes on which nothing fits [byte].
    blocked: argument -> mesh on which its pins leave no sharding.
    beaten: whether a mesh was left because it has no plan faster than a known one.
    multipliers: of windows of overlap, on the last mesh.
    moments: at which plans found so far exceeded the limit, though memory was not watched then.
    best_s: least step so far [s], infinite before there is one.
    """

    program: Program
    request: Request
    limit: float
    collectives: CollectiveModel
    compute: ComputeModel
    deadline: float
    memory: Memory
    effort: Effort
    menus: Menus = field(default_factory=Menus)
    seconds: dict[str, float] = field(default_factory=lambda: {"build": 0.0, "solve": 0.0})
    late: bool = False
    work: Work = field(default_factory=lambda: Work(MOST_WORK))
    least: list[float] = field(default_factory=list[float])
    blocked: dict[str, str] = field(default_factory=dict[str, str])
    beaten: bool = False
    multipliers: tuple[tuple[int, float], ...] = ()
    moments: set[int] = field(default_factory=set[int])
    best_s: float = float("inf")

    def say(self, what: str, best_s: float = float("inf"), bound_s: float = 0.0) -> None:
        """Tells what is searched now, and the best step so far.

        Args:
            what: such as a mesh.
            best_s: a step that was found just now [s].
            bound_s: lower bound of the steps of all plans of what is searched [s].
        """
        self.best_s = best = min(self.best_s, best_s)
        if best == float("inf"):
            self.request.say(what)
        elif 0.0 < bound_s < best:
            gap = (best - bound_s) / best
            self.request.say(f"{what}: best step {seconds_text(best)}, gap {gap:.2%} there")
        else:
            self.request.say(f"{what}: best step {seconds_text(best)}")

    @property
    def first(self) -> SolveOptions:
        """Options of the first solve on a mesh."""
        return replace(self.effort.first, interruptible=self.request.interruption.keeps)

    def note(self, stop: Stop) -> None:
        """Notes what cut a first solve short."""
        self.late |= stop is Stop.TIME_LIMIT
        self.request.interruption.happened |= stop is Stop.INTERRUPTED

    def watch(self, mesh: Mesh, problem: IntraProblem) -> Callable[[Point], None]:
        """Receiver of better steps and bounds of a problem on a mesh, which tells them.

        With windows of overlap, the solver's points hold bounds of the step, but no steps.
        """
        if any(edge.hidden is not None for edge in problem.edges):
            return lambda point: self.say(f"mesh {mesh}", bound_s=point[2])
        return lambda point: self.say(f"mesh {mesh}", point[1], point[2])

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline

    @property
    def ending(self) -> bool:
        """Whether the time or the work is used up."""
        return self.work.exhausted or self.out_of_time


@dataclass(frozen=True)
class Candidate:
    """A solved mesh shape (or baseline on it)."""

    name: str
    decided: Decided
    solution: IntraSolution

    @property
    def builder(self) -> Builder:
        return self.decided.builder

    @property
    def built(self) -> Built:
        return self.decided.built

    @property
    def mesh(self) -> Mesh:
        return self.builder.mesh

    @cached_property
    def account(self) -> Account:
        """Every collective, second and byte of the plan."""
        return account(self.decided)

    @property
    def decisions(self) -> Decisions:
        """The decisions of the choice."""
        return self.decided.plan.decisions

    def op_s(self, place: Place) -> float | None:
        """Seconds of an op in a step; None if the problem has no node for it."""
        node = self.built.op_node.get(self._op_at.get(place, -1))
        if node is None:
            return None
        return (
            float(self.built.work[node][self.decided.choice[node]])
            / (self.built.outline.members[node])
        )

    @cached_property
    def waits_s(self) -> dict[tuple[Place, int], float]:
        """Seconds in which compute waits for the reshards of each value that has some, by name."""
        found = defaultdict[int, float](float)
        for reshard, seconds in zip(self.decided.plan.reshards, self.account.exposed, strict=True):
            found[reshard.passage.value] += seconds
        return {name: found[v] for name, v in self.builder.flat.names.items() if v in found}

    @cached_property
    def _op_at(self) -> dict[Place, int]:
        return {op.place: i for i, op in enumerate(self.builder.flat.ops)}
