"""What the searches on all meshes share: records of their scope, effort and outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from costmodel import CollectiveModel, ComputeModel
from ir import Mesh
from ir.analysis import Decisions

from ...common.request import Request
from ...common.store.keys import Memory
from ...solver.options import SolveOptions
from ...solver.problem import IntraSolution
from ..cost.account import Account, account
from ..lower import Decided
from ..problem.build import Builder
from ..problem.program import Program
from ..problem.records import Built, Menus
from .mesh_shapes import MOST_AXES

WORTH = 1e-3


@dataclass(frozen=True)
class Effort:
    """How far a search goes.

    first: the first solve on a mesh.
    axes: of meshes that are looked at.
    """

    first: SolveOptions = field(default_factory=SolveOptions)
    axes: int = MOST_AXES


THOROUGH = Effort()


@dataclass
class Scope:
    """What the searches on all meshes share, and what they learn.

    memory: the plan store, where solved problems are looked up.
    menus: on the meshes of the cluster.
    seconds: spent building and solving.
    late: some search was cut short.
    least: smallest peaks of meshes on which nothing fits [byte].
    blocked: argument -> mesh on which its pins leave no sharding.
    beaten: some mesh was left because it has no plan faster than one that there is.
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
    least: list[float] = field(default_factory=list[float])
    blocked: dict[str, str] = field(default_factory=dict[str, str])
    beaten: bool = False


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
        """What the choice stands for."""
        return self.decided.plan.decisions
