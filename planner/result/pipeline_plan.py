# pyright: basic
"""A plan in stages: what was decided, what it is predicted to cost, and how to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from costmodel import Cluster, CollectiveModel, ReshardModel
from ir import Mesh, digest

from ..common.errors import PlanError
from ..common.stop import Stop
from ..common.surface import public_methods
from ..common.units_text import bytes_text, seconds_text
from ..common.write_files import write_files
from ..emit.pipeline.build import build_pipeline
from ..emit.pipeline.runtime import Pipeline
from ..emit.pipeline.transfer import split_devices
from ..files.plan_file import PlanFile, decisions_of
from ..files.plan_summary import counted
from ..inspect.export import Written, export_stages
from ..inspect.perfetto import schedule_trace_json
from ..inspect.report import pipeline_html
from ..pipeline.cut.opened_loss import cut_of, opened
from ..pipeline.cut.solved_stage import Solved, solved_of
from ..pipeline.cut.stage_training_step import Rehearsal
from ..pipeline.divide.simulated import table_of
from ..pipeline.file_schedule import priced_of
from ..pipeline.pipeline_file import PipelineFile, write_pipeline
from ..pipeline.schedule import Priced
from ..pipeline.stage_planner import BoundStages
from ..sharding.cost.account import Collective
from ..sharding.search.baselines import Baseline
from .plan import Plan
from .stage import Stage


@public_methods
@dataclass(frozen=True)
class PipelinePlan:
    """A plan for a training step in stages on one cluster.

    It has the properties of a `Plan`. Every stage is a plan of its own, for the stage's part of
    the step on its devices: see `stage_plans`.

    cached: the plans of all its stages were found in the plan store.
    """

    file: PipelineFile
    bound: BoundStages | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    where: str = "plan"
    cached: bool = False

    @property
    def step_s(self) -> float:
        """Simulated seconds of one step."""
        return self.file.step_s

    @property
    def peak_bytes(self) -> float:
        """Predicted peak memory of the fullest device."""
        return max(self.file.peak_bytes)

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.peak_bytes <= self.file.limit_bytes * (1 + 1e-9)

    @property
    def lower_bound_s(self) -> float:
        """No pipeline is faster by the cost model: the work of a step, at best, on all devices.

        Of the numbers of micro-batches that the search looked at, of the program as it is written
        and, where stages are rewritten, of theirs; 0 if nothing is known. See
        `planner.sharding.cost.least_seconds`.
        """
        return self.file.lower_bound_s

    @property
    def gap(self) -> float:
        """(step - bound) / step."""
        return max(0.0, 1.0 - self.lower_bound_s / self.step_s) if self.step_s > 0 else 0.0

    @property
    def stop(self) -> Stop:
        """Pipelines are searched by shortlist."""
        return Stop.GAP

    @property
    def mesh(self) -> Mesh:
        """The mesh of the first stage; each has its own, see `stages`."""
        return Mesh(self._plan_of(0).mesh)

    @property
    def microbatches(self) -> int:
        return self.file.microbatches

    @property
    def schedule(self) -> str:
        return self.file.schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Slots of the program, devices, mesh and cost of every stage."""
        f = self.file
        found: list[Stage] = []
        for s, devices in enumerate(f.spans):
            mesh, layers = dict(self._plan_of(s).mesh), (f.cuts[s], f.cuts[s + 1])
            found.append(
                Stage(layers, devices, mesh, f.stage_s[s], f.peak_bytes[s], f.recompute[s])
            )
        return tuple(found)

    @cached_property
    def stage_plans(self) -> tuple[Plan, ...]:
        """For every stage the plan of its part of the step, all micro-batches in one loop."""
        return tuple(Plan(self._plan_of(s), where=self.where) for s in range(len(self.file.sizes)))

    def _plan_of(self, stage: int) -> PlanFile:
        return self.file.plans[self.file.members[stage]]

    @property
    def baselines(self) -> dict[str, Baseline]:
        """Plans in one program, priced by the same cost model."""
        return {
            name: Baseline(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in self.file.baselines.items()
        }

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective inside the stages, on one device of each."""
        return tuple(c for plan in self.stage_plans for c in plan.collectives)

    @property
    def substitutions(self) -> dict[str, int]:
        """Proven rules that stages were rewritten by, and how often in a micro-batch of them."""
        found: Counter[str] = Counter()
        for s in range(len(self.file.sizes)):
            found.update(counted(self._plan_of(s)))
        return dict(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.file.warnings

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.from_dict(self.file.cluster, where=self.where)

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright plan --json`."""
        f = self.file
        return {
            "step_s": f.step_s, "peak_bytes": self.peak_bytes, "fits": self.fits,
            "lower_bound_s": f.lower_bound_s, "gap": self.gap, "stop": self.stop.value,
            "mesh": dict(self.mesh.axes), "microbatches": f.microbatches, "schedule": f.schedule,
            "stages": [
                {"layers": list(s.layers), "devices": list(s.devices), "mesh": s.mesh,
                 "step_s": s.step_s, "peak_bytes": s.peak_bytes, "recompute": s.recompute}
                for s in self.stages
            ],
            "baselines": {
                name: {"step_s": b.step_s, "peak_bytes": b.peak_bytes, "fits": b.fits,
                       "mesh": b.mesh}
                for name, b in f.baselines.items()
            },
            "collectives": [
                {"kind": c.kind, "axes": list(c.axes), "group_size": c.group_size,
                 "bytes": c.bytes, "count": c.count, "seconds": c.seconds, "cause": c.cause}
                for c in self.collectives
            ],
            "substitutions": [
                {"rule": rule, "count": count} for rule, count in self.substitutions.items()
            ],
            "warnings": list(f.warnings), "seconds": dict(self.seconds),
            "bubble": f.bubble, "origin": "pipeline", "cluster": f.cluster.get("name", ""),
            "name": f.name, "limit_bytes": f.limit_bytes, "cached": self.cached,
        }  # fmt: skip

    def __str__(self) -> str:
        f = self.file
        lines = [
            f"Plan for {f.name} on {f.cluster.get('name', 'cluster')}",
            f"  pipeline     {len(f.sizes)} stages, {f.microbatches} micro-batches, {f.schedule}, "
            f"idle {f.bubble:.1%}",
            f"  step         {seconds_text(f.step_s)} simulated",
            f"  memory       {bytes_text(self.peak_bytes)} peak per device of "
            f"{bytes_text(f.limit_bytes)}",
        ]
        for s, stage in enumerate(self.stages):
            a, b = stage.devices
            mesh = " x ".join(f"{axis}={n}" for axis, n in stage.mesh.items())
            lines.append(
                f"  stage {s:<6} slots {stage.layers[0]} to {stage.layers[1]} on devices {a} to "
                f"{b - 1} ({mesh}): busy {seconds_text(stage.step_s)}, "
                f"{bytes_text(stage.peak_bytes)}" + _again(stage.recompute)
            )
        for name, b in sorted(f.baselines.items(), key=lambda item: item[1].step_s):
            fit = "" if b.fits else ", does not fit"
            lines.append(f"  {name:<20} {seconds_text(b.step_s)} on {b.mesh}{fit}")
        if self.substitutions:
            rules = [f"{rule} {count} times" for rule, count in self.substitutions.items()]
            lines.append(f"  rewritten    {', '.join(rules)}")
        lines += [f"  warning: {text}" for text in f.warnings]
        if self.seconds:
            spent = ", ".join(f"{k} {v:.2f} s" for k, v in self.seconds.items())
            lines.append(f"  planned in {spent}")
        return "\n".join(lines)

    def explain(self, what: str = "", *, alternatives: int = 6) -> str:
        """Why a tensor of some stage is as it is; the whole plan if `what` is empty.

        Args:
            what: `STAGE` or `STAGE:TENSOR`, such as `1` or `1:params/3`.
            alternatives: how many to solve.

        Raises:
            PlanError: if there is no such stage or tensor.
        """
        if not what:
            return str(self)
        number, _, tensor = what.partition(":")
        if not number.isdecimal() or int(number) >= len(self.file.sizes):
            raise PlanError(
                f"there is no stage '{number}'", kind="unknown-tensor", where=self.where,
                remedy=f"write STAGE or STAGE:TENSOR, stages are 0 to {len(self.file.sizes) - 1}",
            )  # fmt: skip
        return self.stage_plans[int(number)].explain(tensor, alternatives=alternatives)

    def save(self, path: str | Path) -> None:
        """Writes the plan file; the same inputs give the same bytes."""
        write_pipeline(path, self.file)

    def report(self, path: str | Path) -> None:
        """Writes the plan as one HTML file that needs nothing but itself.

        Raises:
            PlanError: if the file cannot be written.
        """
        whys = [Plan(plan, where=self.where).why for plan in self.file.plans]
        write_files([(Path(path), pipeline_html(self.file, whys).encode())])

    def trace(self, path: str | Path) -> None:
        """Writes the simulated step as a trace that ui.perfetto.dev and Chrome open.

        Raises:
            PlanError: if the file cannot be written.
        """
        write_files([(Path(path), schedule_trace_json(self.simulated.timeline))])

    @cached_property
    def simulated(self) -> Priced:
        """The step simulated from the costs in the file, beside other schedules."""
        return priced_of(self.file)

    def export(self, to: str, path: str | Path) -> Written:
        """Writes the plan for another runtime: megatron, schedule, shardings or traffic.

        Raises:
            PlanError: if the format is unknown, cannot say this plan, or cannot be written.
        """
        return export_stages(self.file, to, Path(path), self.where)

    # --- running --------------------------------------------------------------------------------

    def bind(
        self,
        fn: Any,
        params: Any,
        batch: Any,
        *,
        optimizer: Any,
        has_aux: bool = False,
        batch_axis: int = 0,
    ) -> PipelinePlan:
        """Joins a loaded plan with the loss, arguments and optimizer that it was made for.

        Raises:
            PlanError: if they differ from the plan's; it says in which stage.
        """
        loss = opened(
            fn, params, batch, optimizer, microbatches=self.microbatches, has_aux=has_aux,
            loss_reduction=self.file.loss_reduction, batch_axis=batch_axis,
        )  # fmt: skip
        remedy = "plan this function anew"
        if self.file.cuts[-1] != len(loss.layers.slots):
            raise PlanError(
                f"the plan is of a program of {self.file.cuts[-1]} slots, this one has "
                f"{len(loss.layers.slots)}", kind="differs", where=self.where, remedy=remedy,
            )  # fmt: skip
        cut = cut_of(loss, self.file.cuts, self.file.recompute)
        rows = tuple(self._plan_of(s).substitutions for s in range(len(self.file.sizes)))
        bound = BoundStages(loss, cut, optimizer, rows if any(rows) else ())
        for s, stage in enumerate(bound.stages):
            if digest(stage.traced.graph) != self._plan_of(s).graph_digest:
                raise PlanError(
                    f"stage {s} of this program is not the one that was planned", kind="differs",
                    where=self.where, remedy=remedy,
                )  # fmt: skip
        return PipelinePlan(self.file, bound, self.seconds, self.where)

    def compile(self, *, devices: Sequence[Any] | None = None) -> Pipeline:
        """One callable: (params, opt_state, batch) -> (params, opt_state, loss).

        Raises:
            PlanError: if there are fewer devices than the plan needs, or no function is bound.
        """
        if self.bound is None:
            raise PlanError(
                "a loaded plan has no function yet", kind="not-bound", where=self.where,
                remedy="call load(path).bind(loss_fn, params, batch, optimizer=...) first",
            )  # fmt: skip
        f, need = self.file, sum(self.file.groups)
        here = list(devices) if devices is not None else sorted(
            jax.devices(), key=lambda device: (device.process_index, device.id)
        )  # fmt: skip
        if len(here) < need:
            raise PlanError(
                f"the plan needs {need} devices, there are {len(here)}", kind="too-few-devices",
                where=self.where, remedy="plan for the devices there are, or on a CPU set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={need} before JAX starts",
            )  # fmt: skip
        schedule = table_of(f.schedule, f.microbatches, f.recompute, f.chunks)
        solved = [(stage.program, self._solved(s, stage))
                  for s, stage in enumerate(self.bound.stages)]  # fmt: skip
        groups = split_devices(here, f.groups)
        return build_pipeline(self.bound.loss, f.cuts, schedule, groups, f.recompute, solved)

    def _solved(self, s: int, stage: Rehearsal) -> Solved:
        file = self._plan_of(s)
        cluster = Cluster.from_dict(file.cluster, where=self.where)
        model = ReshardModel(cluster, Mesh(file.mesh), CollectiveModel(cluster), file.room_bytes)
        return solved_of(stage, decisions_of(file, self.where), model)

    def shard(self, tree: Any, *, argnum: int, devices: Sequence[Any] | None = None) -> Any:
        """Places parameters (argnum 0) or optimizer state (1) as the plan wants them.

        Raises:
            PlanError: for another argument, or one of another structure.
        """
        if argnum not in (0, 1):
            raise PlanError(f"must be 0 or 1, got {argnum!r}", kind="bad-option", where="argnum",
                            remedy="the batch is placed as a step is called")  # fmt: skip
        return self.compile(devices=devices).place(tree, argnum)


def _again(recompute: str) -> str:
    """What a stage computes again, in words."""
    return "" if recompute == "none" else f", {recompute} recomputation"
