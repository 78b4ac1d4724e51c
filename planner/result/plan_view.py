"""What a plan says: everything that is read off its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from costmodel import Cluster
from ir import Graph, Mesh
from ir.analysis import Decisions
from ir.trace import Traced

from ..common.errors import PlanError
from ..common.stop import Stop
from ..common.surface import public_methods
from ..files.plan_file import PlanFile
from ..files.program_plan import ProgramPlan
from ..inspect.analysed_plan import AnalysedPlan, analyse_plan
from ..pipeline.file_schedule import priced_of
from ..pipeline.schedule import Priced
from ..pipeline.stage_planner import BoundStages
from ..sharding.cost.account import Collective
from ..sharding.search.baselines import Baseline
from .stage import Stage


@public_methods
@dataclass(frozen=True)
class PlanView:
    """A plan as its file says it; `Plan` also runs.

    bound: the function that was planned; None for a plan from a file.
    cached: the plans of all stages were found in the plan store and not searched.
    """

    file: PlanFile
    bound: Traced | BoundStages | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    where: str = "plan"
    cached: bool = False

    @property
    def step_s(self) -> float:
        """Predicted seconds of one call; of several stages simulated."""
        return self.file.whole.step_s

    @property
    def peak_bytes(self) -> float:
        """Predicted peak memory of the fullest device."""
        return self.file.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit; a plan that does not fit is not returned."""
        return self.file.fits

    @property
    def lower_bound_s(self) -> float:
        """No plan of the searched space is faster, by the same cost model.

        Where a program was large and repeats itself, that space has the plans that shard its
        repeated layers alike (`decided_operations` is less than `operations` in the summary). Of a
        plan in stages it is the work of a step, at best, on all devices: of the numbers of
        micro-batches that the search looked at, of the program as it is written and, where stages
        are rewritten, of theirs; 0 if nothing is known. See `planner.sharding.cost.least_seconds`.
        """
        return self.file.whole.lower_bound_s

    @property
    def gap(self) -> float:
        """(step - bound) / step."""
        return self.file.gap

    @property
    def stop(self) -> Stop:
        """Why the search ended."""
        return self.file.stop

    @property
    def mesh(self) -> Mesh:
        """The mesh of the first stage; each has its own, see `stages`."""
        return Mesh(self.file.members[0].mesh)

    @property
    def microbatches(self) -> int:
        return self.file.whole.microbatches

    @property
    def schedule(self) -> str:
        return self.file.schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Slots of the program, devices, mesh and cost of every stage."""
        return tuple(
            Stage(s.layers, s.devices, dict(program.mesh), s.step_s, s.peak_bytes, s.recompute)
            for s, program in zip(self.file.stages, self.file.members, strict=True)
        )

    @property
    def baselines(self) -> dict[str, Baseline]:
        """Hand-written plans, and one program beside stages, priced by the same cost model."""
        return {
            name: Baseline(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in self.file.whole.baselines.items()
        }

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of one call on one device of each stage, its dearest first."""
        return tuple(
            Collective(c.kind, c.axes, c.group_size, c.bytes, c.count, c.seconds, c.cause)
            for c in self.file.collectives
        )

    @property
    def substitutions(self) -> dict[str, int]:
        """Proven rules that the program was rewritten by, and how often each was applied.

        In stages they are applied to a micro-batch.
        """
        return self.file.substitutions

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.file.whole.warnings

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.from_dict(self.file.whole.cluster, where=self.where)

    @cached_property
    def simulated(self) -> Priced:
        """The step of a plan in stages, simulated from its costs, beside other schedules.

        Raises:
            PlanError: if the plan is of one program.
        """
        return priced_of(self.file)

    @property
    def program(self) -> ProgramPlan:
        """What is decided of the one program.

        Raises:
            PlanError: if the plan is in stages.
        """
        return self.analysed.program

    @property
    def decisions(self) -> Decisions:
        """The decisions of the one program."""
        return self.analysed.decisions

    @cached_property
    def graph(self) -> Graph:
        """The graph of the one program."""
        return self.bound.graph if isinstance(self.bound, Traced) else self.analysed.graph

    @cached_property
    def analysed_programs(self) -> tuple[AnalysedPlan, ...]:
        """The search space around the plan of each distinct program."""
        return tuple(analyse_plan(program, self.where) for program in self.file.programs)

    @property
    def analysed(self) -> AnalysedPlan:
        """The search space around the plan of the one program.

        Raises:
            PlanError: if the plan is in stages.
        """
        if self.file.in_stages:
            raise self._in_stages()
        return self.analysed_programs[0]

    def _in_stages(self) -> PlanError:
        """Why something cannot be had of a plan in stages."""
        return PlanError(
            "is a plan in stages, which this cannot show", kind="pipeline", where=self.where,
            remedy="load it in Python; each of its stage_plans is a plan in one program",
        )  # fmt: skip
