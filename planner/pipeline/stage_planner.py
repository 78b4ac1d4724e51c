# pyright: basic
"""Plans the stages of a pipeline as programs, each distinct stage once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from msgspec import structs

from costmodel import Cluster, ComputeModel
from ir import digest, show

from ..common.errors import PlanError
from ..common.options import Options
from ..common.request import Request
from ..common.store.keys import Memory, memory_of
from ..sharding.cost.least_seconds import least_work_s
from ..sharding.plan_traced import One, planned, program_for
from ..sharding.planned_program import PlannedProgram
from ..sharding.problem.program import InFlight, Program
from ..sharding.problem.records import Menus
from ..sharding.search.context import Effort
from ..sharding.search.over_meshes import Search
from ..solver.budget import QUICK
from ..solver.solve import SolveOptions
from ..training.step_call import StepCall
from ..training.training import Training
from .alike_stages import AlikeStages
from .cut.opened_loss import Opened, cut_of, opened
from .cut.scaled import Samples
from .cut.stage import Staged
from .cut.stage_training_step import ROLES, StageTrainingStep, stage_training_step
from .divide.simulated import PipelineShape
from .divide.stage_price import Phases, StagePrice, price_of
from .stage_units import in_passes
from .stored_stages import stage_key, store_stage, stored_stage

Say = Callable[[str], None]
StageFound = tuple[PlannedProgram, StagePrice]
# Stages are ranked without a proof: what a 0/1 programme could still gain is less than the error
# of the estimates. Two mesh axes express nearly all plans; `THOROUGH` adds axes at the end.
FAIR = Effort(SolveOptions(tolerance=3e-3, budget=replace(QUICK, steps=64, rounds=3)), axes=2)
# The whole program is priced only to compare divisions.
ROUGH = Effort(SolveOptions(tolerance=1e-2, budget=replace(QUICK, steps=53, rounds=2)), axes=2)
THOROUGH = Effort(FAIR.first)
# The plan of an equal stage is reused with more memory if it is this close to the bound there.
NEAR = 3e-3
AMPLE = 10**15  # bytes of memory that no program needs


@dataclass(frozen=True, slots=True)
class StageError:
    """A stage that does not fit."""

    needs_bytes: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A stage to plan, with its limits.

    number: index of the stage, for its name.
    size: devices; room_bytes: memory of each.
    flight: micro-batches in flight.
    whole: a micro-batch in flight keeps only the inputs of the stage (recompute "stage").
    below_s: upper limit of a plan's seconds.
    """

    number: int = field(compare=False)
    size: int
    room_bytes: int
    flight: int = 1
    whole: bool = False
    effort: Effort = FAIR
    below_s: float = float("inf")


