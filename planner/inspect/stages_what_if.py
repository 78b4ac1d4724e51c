"""Plans the stages of a plan with other devices, memory, links or schedules.

The cuts and the number of micro-batches stay. Each distinct stage is planned again as the search
for pipelines plans it, and so are those of the plan priced under the new conditions; the schedule
is simulated with either prices, and the shorter step is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from msgspec import structs

from costmodel import Cluster
from ir import IRError

from ..common.errors import PlanError
from ..common.options import Options
from ..common.request import Request
from ..common.resolved_pins import wishes_for
from ..common.stop import Stop
from ..files.plan_file import PlanFile, StageCost, StageRow, file_of
from ..files.program_plan import ProgramPlan
from ..pipeline.divide.refusal import refusal
from ..pipeline.divide.simulated import PipelineShape, Ranked, flights_of, ranked, table_of
from ..pipeline.divide.stage_price import StagePrice, price_of
from ..pipeline.filed_stage import FiledStage, filed_stage
from ..pipeline.schedule import check_pipelines, in_turns, turns_of
from ..sharding.cost.account import account
from ..sharding.lower import Decided
from ..sharding.problem.facts import Facts
from ..sharding.problem.in_flight import with_in_flight
from ..sharding.problem.program import InFlight, Program, roles_of
from ..sharding.search.asked import as_written
from ..sharding.search.context import Candidate
from ..sharding.search.found_to_file import outcome
from ..sharding.search.over_meshes import Search, SearchOutcome
from ..solver.problem import IntraSolution
from .analysed_plan import AnalysedPlan

SAME = 1e-6  # relative: seconds that were written and read
KEPT = ("stages and micro-batches are those of the plan that was asked about: others may be faster "
        "under these conditions")  # fmt: skip
NO_SINGLE = "was not planned, as the question is about the stages; plan anew to have both"
Priced = tuple[ProgramPlan, StagePrice]


@dataclass(frozen=True)
class Conditions:
    """What is different.

    cluster: all devices.
    limit_bytes: memory limit of a device.
    sizes: devices of each stage.
    """

    cluster: Cluster
    limit_bytes: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class FiledProgram:
    """A distinct program of stages in a plan.

    analysed: its plan.
    microbatches: in a step.
    """

    analysed: AnalysedPlan
    microbatches: int

    @cached_property
    def stage(self) -> FiledStage:
        """The program with its phases.

        Raises:
            PlanError: if it is not that of a stage.
        """
        analysed = self.analysed
        try:
            return filed_stage(analysed.graph, analysed.program.roles, self.microbatches)
        except IRError as error:
            raise PlanError(
                f"has a stage that cannot be read: {error}", kind="plan-file", where=analysed.where,
                remedy="make the plan again",
            ) from error  # fmt: skip

    def own(self, cluster: Cluster, held: InFlight | None = None) -> Candidate:
        """The plan's decisions on a cluster of as many devices.

        Args:
            cluster: the devices.
            held: what is held of other micro-batches.
        """
        was = self.analysed
        there = AnalysedPlan(was.program, was.decisions, cluster, was.where)
        built, choice = there.built, there.choice
        buffers = None if held is None else held.in_flight_buffers(there.flat)
        if buffers is not None:
            built = with_in_flight(there.builder, built, buffers)
            choice += tuple(choice[node] for node in built.followed)
        decided = Decided(there.builder, built, choice)
        cost = account(decided).step_s
        return Candidate("plan", decided, IntraSolution(choice, cost, 0.0, Stop.GAP))

    def price(self, best: Candidate) -> StagePrice:
        """The price of a plan of the program."""
        return price_of(best, self.stage.phases, self.stage.body, self.microbatches)

    def searched(self, options: Options, cluster: Cluster) -> Program:
        """The program as the search takes it."""
        was, flat = self.analysed.program, self.analysed.flat
        heads = sum(role == "constant" for role in was.roles)
        donated, alone = frozenset(heads + a for a in was.donated), cluster.num_devices == 1
        wishes = wishes_for(options, flat, was.ties)
        facts = Facts(flat, was.ties, donated, alone=alone)
        return Program(facts, roles_of(was.roles, flat), wishes)


class StagesUnder:
    """The stages of a plan under other conditions, each distinct one planned once."""

    def __init__(self, file: PlanFile, analysed: Sequence[AnalysedPlan], given: Conditions) -> None:
        self.file, self.given, self.where = file, given, analysed[0].where
        self.programs = [FiledProgram(each, file.joined.microbatches) for each in analysed]
        self.found: dict[tuple[int, int, int, bool], Priced] = {}
        self.owned: dict[tuple[int, int, bool], Priced] = {}

    @cached_property
    def twice(self) -> bool:
        """Whether a first round of forward passes makes sums that the loss needs.

        Raises:
            PlanError: if the stages have other prices in the file than by this version.
        """
        found = set[bool]()
        for row in self.file.stages:
            assert row.cost is not None
            program = self.programs[row.program]
            was = row.cost
            now = program.price(program.own(program.analysed.cluster))
            first_s = now.forward_s * self.file.joined.microbatches
            each = (
                (was.forward_s, now.forward_s), (was.input_gradient_s, now.input_gradient_s),
                (was.weight_gradient_s, now.weight_gradient_s),
            )  # fmt: skip
            same = [again for again in (False, True)
                    if _close(was.once_s, now.once_s + again * first_s)]  # fmt: skip
            if not same or not all(_close(a, b) for a, b in each):
                raise PlanError(
                    "its stages have other prices in the file than by this version of the cost "
                    "model", kind="differs", where=self.where, remedy="make the plan again",
                )  # fmt: skip
            found.update(same if len(same) == 1 else ())
        return found == {True}

    def own(self, s: int, flight: int) -> Priced:
        """A stage as the plan has it, under the new conditions, with micro-batches in flight."""
        row, size = self.file.stages[s], self.given.sizes[s]
        whole = row.recompute == "stage" and flight > 1
        key = row.program, flight, whole
        if key not in self.owned:
            program, machine = self.programs[row.program], self.given.cluster.subset(size)
            best = program.own(machine, program.stage.in_flight(flight, whole=whole))
            found = SearchOutcome(best, [best], {}, 0.0, Stop.GAP)
            made = outcome(found, machine, self._options(row.program, size), self._room_bytes)
            price = program.price(best)
            if flight > 1:  # its own program has one micro-batch in flight
                made["peak_bytes"] = price.held_bytes
            plan = structs.replace(program.analysed.program, **made)
            self.owned[key] = plan, self._in_all(price)
        return self.owned[key]

    def planned(self, s: int, flight: int) -> Priced:
        """A stage planned again, with micro-batches in flight.

        Raises:
            PlanError: if it does not fit.
        """
        row, size = self.file.stages[s], self.given.sizes[s]
        whole = row.recompute == "stage" and flight > 1
        key = row.program, size, flight, whole
        if key not in self.found:
            program, machine = self.programs[row.program], self.given.cluster.subset(size)
            options = self._options(row.program, size)
            wanted = program.searched(options, machine)
            wanted = wanted.holding(program.stage.in_flight(flight, whole=whole))
            search = Search(wanted, Request(machine, options))
            try:
                found = search.run()
            except PlanError as error:
                raise PlanError(
                    f"stage {s} {error.message}", kind=error.kind, where=error.where,
                    remedy=error.remedy, needs_bytes=error.needs_bytes,
                ) from error  # fmt: skip
            price = program.price(found.best)
            made = outcome(found, machine, options, search.limit)
            if flight > 1:  # its own program has one micro-batch in flight
                made["peak_bytes"] = price.held_bytes
            plan = structs.replace(program.analysed.program, **made)
            self.found[key] = plan, self._in_all(price)
        return self.found[key]

    @property
    def _room_bytes(self) -> int:
        """Memory of one stage: those of a group share that of its devices."""
        return max(1, round(self.given.limit_bytes / self.file.joined.chunks))

    def _options(self, number: int, size: int) -> Options:
        written = as_written(self.file.programs[number], size)
        return Options(memory_bytes=self._room_bytes, baselines=False, **written)

    def _in_all(self, price: StagePrice) -> StagePrice:
        if not self.twice:
            return price
        first_s = self.file.joined.microbatches * price.forward_s
        return replace(price, once_s=price.once_s + first_s)


def what_if_in_stages(
    file: PlanFile, analysed: Sequence[AnalysedPlan], given: Conditions, schedules: Sequence[str]
) -> PlanFile:
    """The plan of the same stages under other conditions.

    Args:
        file: the plan.
        analysed: the plans of its programs.
        given: the conditions.
        schedules: to choose from; that of the plan if empty.

    Raises:
        PlanError: if nothing fits, or no schedule takes the stages as they are.
    """
    joined = file.joined
    turns = turns_of(joined.schedule, joined.chunks)
    check_pipelines(schedules)
    names = in_turns(tuple(schedules) or (joined.schedule,), turns)
    if not names:
        raise PlanError(
            f"its {joined.chunks} stages on each group of devices are not those of "
            f"{', '.join(schedules)}", kind="bad-option", where="schedules",
            remedy="plan anew with schedules=, which cuts the program for them",
        )  # fmt: skip
    cuts, count = file.cuts, joined.microbatches
    shape = PipelineShape(cuts, given.sizes, count, file.recompute, turns)
    stages = StagesUnder(file, analysed, given)
    ways = [(name, way) for name in names for way in _ways(stages, shape, name)]
    across = [cost.sent_bytes for cost in file.costs[:-1]]
    tried = [
        (ranked(shape, [p for _, p in way], across, given.cluster, given.limit_bytes, (name,))[0],
         way) for name, way in ways
    ]  # fmt: skip
    limit = given.limit_bytes * (1 + SAME)
    fitting = [each for each in tried if each[0].worst_bytes <= limit]
    if not fitting:
        least = [best.worst_bytes for best, _ in tried]
        raise refusal(least, given.limit_bytes, given.cluster.name, tried=True)
    best, way = min(fitting, key=lambda each: each[0].step_s)
    return _filed(file, given, best, way)


def _ways(stages: StagesUnder, shape: PipelineShape, name: str) -> list[list[Priced]]:
    """The stages planned again for a schedule, and as they are on as many devices.

    Raises:
        PlanError: if a stage does not fit, and there are no others.
    """
    table = table_of(name, shape.microbatches, shape.recompute, shape.turns.chunks)
    flights = flights_of(table)
    every, found = range(len(shape.sizes)), list[list[Priced]]()
    most: dict[tuple[int, bool], int] = {}  # stages of one program share a plan
    keys = [(row.program, row.recompute == "stage") for row in stages.file.stages]
    for s in every:
        most[keys[s]] = max(most.get(keys[s], 1), flights[s])
    if shape.sizes == stages.file.sizes:
        found.append([stages.own(s, most[keys[s]]) for s in every])
    try:
        found.append([stages.planned(s, most[keys[s]]) for s in every])
    except PlanError as error:
        if error.kind != "does-not-fit" or not found:
            raise
    return found


def _filed(file: PlanFile, given: Conditions, best: Ranked, way: Sequence[Priced]) -> PlanFile:
    programs = tuple({id(plan): plan for plan, _ in way}.values())
    spans = _spans(best.shape)
    rows: list[StageRow] = []
    for s, ((plan, p), row) in enumerate(zip(way, file.stages, strict=True)):
        assert row.cost is not None
        cost = StageCost(*(float(x) for x in (
            p.forward_s, p.input_gradient_s, p.weight_gradient_s, p.once_s, p.held_bytes,
            p.activation_bytes, p.boundary_bytes, row.cost.sent_bytes, p.static_bytes,
        )))  # fmt: skip
        number = next(k for k, program in enumerate(programs) if program is plan)
        rows.append(
            structs.replace(
                row, devices=spans[s], step_s=best.stage_s[s], peak_bytes=best.peak_bytes[s],
                program=number, cost=cost,
            )
        )  # fmt: skip
    pipeline = structs.replace(
        file.joined, cluster=given.cluster.to_dict(), step_s=best.step_s, lower_bound_s=0.0,
        bubble=max(best.bubble, 0.0), limit_bytes=given.limit_bytes, schedule=best.schedule,
        baselines={}, warnings=tuple(dict.fromkeys((*file.joined.warnings, KEPT))),
        stop=Stop.GAP.name, no_single=NO_SINGLE,
    )  # fmt: skip
    return file_of(tuple(rows), programs, pipeline)


def _spans(shape: PipelineShape) -> list[tuple[int, int]]:
    """First device of every stage, and the one after the last."""
    starts = [sum(shape.groups[:g]) for g in range(len(shape.groups))]
    return [(starts[g], starts[g] + shape.groups[g]) for g in shape.group]


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(abs(a), abs(b))
