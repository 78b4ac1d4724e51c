"""The figures and decisions of a plan, read from its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from costmodel import Cluster
from ir import Graph, Mesh
from ir.analysis import Decisions
from ir.trace import Traced

from .. import pipeline
from ..common.errors import PlanError
from ..common.stop import Stop
from ..common.surface import public_methods
from ..files.plan_file import PlanFile
from ..files.program_plan import ProgramPlan
from ..inspect.analysed_plan import AnalysedPlan, analyse_plan
from ..sharding.cost.account import Collective
from ..sharding.search.baselines import Baseline
from .stage import Stage


@public_methods
@dataclass(frozen=True)
class PlanView:
    """The contents of a plan; `Plan` also runs it.

    file: the contents of its plan file.
    bound: the planned function; None for a plan from a file.
    seconds: time spent by each pass [s].
    where: name of the plan in errors.
    cached: whether all its programs came from the plan store.
    """

    file: PlanFile
    bound: Traced | pipeline.BoundStages | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    where: str = "plan"
    cached: bool = False

    @property
    def step_s(self) -> float:
        """Predicted time of one call [s]; simulated for a plan in stages."""
        return self.file.whole.step_s

    @property
    def peak_bytes(self) -> float:
        """Predicted peak memory of the fullest device [bytes]."""
        return self.file.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit; a plan that does not fit is not returned."""
        return self.file.fits

    @property
    def lower_bound_s(self) -> float:
        """Lower bound of the step of every plan in the search space, by the same cost model [s].

        In large programs with repeated layers, that space has the plans that shard these layers
        alike (`decided_operations` is then less than `operations` in the summary). For a plan in
        stages the bound is the least compute of a step over all devices, for the numbers of
        micro-batches searched, with and without rewrites; 0 if unknown. See
        `planner.sharding.cost.least_seconds`.
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
        """Layers, devices, mesh and cost of every stage."""
        return tuple(
            Stage(s.layers, s.devices, dict(program.mesh), s.step_s, s.peak_bytes, s.recompute)
            for s, program in zip(self.file.stages, self.file.members, strict=True)
        )

    @property
    def baselines(self) -> dict[str, Baseline]:
        """Known layouts priced by the same cost model; for a plan in stages also one program."""
        return {
            name: Baseline(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in self.file.whole.baselines.items()
        }

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of one call on one device of each stage, the slowest first."""
        return tuple(
            Collective(
                c.kind, c.axes, c.group_size, c.bytes, c.count, c.seconds, c.cause, c.exposed_s
            )
            for c in self.file.collectives
        )

    @property
    def substitutions(self) -> dict[str, int]:
        """Rule -> number of places that it rewrote in the program (in stages: in a micro-batch)."""
        return self.file.substitutions

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.file.whole.warnings

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.from_dict(self.file.whole.cluster, where=self.where)

    @cached_property
    def simulated(self) -> pipeline.schedule.Priced:
        """The simulated step of a plan in stages, with other schedules for comparison.

        Raises:
            PlanError: if the plan is of one program.
        """
        return pipeline.file_schedule.priced_of(self.file)

    @property
    def program(self) -> ProgramPlan:
        """The plan of the one program.

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
        found = tuple(analyse_plan(program, self.where) for program in self.file.programs)
        if isinstance(self.bound, Traced) and self.bound.text == found[0].program.graph:
            found[0].graph = self.bound.graph
        return found

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
        """The error of members that only plans of one program have."""
        return PlanError(
            "is a plan in stages, which this cannot show", kind="pipeline", where=self.where,
            remedy="load it in Python; each of its stage_plans is a plan in one program",
        )  # fmt: skip