@dataclass
class StagePlanner:
    """Plans stages; traces of the loss and plans of equal stages are shared.

    groups: plans of stages that are equal except for the micro-batches in flight.
    within: the hand-written plan that stages have to follow, if any.
    alike: stages that are planned for others too.
    samples: stages at two sizes of micro-batch, which tell those at others.
    programs, menus: searched programs (those for one device apart) and strategies, shared.
    solved: number of stages planned.
    """

    training: Training
    machine: Cluster
    options: Options
    say: Say
    limit_bytes: float
    losses: dict[int, Opened] = field(default_factory=dict)
    plans: dict[tuple[int, str, Ask], StageFound | PlanError] = field(default_factory=dict)
    groups: dict[Any, dict[int, StageFound]] = field(default_factory=dict)
    known: dict[Any, tuple[StageTrainingStep, str]] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    alike: AlikeStages = field(default_factory=AlikeStages)
    programs: dict[tuple[str, bool], Program] = field(default_factory=dict)
    menus: dict[int, Menus] = field(default_factory=dict[int, Menus])
    within: str | None = None
    solved: int = 0

    @cached_property
    def memory(self) -> Memory:
        """The plan store; without an option for it, memory of this process."""
        return memory_of(self.options)

    def loss(self, count: int) -> Opened:
        """The loss for one of `count` micro-batches."""
        if count not in self.losses:
            t = self.training
            params, batch = t.args
            self.losses[count] = opened(
                t.loss_fn, params, batch, t.optimizer, microbatches=count, has_aux=t.has_aux,
                loss_reduction=self.options.loss_reduction, batch_axis=t.batch_axis,
            )  # fmt: skip
        return self.losses[count]

    def least_work_s(self, count: int, sizes: Sequence[int], kind: str) -> float:
        """Bound of the device-seconds of a step in a pipeline; see `least_seconds`.

        Args:
            count: number of micro-batches.
            sizes: devices of the sub-meshes to choose from.
            kind: recomputation.
        """
        stage, name = self._uncut(count, kind)
        return self.work_s(stage, sizes, name)

    def _uncut(self, count: int, kind: str) -> tuple[StageTrainingStep, str]:
        """The whole program as one stage."""
        loss = self.loss(count)
        cuts = (0, len(loss.chain.slots))
        return self.told(loss, cut_of(loss, cuts, (kind,)), 0, ("whole", kind))

    def work_s(self, stage: StageTrainingStep, sizes: Sequence[int], name: str = "") -> float:
        """Bound of the device-seconds of one stage in a step.

        Args:
            stage: the stage's training step.
            sizes: devices of the sub-meshes to choose from.
            name: key of the stage's program, if it was planned.
        """
        facts, parts = self.searched(stage, name).facts, stage.program.parts
        flat = facts.flat
        own = {*parts.forward.nodes, *parts.input_gradient.nodes, *parts.weight_gradient.nodes}
        inside = (stage.loop, 0)
        ops = [i for i, op in enumerate(flat.ops)
               if op.place[:2] != inside or op.place[2] in own]  # fmt: skip
        return least_work_s(facts, ComputeModel(self.machine), sizes, ops)

    def whole(self, count: int, size: int, kind: str = "none") -> StagePrice:
        """Price of the whole program on a sub-mesh, as if a device had memory for all of it.

        Args:
            count: number of micro-batches.
            size: devices of the sub-mesh.
            kind: recomputation.
        """
        stage, name = self._uncut(count, kind)
        return self._price(count, stage, Ask(0, size, AMPLE, effort=ROUGH), name)

    def stage(
        self, cut: Staged, shape: PipelineShape, s: int, flight: int
    ) -> StageFound | StageError:
        """Plan and price of a stage that fits with `flight` micro-batches in flight.

        The plan of an equal stage is reused where it is close to the bound.
        """
        loss, kind = self.loss(shape.microbatches), shape.recompute[s]
        own = self.training_step(loss, cut, s)
        stage, name = self.alike.first(loss, cut, s, own)
        room = self.limit_bytes / shape.turns.chunks
        group = self.groups.setdefault((name, shape.sizes[s], kind, room), {})
        known = self._near(group, flight, kind, room)
        if known is None:
            ask = self._ask(shape, s, flight)
            answer = self.planned_within(shape.microbatches, stage, name, ask)
            if isinstance(answer, PlanError):
                return StageError(answer.needs_bytes)
            known = group[flight] = answer
        return self.alike.planned(known[0], own), known[1]

    def _near(
        self, group: dict[int, StageFound], flight: int, kind: str, room: float
    ) -> StageFound | None:
        """The plan of an equal stage that fits, made for less memory or close to its bound."""
        bound = max((f[0].lower_bound_s for k, f in group.items() if k <= flight), default=0.0)
        for at in sorted(group, key=lambda k: (group[k][0].step_s, k)):
            plan, price = group[at]
            close = at <= flight or plan.step_s <= bound * (1 + NEAR)
            if close and price.needed_bytes(kind, flight) <= room * (1 + 1e-9):
                return plan, price
        return None

    def better(
        self, cut: Staged, shape: PipelineShape, s: int, flight: int, below_s: float
    ) -> StageFound | None:
        """A plan of a stage on meshes of more axes that takes less than `below_s`, if any."""
        loss = self.loss(shape.microbatches)
        own = self.training_step(loss, cut, s)
        stage, name = self.alike.first(loss, cut, s, own)
        ask = replace(self._ask(shape, s, flight), effort=THOROUGH, below_s=below_s)
        found = self.planned_within(shape.microbatches, stage, name, ask)
        if isinstance(found, PlanError) or found[0].step_s >= below_s:
            return None
        return self.alike.planned(found[0], own), found[1]

    def _ask(self, shape: PipelineShape, s: int, flight: int) -> Ask:
        whole = shape.recompute[s] == "stage" and flight > 1
        room = round(self.limit_bytes / shape.turns.chunks)  # stages of a group share it
        return Ask(s, shape.sizes[s], room, flight, whole)

    def planned_within(
        self, count: int, stage: StageTrainingStep, name: str, ask: Ask
    ) -> StageFound | PlanError:
        """Plan and price of a stage, or why there is none; memoised."""
        key = (count, name, ask)
        if key not in self.plans:
            try:
                self.plans[key] = self._solve(count, stage, ask, name)
            except PlanError as error:
                if error.kind not in ("does-not-fit", "not-faster"):
                    raise
                self.plans[key] = error
        return self.plans[key]

    def training_step(self, loss: Opened, cut: Staged, s: int) -> tuple[StageTrainingStep, str]:
        """The traced stage and the digest of its program; stages that compute the same share them.

        What a stage takes and returns also depends on where the others begin.
        """
        key = loss.microbatches, cut.outline(s)
        if key not in self.known:
            stage = stage_training_step(loss, cut, s, self.training.optimizer)
            self.known[key] = stage, digest(stage.traced.graph)
        return self.known[key]

    def told(
        self, loss: Opened, cut: Staged, s: int, what: object
    ) -> tuple[StageTrainingStep, str]:
        """As `training_step`, for prices alone; `what` tells the stage from others at any size."""
        return self.samples.stage(loss, cut, s, what, self.training_step)

    def planned(
        self, stage: StageTrainingStep, shape: PipelineShape, s: int, flight: int
    ) -> StageFound:
        """Plan and price of a given stage, such as a rewritten one.

        Raises:
            PlanError: if it does not fit.
        """
        return self._solve(shape.microbatches, stage, self._ask(shape, s, flight))

    def planned_below(
        self, stage: StageTrainingStep, shape: PipelineShape, s: int, flight: int, below_s: float
    ) -> StageFound | None:
        """Plan and price of a given stage; None if it does not fit, or takes `below_s` or more."""
        ask, name = (
            replace(self._ask(shape, s, flight), below_s=below_s),
            digest(stage.traced.graph),
        )
        held = self._one(shape.microbatches, stage, ask).in_flight
        facts = self.searched(stage, name, ask.size).holding(held).facts
        if facts.least_peak(ask.size) > ask.room_bytes:
            return None
        answer = self.planned_within(shape.microbatches, stage, name, ask)
        return None if isinstance(answer, PlanError) or answer[0].step_s >= below_s else answer

    def searched(self, stage: StageTrainingStep, name: str, size: int = 0) -> Program:
        """The stage as the search takes it; kept under `name` unless that is empty."""
        key = name, size == 1  # 0: only what holds on any sub-mesh is read
        if key in self.programs:
            return self.programs[key]
        machine = self.machine.subset(size or self.machine.num_devices)
        found = program_for(stage.traced, replace(self.options, pins=(), forbidden=()), machine)
        if name:
            self.programs[key] = found
        return found

    def least_step_s(self, stage: StageTrainingStep, name: str, ask: Ask) -> float:
        """Lower bound of a stage, all micro-batches and what is done once a step [s]."""
        return self._least_s(self.searched(stage, name, ask.size), ask)

    def least_passes_s(
        self, stage: StageTrainingStep, name: str, ask: Ask, *, is_sent: bool
    ) -> float:
        """Lower bound of all micro-batches of a stage, whatever is done once a step [s].

        With `is_sent`, only what comes before its gradients are sent back counts.
        """
        inside = partial(in_passes, stage, is_sent)
        return self._least_s(self.searched(stage, name, ask.size).where(inside), ask)

    def _least_s(self, program: Program, ask: Ask) -> float:
        request = Request(self.machine.subset(ask.size), self._options(ask), self._say_of(ask))
        menus = self.menus.setdefault(ask.size, Menus())
        return Search(program, request, self.memory, THOROUGH, menus=menus).lower_bound_s()

    def _solve(self, count: int, stage: StageTrainingStep, ask: Ask, name: str = "") -> StageFound:
        self.solved += 1
        one, options, phases = self._one(count, stage, ask), self._options(ask), phases_of(stage)
        request = Request(self.machine.subset(ask.size), options, self._say_of(ask))
        key = ""
        if self.memory.store:
            key = stage_key(one, stage.traced, phases, request.machine, options, ask.effort)
        held = stored_stage(self.memory, key, show(stage.traced.graph)) if key else None
        if held is not None:
            return PlannedProgram(held[0], stage.traced, cached=True), self._in_all(held[1], count)
        search = self._search(one, request, stage, ask, name)
        found = search.run()
        plan = planned(one, stage.traced, search, found, 0.0)
        price = price_of(found.best, phases, stage.body.graph, count)
        if ask.flight > 1:  # its own program has one micro-batch in flight
            file = structs.replace(plan.program, peak_bytes=price.held_bytes)
            plan = replace(plan, program=file)
        store_stage(self.memory, key, plan.program, price, found.lower_bound_s)
        return plan, self._in_all(price, count)

    def _price(self, count: int, stage: StageTrainingStep, ask: Ask, name: str) -> StagePrice:
        """The price of a plan that only serves estimates."""
        if self.memory.store:
            return self._solve(count, stage, ask, name)[1]
        self.solved += 1
        one, machine = self._one(count, stage, ask), self.machine.subset(ask.size)
        request = Request(machine, self._options(ask), self._say_of(ask))
        search = self._search(one, request, stage, ask, name)
        price = price_of(search.best(), phases_of(stage), stage.body.graph, count)
        return self._in_all(price, count)

    def _say_of(self, ask: Ask) -> Callable[[str], None]:
        """Progress that tells a stage from the whole step."""
        return lambda line: self.say(f"a stage on {ask.size} devices, {line}")

    def _in_all(self, price: StagePrice, count: int) -> StagePrice:
        """The price with one more forward pass of every micro-batch, if the loss needs it."""
        inside = self.loss(count).built.inside
        if inside is None or not inside.twice:
            return price
        return replace(price, once_s=price.once_s + count * price.forward_s)

    def _search(
        self, one: One, request: Request, stage: StageTrainingStep, ask: Ask, name: str
    ) -> Search:
        return Search(
            self.searched(stage, name, ask.size).holding(one.in_flight), request, self.memory,
            ask.effort, ask.below_s, (), self.menus.setdefault(ask.size, Menus()),
        )  # fmt: skip

    def _options(self, ask: Ask) -> Options:
        return replace(
            self.options, baselines=self.within is not None, memory_bytes=max(ask.room_bytes, 1),
            pins=(), forbidden=(), mesh=None, baseline=self.within, pipeline="off",
        )  # fmt: skip

    def _one(self, count: int, stage: StageTrainingStep, ask: Ask) -> One:
        takes = [v for v in stage.program.args["takes"] if v >= 0]
        kept = takes if ask.whole else [*stage.program.parts.saved, *takes]
        in_flight = InFlight(stage.loop, tuple(kept), ask.flight - 1)
        return One(
            StepCall(stage.joint.run, (), (), "auto"), count, (0, 1), ROLES,
            f"{self.training.name}, stage {ask.number}", in_flight,
        )  # fmt: skip


def phases_of(stage: StageTrainingStep) -> Phases:
    """The nodes and values of the loop over micro-batches by phase."""
    parts, args = stage.program.parts, stage.program.args
    return Phases(
        stage.loop, frozenset(parts.forward.nodes), frozenset(parts.input_gradient.nodes),
        frozenset(parts.weight_gradient.nodes), parts.saved,
        [v for v in args["takes"] if v >= 0], [v for v in args["sums"] if v >= 0],
        (*stage.params, *stage.states),
    )  # fmt: skip
