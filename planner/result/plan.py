# pyright: basic
"""The plan: what was decided, what it is predicted to cost, and how to run it."""

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

from ..common.errors import PlanError
from ..common.surface import public_methods
from ..common.write_files import write_files
from ..emit.compilers import devices_for
from ..emit.jit import build_mesh, compile_plan
from ..emit.local_op import partition_spec
from ..emit.serialize import serialized
from ..files.plan_file import one_stage, write
from ..files.plan_summary import summary_of
from ..files.plan_text import show_plan
from ..inspect.export import Written, export_plan
from ..inspect.perfetto import trace_json
from ..inspect.report import report_html
from ..inspect.what_if import what_if
from ..pipeline.stage_planner import BoundStages
from ..sharding.lower import lower_decisions
from .bind import bound_program, placed, specs_like
from .bind_stages import bound_stages, compiled_stages
from .plan_view import PlanView


@public_methods
@dataclass(frozen=True)
class Plan(PlanView):
    """A plan for one function on one cluster, in one program or in stages.

    Times are predictions of the cost model, in seconds per call; bytes are per device. A plan in
    one program has one stage. Of several stages each is a plan of its own, for its part of the step
    on its devices: see `stage_plans`; what speaks of one program, such as `graph`, `decisions` or
    `in_shardings`, is theirs.
    """

    def input_shardings(self) -> dict[str, Sharding]:
        """Name of every argument of the one program -> its sharding."""
        names = [item.name for item in self.analysed.graph.inputs if item.role != "constant"]
        skipped = len(self.decisions.inputs) - len(names)
        return dict(zip(names, self.decisions.inputs[skipped:], strict=True))

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright plan --json`."""
        return summary_of(self.file, self.seconds, cached=self.cached)

    def __str__(self) -> str:
        inputs = self.input_shardings() if not self.file.in_stages else {}
        return show_plan(self.file, self.seconds, inputs, cached=self.cached)

    @cached_property
    def stage_plans(self) -> tuple[Plan, ...]:
        """For every stage the plan of its part of the step, all micro-batches in one loop."""
        plans = [
            Plan(one_stage(analysed.program, len(analysed.graph.nodes)), where=self.where)
            for analysed in self.analysed_programs
        ]
        return tuple(plans[stage.program] for stage in self.file.stages)

    def explain(self, what: str = "", *, alternatives: int = 6) -> str:
        """Why a tensor or op is as it is; the whole plan if `what` is empty.

        Alternatives are solved with that one choice fixed, not guessed.

        Args:
            what: a tensor or op; of a plan in stages `STAGE` or `STAGE:TENSOR`, such as `1` or
                `1:params/3`.
            alternatives: how many to solve.

        Raises:
            PlanError: if nothing in the program is called so.
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
        return self.analysed_programs[stage.program].explain(tensor, alternatives)

    def what_if(
        self,
        *,
        devices: int | None = None,
        memory_bytes: int | None = None,
        bandwidth: float = 1.0,
        pins: tuple[tuple[str, str], ...] = (),
    ) -> Plan:
        """The plan of the same program with something changed; it is not traced again.

        Args:
            devices: of the same kind and hosts.
            memory_bytes: of a device that may be used.
            bandwidth: of all links, as a multiple of what they have.
            pins: in addition to the plan's own.

        Raises:
            PlanError: if nothing fits, the devices do not fill hosts, or the plan is in stages.
        """
        program = what_if(
            self.analysed,
            devices=devices,
            memory_bytes=memory_bytes,
            bandwidth=bandwidth,
            pins=pins,
        )
        return Plan(one_stage(program, len(self.analysed.graph.nodes)), where=self.where)

    # --- files ----------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes the plan file; the same inputs give the same bytes."""
        write(path, self.file)

    def report(self, path: str | Path) -> None:
        """Writes the plan as one HTML file that needs nothing but itself.

        Raises:
            PlanError: if the file cannot be written.
        """
        write_files([(Path(path), report_html(self.file, self.analysed_programs).encode())])

    def trace(self, path: str | Path) -> None:
        """Writes the predicted step as a trace that ui.perfetto.dev and Chrome open.

        Raises:
            PlanError: if the file cannot be written.
        """
        write_files([(Path(path), trace_json(self.file, self.analysed_programs))])

    def export(self, to: str, path: str | Path) -> Written:
        """Writes the plan for another runtime.

        Args:
            to: a format, one of `planner.inspect.export.FORMATS`; docs/exports.md has them all, and
                which can say stages.
            path: the file; some formats write others beside it, with other endings.

        Raises:
            PlanError: if the format is unknown, cannot say this plan or cannot be written, or needs
                the function and the plan was loaded and not bound.
        """
        path = Path(path)
        return export_plan(
            self.file, self.analysed_programs, to, path, self.where, self._serialized
        )

    def _serialized(self) -> tuple[str, bytes]:
        """The compiled program as StableHLO text and bytes of `jax.export`."""
        self._need()
        devices = devices_for("host", self.mesh.num_devices, 1, "")
        return serialized(self.compile(devices=devices))

    def _repr_html_(self) -> str:
        """The report in a frame of its own, for notebooks."""
        page = html.escape(report_html(self.file, self.analysed_programs), quote=True)
        look = "width:100%;height:640px;border:1px solid #8888;border-radius:6px"
        return f'<iframe sandbox srcdoc="{page}" title="plan" style="{look}"></iframe>'

    # --- running --------------------------------------------------------------------------

    def bind(self, fn: Callable[..., Any], *args: Any, **settings: Any) -> Plan:
        """Joins a loaded plan with the function it was made for.

        Args:
            fn: the function, or the loss function of a plan made with `optimizer=`.
            args: its arguments, arrays or `jax.ShapeDtypeStruct`.
            settings: `optimizer=`, `has_aux=` and `batch_axis=`, if the plan was made with them.

        Raises:
            PlanError: if the function or its arguments differ from the plan's; it says how.
        """
        if not self.file.in_stages:
            bound = bound_program(self.analysed, fn, args, settings)
        else:
            bound = bound_stages(self.file, self.where, fn, args, settings)
        return Plan(self.file, bound, self.seconds, self.where)

    def _need(self) -> Traced | BoundStages:
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
        if isinstance(bound, BoundStages):
            raise self._in_stages()
        return bound

    def _here(self, devices: Sequence[Any] | None) -> Sequence[Any]:
        """The devices to run on.

        Raises:
            PlanError: if there are too few.
        """
        here = jax.devices() if devices is None else devices
        need = sum(self.file.groups)
        if len(here) < need:
            flag = f"--xla_force_host_platform_device_count={need}"
            mesh = f" ({self.mesh})" if not self.file.in_stages else ""
            raise PlanError(
                f"the plan needs {need} devices{mesh}, there are {len(here)}",
                kind="too-few-devices", where=self.where,
                remedy=f"plan for the devices there are, start more processes, or on a CPU set "
                f"XLA_FLAGS={flag} before JAX starts",
            )  # fmt: skip
        return here

    def _mesh(self, devices: Sequence[Any] | None) -> jax.sharding.Mesh:
        """The mesh of the one program over real devices.

        Raises:
            PlanError: if there are too few.
        """
        self._here(devices)
        return build_mesh(self.mesh, devices)

    def compile(self, *, devices: Sequence[Any] | None = None) -> Any:
        """One callable with the signature of the function, on the devices present.

        With `optimizer=`: (params, opt_state, batch) -> (params, opt_state, loss).

        Raises:
            PlanError: if there are fewer devices than the plan needs, or no function is bound.
        """
        bound, here = self._need(), self._here(devices)
        if isinstance(bound, BoundStages):
            if devices is None:
                here = sorted(here, key=lambda device: (device.process_index, device.id))
            return compiled_stages(self.file, bound, here, self.where)
        return compile_plan(bound, self._lowered, devices=devices, emission=self.program.emission)

    @cached_property
    def _lowered(self) -> LoweredPlan:
        """What each device runs of the one program."""
        tied = {result: argument for argument, result in self.program.ties}
        return lower_decisions(flatten(self.graph), self.decisions, self.analysed.reshard, tied)

    @property
    def in_shardings(self) -> Any:
        """PartitionSpecs of the arguments of the one program, as a tuple of pytrees."""
        traced = self._one()
        states = self.decisions.inputs[len(traced.program.consts) :]
        specs = [partition_spec(s) for s in states]
        args, _ = jax.tree.unflatten(traced.in_tree, specs)
        return args

    @property
    def out_shardings(self) -> Any:
        """PartitionSpecs of the results of the one program, as a pytree."""
        traced = self._one()
        specs = [partition_spec(s) for s in self.decisions.outputs]
        return jax.tree.unflatten(traced.out_tree, specs)

    def _specs_like(self, tree: Any, what: str, argnum: int | None) -> Any:
        return specs_like(self._one(), self.in_shardings, tree, what, argnum, self.where)

    def shard(
        self, tree: Any, *, argnum: int | None = None, devices: Sequence[Any] | None = None
    ) -> Any:
        """Places the arrays of one argument as the plan wants them.

        Args:
            tree: the argument.
            argnum: its position; found by its structure and shapes if not given. Of a plan in
                stages 0, the parameters, or 1, the optimizer's state.
            devices: all there are if None.

        Raises:
            PlanError: if no argument, or more than one, has this structure.
        """
        if not self.file.in_stages:
            return placed(tree, self._specs_like(tree, "the tree to shard", argnum),
                          self._mesh(devices))  # fmt: skip
        if argnum not in (0, 1):
            raise PlanError(f"must be 0 or 1, got {argnum!r}", kind="bad-option", where="argnum",
                            remedy="the batch is placed as a step is called")  # fmt: skip
        return self.compile(devices=devices).place(tree, argnum)

    def init(
        self,
        init_fn: Callable[..., Any],
        *args: Any,
        argnum: int | None = None,
        devices: Sequence[Any] | None = None,
    ) -> Any:
        """Runs `init_fn(*args)` so that its result is created sharded, never whole.

        Raises:
            PlanError: if its result is none of the function's arguments, or the plan is in stages.
        """
        result = jax.eval_shape(init_fn, *args)
        specs = self._specs_like(result, "the result of init_fn", argnum)
        mesh = self._mesh(devices)
        shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
        return jax.jit(init_fn, out_shardings=shardings)(*args)
