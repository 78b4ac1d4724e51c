# pyright: basic
"""The plan: decisions, predicted costs, and how to run it."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from ir import LoweredPlan, Sharding
from ir.analysis import flatten
from ir.trace import Traced

# what a plan may be asked for, loaded when it is
from .. import emit, inspect, pipeline
from ..common.compiler_options import options_here, options_of_all
from ..common.errors import PlanError
from ..common.log import LOGGER
from ..common.surface import public_methods
from ..common.write_files import write_files
from ..files.plan_file import one_stage, write
from ..files.plan_summary import summary_of
from ..files.plan_text import in_pipeline, plan_line, show_plan
from ..sharding.lower import lower_decisions
from .bind import bound_program, placed, specs_like
from .bind_stages import argument_like, bound_stages, compiled_stages
from .enough_devices import check_enough
from .plan_view import PlanView

RUNTIMES = ("dispatch", "scan")


@public_methods
@dataclass(frozen=True)
class Plan(PlanView):
    """A plan for one function on one cluster, in one program or in stages.

    Times are predictions of the cost model, in seconds per call; bytes are per device. A plan of
    one program has one stage. Each of several stages has a plan of its own, see `stage_plans`,
    which have the members of one program, such as `graph`, `decisions` or `in_shardings`.
    """

    def input_shardings(self) -> dict[str, Sharding]:
        """Name of each argument of the one program -> sharding."""
        names = [item.name for item in self.analysed.graph.inputs if item.role != "constant"]
        skipped = len(self.decisions.inputs) - len(names)
        return dict(zip(names, self.decisions.inputs[skipped:], strict=True))

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright plan --json`."""
        glance = self._glance.record()
        return summary_of(self.file, self.seconds, glance, cached=self.cached)

    @property
    def _glance(self) -> inspect.at_a_glance.Glance:
        if self.file.pipeline is not None:
            return inspect.at_a_glance.glance_of_stages(
                self.file, self.file.pipeline, self.analysed_programs
            )
        return inspect.at_a_glance.at_a_glance(self.analysed)

    def __repr__(self) -> str:
        return f"<Plan of {plan_line(self.file)}>"

    def __str__(self) -> str:
        inputs = {} if self.file.in_stages else self.input_shardings()
        return show_plan(self.file, self.seconds, inputs, self._glance.lines(), cached=self.cached)

    @cached_property
    def stage_plans(self) -> tuple[Plan, ...]:
        """The plan of each stage's part of the step, with all micro-batches in one loop."""
        plans = [
            Plan(one_stage(analysed.program, len(analysed.graph.nodes)), where=self.where)
            for analysed in self.analysed_programs
        ]
        return tuple(plans[stage.program] for stage in self.file.stages)

    def explain(self, what: str = "", *, alternatives: int = 6) -> str:
        """Explains the sharding of a tensor or op; the whole plan if `what` is empty.

        Each alternative is solved with that one choice fixed.

        Args:
            what: name of a tensor or op; for a plan in stages `STAGE` or `STAGE:TENSOR`, such as
                `1` or `1:params/3`.
            alternatives: number of alternatives to solve.

        Raises:
            PlanError: if nothing in the program has this name.
        """
        if not self.file.in_stages:
            return self.analysed.explain(what, alternatives)
        if not what:
            return str(self)
        number, _, tensor = what.partition(":")
        if not number.isdecimal() or int(number) >= len(self.file.stages):
            raise PlanError(
                f"there is no stage '{number}'", kind="unknown-tensor", where=self.where,
                remedy=f"write STAGE or STAGE:TENSOR, stages are 0 to {len(self.file.stages) - 1}",
            )  # fmt: skip
        stage = self.file.stages[int(number)]
        found = self.analysed_programs[stage.program].explain(tensor, alternatives)
        return found if tensor else f"{in_pipeline(int(number), self.file)}\n{found}"

    def what_if(
        self,
        *,
        devices: int | None = None,
        memory_bytes: int | None = None,
        bandwidth: float = 1.0,
        pins: tuple[tuple[str, str], ...] = (),
        schedules: str | Sequence[str] = (),
    ) -> Plan:
        """Plans the same program, or the same stages, under other conditions, without its function.

        Of a plan in stages the cuts, the number of micro-batches and each stage's share of the
        devices stay; its stages are planned again, and its schedule simulated.

        Args:
            devices: number of devices of the same kind, in the same hosts.
            memory_bytes: memory limit of one device [bytes].
            bandwidth: factor on the bandwidth of all links.
            pins: further pins, of a plan of one program.
            schedules: of a plan in stages, to choose from; its own if empty.

        Raises:
            PlanError: if nothing fits, or the devices do not fill hosts or stages.
        """
        found = inspect.what_if.what_if(
            self.file, self.analysed_programs, devices=devices, memory_bytes=memory_bytes,
            bandwidth=bandwidth, pins=pins,
            schedules=(schedules,) if isinstance(schedules, str) else tuple(schedules),
        )  # fmt: skip
        return Plan(found, where=self.where)

    # --- files ----------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes the plan file; the same inputs give the same bytes."""
        write(path, self.file)

    def report(self, path: str | Path) -> None:
        """Writes the plan as one self-contained HTML file.

        Raises:
            PlanError: if the file cannot be written.
        """
        page = inspect.report.report_html(self.file, self.analysed_programs)
        write_files([(Path(path), page.encode())])

    def trace(self, path: str | Path) -> None:
        """Writes the predicted step as a trace that ui.perfetto.dev and Chrome open.

        Raises:
            PlanError: if the file cannot be written.
        """
        events = inspect.perfetto.trace_json(self.file, self.analysed_programs)
        write_files([(Path(path), events)])

    def export(self, to: str, path: str | Path) -> inspect.export.Written:
        """Writes the plan for another runtime.

        Args:
            to: a format of `planner.inspect.export.FORMATS`, see docs/exports.md.
            path: path of the file; some formats write more files, with other endings.

        Raises:
            PlanError: if the format is unknown, cannot express this plan, cannot be written, or
                needs a function and none is bound.
        """
        path = Path(path)
        return inspect.export.export_plan(
            self.file, self.analysed_programs, to, path, self.where, self._serialized
        )

    def _serialized(self) -> tuple[str, bytes]:
        """The compiled program as StableHLO text and bytes of `jax.export`."""
        self._need()
        devices = emit.compilers.devices_for("host", self.mesh.num_devices, 1, "")
        return emit.serialize.serialized(self.compile(devices=devices))

    def _repr_html_(self) -> str:
        """The report in a frame of its own, for notebooks."""
        report = inspect.report.report_html(self.file, self.analysed_programs)
        page = html.escape(report, quote=True)
        look = "width:100%;height:640px;border:1px solid #8888;border-radius:6px"
        return f'<iframe sandbox srcdoc="{page}" title="plan" style="{look}"></iframe>'

    # --- running --------------------------------------------------------------------------

    def bind(self, fn: Callable[..., Any], *args: Any, **settings: Any) -> Plan:
        """Joins a loaded plan with its function.

        Args:
            fn: the function, or the loss function of a plan made with `optimizer=`.
            args: arguments of the function: arrays or `jax.ShapeDtypeStruct`.
            settings: `optimizer=`, `has_aux=` and `batch_axis=`, if the plan was made with them.

        Raises:
            PlanError: if the function or its arguments differ from the plan's.
        """
        if not self.file.in_stages:
            bound = bound_program(self.analysed, fn, args, settings)
        else:
            bound = bound_stages(self.file, self.where, fn, args, settings)
        LOGGER.info("bound: %s", plan_line(self.file))
        return Plan(self.file, bound, self.seconds, self.where)

    def _need(self) -> Traced | pipeline.BoundStages:
        if self.bound is None:
            call = "fn, *args" if not self.file.in_stages else "loss, params, batch, optimizer="
            raise PlanError(
                "a loaded plan has no function yet", kind="not-bound", where=self.where,
                remedy=f"call load(path).bind({call}) first",
            )  # fmt: skip
        return self.bound

    def _one(self) -> Traced:
        """The function of the one program."""
        bound = self._need()
        if not isinstance(bound, Traced):
            raise self._in_stages()
        return bound

    def _here(self, devices: emit.jit.Devices | None) -> Sequence[Any]:
        """The devices to run on.

        Raises:
            PlanError: if there are too few.
        """
        if isinstance(devices, jax.sharding.Mesh):
            devices = list(devices.devices.flat)
        here = jax.devices() if devices is None else devices
        mesh = f" ({self.mesh})" if not self.file.in_stages else ""
        check_enough(len(here), sum(self.file.groups), f"the plan{mesh}", self.where)
        return here

    def _mesh(self, devices: emit.jit.Devices | None) -> jax.sharding.Mesh:
        """The mesh of the one program over real devices.

        Raises:
            PlanError: if there are too few.
        """
        self._here(devices)
        return emit.build_mesh(self.mesh, devices)

    def compile(self, *, devices: emit.jit.Devices | None = None, runtime: str = "dispatch") -> Any:
        """A callable with the signature of the function, on the devices present.

        With `optimizer=`: (params, opt_state, batch) -> (params, opt_state, loss).

        Args:
            devices: devices to run on, in row-major order; all there are if None.
            runtime: of a plan in stages: "dispatch" starts a program for each task of the
                schedule; "scan" is one program that runs the schedule in rounds, for stages of
                equal layers on equal groups of devices.

        Raises:
            PlanError: if there are fewer devices than the plan needs, no function is bound, or the
                stages cannot run as one program.
        """
        bound, here = self._need(), self._here(devices)
        if runtime not in RUNTIMES:
            raise PlanError(
                f"must be {' or '.join(map(repr, RUNTIMES))}, got {runtime!r}", kind="bad-option",
                where="runtime", remedy="leave it out to start each task by itself",
            )  # fmt: skip
        LOGGER.info("emitting %s for %d devices", self.file.whole.name, sum(self.file.groups))
        if not isinstance(bound, Traced):
            if devices is None:
                here = sorted(here, key=lambda device: (device.process_index, device.id))
            return compiled_stages(self.file, bound, here, self.where, runtime)
        return emit.compile_plan(
            bound, self._lowered, devices=devices, emission=self.program.emission,
            gpu_options=self.compiler_options,
        )  # fmt: skip

    @property
    def compiler_options(self) -> dict[str, bool | int]:
        """Options of XLA's compiler that `compile` sets for GPUs; none for other devices.

        They are those of the plan file, in the names of the jaxlib installed; of a plan in stages,
        those for all of its programs. A step of your own is compiled with the same ones by
        `jax.jit(..., compiler_options=...)`.
        """
        return options_here(
            options_of_all([program.compiler_options for program in self.file.programs])
        )

    @cached_property
    def _lowered(self) -> LoweredPlan:
        """The lowered plan of the one program."""
        tied = {number: argument for argument, number in self.program.ties}
        return lower_decisions(flatten(self.graph), self.decisions, self.analysed.reshard, tied)

    @property
    def in_shardings(self) -> Any:
        """PartitionSpecs of the arguments of the one program, as a tuple of pytrees."""
        traced = self._one()
        states = self.decisions.inputs[len(traced.program.consts) :]
        specs = [emit.partition_spec(s) for s in states]
        args, _ = jax.tree.unflatten(traced.in_tree, specs)
        return args

    @property
    def specs(self) -> Any:
        """`in_shardings`: PartitionSpecs of the arguments, in the names of the plan's mesh."""
        return self.in_shardings

    @property
    def shardings(self) -> Any:
        """NamedShardings of the arguments, over the devices present.

        Of a plan in stages those of parameters and optimizer state, each on the devices of its
        stage; a stack of layers that lies on several has `PieceShardings`. None for the batch,
        which is placed as a step is called.

        Raises:
            PlanError: if there are too few, or no function is bound.
        """
        if self.file.in_stages:
            step = self.compile()
            return step.shardings(0), step.shardings(1), None
        mesh = self._mesh(None)
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.specs)

    @property
    def out_shardings(self) -> Any:
        """PartitionSpecs of the results of the one program, as a pytree."""
        traced = self._one()
        specs = [emit.partition_spec(s) for s in self.decisions.outputs]
        return jax.tree.unflatten(traced.out_tree, specs)

    def _specs_like(self, tree: Any, what: str, argnum: int | None) -> Any:
        return specs_like(self._one(), self.in_shardings, tree, what, argnum, self.where)

    def shard(
        self, tree: Any, *, argnum: int | None = None, devices: emit.jit.Devices | None = None
    ) -> Any:
        """Places the arrays of one argument with the plan's shardings.

        Args:
            tree: the argument, a pytree of arrays.
            argnum: position of the argument; found by structure and shapes if None. For a plan in
                stages 0 (parameters) or 1 (optimizer state), found likewise.
            devices: devices of the mesh; all present if None.

        Raises:
            PlanError: if no argument, or more than one, has this structure.
        """
        if not self.file.in_stages:
            return placed(tree, self._specs_like(tree, "the tree to shard", argnum),
                          self._mesh(devices))  # fmt: skip
        number = self._argument_like(tree, "the tree to shard", argnum)
        return self.compile(devices=devices).place(tree, number)

    def _argument_like(self, tree: Any, what: str, argnum: int | None) -> int:
        """Number of an argument of a plan in stages."""
        bound = self._need()
        assert not isinstance(bound, Traced)
        return argument_like(bound, tree, what, argnum, self.where)

    def init(
        self,
        init_fn: Callable[..., Any],
        *args: Any,
        argnum: int | None = None,
        devices: emit.jit.Devices | None = None,
    ) -> Any:
        """Runs `init_fn(*args)` with a result that is created sharded, never whole on one device.

        In stages each group of devices computes its own part of the result.

        Raises:
            PlanError: if its result is none of the function's arguments.
        """
        if self.file.in_stages:
            made = jax.eval_shape(init_fn, *emit.types_of(args))
            number = self._argument_like(made, "the result of init_fn", argnum)
            return self.compile(devices=devices).init(init_fn, args, number)
        made = jax.eval_shape(init_fn, *args)
        specs = self._specs_like(made, "the result of init_fn", argnum)
        mesh = self._mesh(devices)
        shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
        return jax.jit(init_fn, out_shardings=shardings)(*args)


PipelinePlan = Plan  # plans in stages had a class of their own
