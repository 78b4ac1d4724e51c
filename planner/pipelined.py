# pyright: basic
"""The search for a pipeline: candidates are cut, their stages planned, and the best is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from msgspec import structs

from costmodel import Cluster
from ir import IRError, digest, show

from .binding import Bound
from .emit.pipeline.build import Opened, opened
from .emit.pipeline.rehearsal import ROLES, Rehearsal, rehearse
from .emit.pipeline.stage import staged
from .errors import PlanError
from .inter.price import Phases, StagePrice, price_of
from .inter.search import (
    MOST_COUNTS,
    Ranked,
    Shape,
    counts_of,
    ranked,
    rebalanced,
    shape_of,
    stage_counts,
)
from .kept import keep_stage, kept_stage
from .options import Options
from .pipefile import PIPELINE_FORMAT, PIPELINE_VERSION, PipelineFile
from .pipeplan import BoundStages, PipelinePlan
from .plan import Plan
from .planfile import BaselineRow
from .remembered import Memory, memory_of
from .search import USABLE
from .show import bytes_text
from .single import One, plan_traced, stage_key
from .stepcall import StepCall
from .version import VERSION

Say = Callable[[str], None]
# A stage that does not fit with several micro-batches in flight is planned again with less memory.
TIGHTENINGS = 2
# Stages that are solved in a search; each gets this part of the time.
SOLVES = 12


@dataclass(frozen=True)
class Training:
    """What is trained."""

    loss_fn: Any
    args: tuple[Any, ...]
    optimizer: Any
    has_aux: bool
    batch_axis: int
    name: str


@dataclass(frozen=True)
class _Found:
    ranked: Ranked
    bound: BoundStages
    plans: tuple[Plan, ...]
    lower_bound_s: float


def better_pipeline(
    training: Training,
    machine: Cluster,
    options: Options,
    say: Say,
    start: float,
    single: Callable[[], Plan],
) -> Plan | PipelinePlan:
    """The plan in one program, or a pipeline where that is faster or alone fits.

    Raises:
        PlanError: if neither fits, or a pipeline was asked for that cannot be had.
    """
    search = _Search(training, machine, options, say, start)
    if isinstance(options.pipeline, int):
        _check_arguments(training)
        found = search.run(options.pipeline)
        if found is None:
            raise search.refusal()
        return _plan_of(found, search, {})
    if options.pipeline == "off":
        return single()
    try:
        plan = single()
    except PlanError as error:
        if error.kind != "does-not-fit":
            raise
        found = _tried(search)[0]
        if found is None:
            raise
        return _plan_of(found, search, {})
    if machine.num_devices <= machine.island:
        return plan
    begun = time.monotonic()
    found, why = _tried(search)
    if found is None or plan.step_s <= found.ranked.step_s:
        spent = {"inter": time.monotonic() - begun, "total": time.monotonic() - start}
        notes = (*plan.warnings, f"no pipeline was looked at: {why}") if why else plan.warnings
        file = structs.replace(plan.file, warnings=notes)
        return replace(plan, file=file, seconds={**plan.seconds, **spent})
    one = BaselineRow(plan.step_s, plan.peak_bytes, plan.fits, str(plan.mesh))
    return _plan_of(found, search, {**plan.file.baselines, "one program": one})


def _check_arguments(training: Training) -> None:
    if len(training.args) != 2:
        raise PlanError(
            f"with optimizer= the arguments are (params, batch), got {len(training.args)} "
            "arguments", kind="bad-argument", where="plan",
            remedy="put what is trained into params and everything else into batch",
        )  # fmt: skip


def _tried(search: _Search) -> tuple[_Found | None, str]:
    """The best pipeline, or why none can be had of this program."""
    try:
        return search.run(None), ""
    except (PlanError, IRError) as error:
        return None, str(error)


@dataclass
class _Search:
    """One search; losses by number of micro-batches and plans of equal stages are shared."""

    training: Training
    machine: Cluster
    options: Options
    say: Say
    start: float
    losses: dict[int, Opened] = field(default_factory=dict)
    plans: dict[Any, tuple[Plan, StagePrice, float]] = field(default_factory=dict)
    least: list[float] = field(default_factory=list)
    deadline: float = 0.0

    @cached_property
    def memory(self) -> Memory:
        """The plan store, if it was asked for."""
        return memory_of(self.options)

    @property
    def limit(self) -> float:
        """Bytes that a plan may use on a device."""
        return float(self.options.memory_bytes or USABLE * self.machine.memory_bytes)

    def run(self, stages: int | None) -> _Found | None:
        """The fastest pipeline that fits; None if none of those tried does."""
        self.deadline = time.monotonic() + self.options.time_limit_s
        chain = self.loss(self.options.microbatches or 1).chain
        batch, asked = self._examples(), self.options.microbatches
        best: _Found | None = None
        refused: PlanError | None = None
        for count in stage_counts(self.machine, chain, stages):
            fitting = 0
            for parts in counts_of(count, batch, asked):
                late = time.monotonic() > self.deadline and (best or stages is None)
                if late or fitting >= MOST_COUNTS:
                    break
                self.say(f"pipeline of {count} stages, {parts} micro-batches")
                try:
                    found = self.candidate(shape_of(self.machine, chain, count, parts))
                except PlanError as error:
                    if error.kind not in ("does-not-fit", "bad-batch"):
                        raise
                    refused = refused or error
                    continue
                fitting += found is not None
                if found and (best is None or found.ranked.step_s < best.ranked.step_s):
                    best = self._balanced(found)
        if best is None and refused is not None and stages is not None and not self.least:
            raise refused
        return best

    def _balanced(self, found: _Found) -> _Found:
        """The candidate cut again by the seconds of its stages, if that is faster."""
        chain = self.loss(found.ranked.shape.microbatches).chain
        shape = rebalanced(found.ranked.shape, chain, found.ranked.stage_s)
        if shape is None or time.monotonic() > self.deadline:
            return found
        try:
            other = self.candidate(shape)
        except PlanError:
            return found
        return other if other and other.ranked.step_s < found.ranked.step_s else found

    def refusal(self) -> PlanError:
        """Why nothing that was asked for fits."""
        least = min(self.least, default=float("inf"))
        return PlanError(
            f"does not fit: the leanest pipeline tried needs {bytes_text(least)} on some device, "
            f"{bytes_text(least - self.limit)} more than the limit of {bytes_text(self.limit)}",
            kind="does-not-fit", where=self.machine.name,
            remedy="use more devices or micro-batches, or another number of stages",
        )  # fmt: skip

    def _share(self) -> float:
        """Seconds for solving one stage; there are several in a candidate, and few candidates."""
        left = max(self.deadline - time.monotonic(), 0.0)
        return max(min(left / 4, self.options.time_limit_s / SOLVES), 0.5)

    def loss(self, count: int) -> Opened:
        """The loss at the size of one of `count` micro-batches."""
        if count not in self.losses:
            t = self.training
            params, batch = t.args
            self.losses[count] = opened(
                t.loss_fn, params, batch, t.optimizer, microbatches=count, has_aux=t.has_aux,
                loss_reduction=self.options.loss_reduction, batch_axis=t.batch_axis,
            )  # fmt: skip
        return self.losses[count]

    def _examples(self) -> int:
        """Examples in a step, as far as they are to be cut."""
        two = self.options.microbatches
        if two is not None:
            return two
        for count in (2, 3, 5, 7):
            try:
                parts = self.loss(count).built.parts
            except PlanError as error:
                if error.kind != "bad-batch" or "divide" not in str(error):
                    raise
                continue
            assert parts is not None
            return parts.batch
        return 1

    def candidate(self, shape: Shape) -> _Found | None:
        """A shape with its stages planned, under its best schedule; None if it does not fit."""
        loss = self.loss(shape.microbatches)
        cut = staged(loss.layers, shape.cuts)
        stages = [rehearse(loss, cut, s, self.training.optimizer) for s in range(len(cut.stages))]
        across = [loss.chain.across[c] for c in shape.cuts[1:-1]]
        limit = self.limit
        for _ in range(1 + TIGHTENINGS):
            found = [self._stage(s, shape, stage, limit) for s, stage in enumerate(stages)]
            prices = [price for _, price, _ in found]
            order = ranked(shape, prices, across, self.machine, self.limit, self.options.schedules)
            if order[0].worst_bytes <= self.limit:
                best = order[0]
                busiest = max(shape.microbatches * p.microbatch_s + p.once_s for p in prices)
                plans = tuple(plan for plan, _, _ in found)
                return _Found(best, BoundStages(loss, tuple(stages)), plans,
                              min(busiest, best.step_s))  # fmt: skip
            least = min(r.worst_bytes for r in order)
            self.least.append(least)
            limit -= (least - self.limit) * 1.05
            if limit <= 0:
                break
        return None

    def _stage(
        self, s: int, shape: Shape, stage: Rehearsal, limit: float
    ) -> tuple[Plan, StagePrice, float]:
        """A stage's plan and price; equal stages share one."""
        start = sum(shape.sizes[:s])
        key = (digest(stage.traced.graph), shape.sizes[s], round(limit))
        if key in self.plans:
            return self.plans[key]
        cluster = self.machine.subset(shape.sizes[s])
        options = replace(
            self.options, baselines=False, memory_bytes=int(limit), pins=(), forbidden=(),
            mesh=None, pipeline="off", time_limit_s=self._share(),
        )  # fmt: skip
        one = One(
            StepCall(stage.joint.run, (), (), "auto"), shape.microbatches, (0, 1), ROLES,
            f"{self.training.name}, stage {s} from device {start}",
        )  # fmt: skip
        parts = stage.program.parts
        phases = Phases(
            stage.loop, frozenset(parts.forward.nodes), frozenset(parts.input_gradient.nodes),
            frozenset(parts.weight_gradient.nodes), parts.saved,
            [v for v in stage.program.args["takes"] if v >= 0],
        )  # fmt: skip
        self.plans[key] = self._priced(one, stage, phases, cluster, options)
        return self.plans[key]

    def _priced(
        self, one: One, stage: Rehearsal, phases: Phases, cluster: Cluster, options: Options
    ) -> tuple[Plan, StagePrice, float]:
        """A stage's plan and price, from the plan store or searched now."""
        key = stage_key(one, stage.traced, phases, cluster, options) if self.memory.store else ""
        held = kept_stage(self.memory, key, show(stage.traced.graph))
        if held is not None:
            file, price, bound = held
            return Plan(file, Bound(stage.traced), cached=True), price, bound
        now = time.monotonic()
        plan, found = plan_traced(
            one, stage.traced, cluster, options, self.say, now, now, self.memory
        )
        price = price_of(found.best, phases, stage.body.graph, one.microbatches)
        keep_stage(self.memory, key, plan.file, price, found.lower_bound_s)
        return plan, price, found.lower_bound_s


def _plan_of(found: _Found, search: _Search, rows: dict[str, BaselineRow]) -> PipelinePlan:
    best, machine = found.ranked, search.machine
    files = [plan.file for plan in found.plans]
    distinct = list({id(file): file for file in files}.values())
    members = tuple(next(k for k, f in enumerate(distinct) if f is file) for file in files)
    notes = [*found.bound.loss.built.warnings]
    idle = machine.num_devices - sum(best.shape.sizes)
    if idle:
        notes.append(f"{idle} of {machine.num_devices} devices are in no stage")
    file = PipelineFile(
        PIPELINE_FORMAT, PIPELINE_VERSION, VERSION, search.training.name, machine.to_dict(),
        best.step_s, found.lower_bound_s, max(best.bubble, 0.0), search.limit,
        best.shape.microbatches, best.schedule, best.recompute,
        found.bound.loss.built.reduction, best.shape.cuts, best.shape.sizes, best.stage_s,
        best.peak_bytes, members, tuple(distinct), rows, tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    total = time.monotonic() - search.start
    cached = all(plan.cached for plan in found.plans)
    return PipelinePlan(file, found.bound, {"inter": total, "total": total}, cached=cached)
