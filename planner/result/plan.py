# pyright: basic
"""The plan: what was decided, what it is predicted to cost, and how to run it."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from costmodel import Cluster, CollectiveModel, ReshardModel
from ir import Graph, Mesh, Sharding, differences, digest
from ir.analysis import Decisions
from ir.trace import trace

from ..common.errors import PlanError
from ..common.stop import Stop
from ..common.surface import public_methods
from ..common.write_files import write_files
from ..emit.compilers import devices_for
from ..emit.jit import build_mesh, compile_plan
from ..emit.local_op import partition_spec
from ..emit.serialize import serialized
from ..files.plan_file import PlanFile, decisions_of, write
from ..files.plan_summary import counted, fits, summary_of
from ..files.plan_text import show_plan
from ..inspect.analysed_plan import Why
from ..inspect.export import Written, export_files
from ..inspect.perfetto import trace_json
from ..inspect.report import report_html
from ..inspect.timeline import predicted
from ..inspect.what_if import what_if
from ..sharding.cost.account import Collective
from ..sharding.rewrite.replay import as_rewritten
from ..sharding.search.baselines import Baseline
from .bind import Bound, placed, specs_like, step_of, with_state
from .stage import Stage


@public_methods
@dataclass(frozen=True)
class Plan:
    """A plan for one function on one cluster.

    Times are predictions of the cost model, in seconds per call; bytes are per device.
    cached: it was found in the plan store and not searched.
    """

    file: PlanFile
    bound: Bound | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    where: str = "plan"
    cached: bool = False

    # --- what it says ---------------------------------------------------------------------

    @property
    def step_s(self) -> float:
        """Predicted seconds of one call."""
        return self.file.step_s

    @property
    def peak_bytes(self) -> float:
        """Predicted peak memory of one device."""
        return self.file.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit; a plan that does not fit is not returned."""
        return fits(self.file)

    @property
    def lower_bound_s(self) -> float:
        """No plan of the searched space is faster, by the same cost model.

        Where a program was large and repeats itself, that space has the plans that shard its
        repeated layers alike (`decided_operations` is less than `operations` in the summary).
        """
        return self.file.lower_bound_s

    @property
    def gap(self) -> float:
        """(step - bound) / step."""
        step = self.file.step_s
        return max(0.0, (step - self.file.lower_bound_s) / step) if step > 0 else 0.0

    @property
    def stop(self) -> Stop:
        """Why the search ended."""
        return Stop[self.file.stop]

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.file.mesh)

    @property
    def microbatches(self) -> int:
        return self.file.microbatches

    @property
    def schedule(self) -> str:
        return self.file.schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(
            Stage(s.layers, s.devices, s.mesh, s.step_s, s.peak_bytes, s.recompute)
            for s in self.file.stages
        )

    @property
    def baselines(self) -> dict[str, Baseline]:
        """Hand-written plans priced by the same cost model."""
        return {
            name: Baseline(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in self.file.baselines.items()
        }

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of one call, the dearest first."""
        return tuple(
            Collective(c.kind, c.axes, c.group_size, c.bytes, c.count, c.seconds, c.cause)
            for c in self.file.collectives
        )

    @property
    def substitutions(self) -> dict[str, int]:
        """Proven rules that the program was rewritten by, and how often each was applied."""
        return counted(self.file)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.file.warnings

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.from_dict(self.file.cluster, where=self.where)

    @cached_property
    def decisions(self) -> Decisions:
        return decisions_of(self.file, self.where)

    @cached_property
    def graph(self) -> Graph:
        """The graph that was planned."""
        return self.bound.traced.graph if self.bound is not None else self.why.graph

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright plan --json`."""
        return summary_of(self.file, self.gap, self.seconds, cached=self.cached)

    def __str__(self) -> str:
        return show_plan(self.file, self.seconds, self.input_shardings(), cached=self.cached)

    def input_shardings(self) -> dict[str, Sharding]:
        """Name of every argument -> its sharding."""
        names = [item.name for item in self.why.graph.inputs if item.role != "constant"]
        skipped = len(self.decisions.inputs) - len(names)
        return dict(zip(names, self.decisions.inputs[skipped:], strict=True))

    def explain(self, what: str = "", *, alternatives: int = 6) -> str:
        """Why a tensor or op is as it is; the whole plan if `what` is empty.

        Alternatives are solved with that one choice fixed, not guessed.

        Raises:
            PlanError: if nothing in the program is called so.
        """
        return self.why.explain(what, alternatives)

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
            PlanError: if nothing fits, or the devices do not fill hosts.
        """
        file = what_if(
            self.why, devices=devices, memory_bytes=memory_bytes, bandwidth=bandwidth, pins=pins
        )
        return Plan(file, where=self.where)

    @cached_property
    def why(self) -> Why:
        """The search space around this plan."""
        return Why(self.file, self.decisions, self.cluster, self.where)

    # --- files ----------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes the plan file; the same inputs give the same bytes."""
        write(path, self.file)

    def report(self, path: str | Path) -> None:
        """Writes the plan as one HTML file that needs nothing but itself.

        Raises:
            PlanError: if the file cannot be written.
        """
        write_files([(Path(path), report_html(self.why).encode())])

    def trace(self, path: str | Path) -> None:
        """Writes the predicted step as a trace that ui.perfetto.dev and Chrome open.

        Raises:
            PlanError: if the file cannot be written.
        """
        write_files([(Path(path), trace_json(self.why, predicted(self.why)))])

    def export(self, to: str, path: str | Path) -> Written:
        """Writes the plan for another runtime.

        Args:
            to: a format, one of `planner.inspect.export.FORMATS`; docs/exports.md has them all.
            path: the file; some formats write others beside it, with other endings.

        Raises:
            PlanError: if the format is unknown or cannot be written, or needs the function and
                the plan was loaded and not bound.
        """

        def serialize() -> tuple[str, bytes]:
            self._need()
            devices = devices_for("host", self.mesh.num_devices, 1, "")
            return serialized(self.compile(devices=devices))

        return export_files(self.why, to, Path(path), serialize)

    def _repr_html_(self) -> str:
        """The report in a frame of its own, for notebooks."""
        page = html.escape(report_html(self.why), quote=True)
        look = "width:100%;height:640px;border:1px solid #8888;border-radius:6px"
        return f'<iframe sandbox srcdoc="{page}" title="plan" style="{look}"></iframe>'

    def bind(self, fn: Callable[..., Any], *args: Any, **settings: Any) -> Plan:
        """Joins a loaded plan with the function it was made for.

        Args:
            fn: the function, or the loss function of a plan made with `optimizer=`.
            args: its arguments, arrays or `jax.ShapeDtypeStruct`.
            settings: `optimizer=` and `has_aux=`, if the plan was made with them.

        Raises:
            PlanError: if the function or its arguments differ from the plan's; it says how.
        """
        if settings:
            fn, args = step_of(self.file, fn, args, settings)
        traced = trace(fn, *args, pinned=self.file.shardings == "pin")
        if self.file.substitutions:
            hint = "" if settings else self._hint()
            traced = as_rewritten(traced, self.file, self.where, hint)
        traced = with_state(traced, self.file)
        if digest(traced.graph) != self.file.graph_digest:
            raise PlanError(
                "the plan is for another function or other arguments: "
                + differences(self.why.graph, traced.graph),
                kind="differs", where=self.where,
                remedy="plan this function anew" + ("" if settings else self._hint()),
            )  # fmt: skip
        return Plan(self.file, Bound(traced), self.seconds, self.where)

    def _hint(self) -> str:
        trains = "optimizer-state" in self.file.roles
        return ", or give bind the optimizer= that it was made with" if trains else ""

    # --- running --------------------------------------------------------------------------

    def _need(self) -> Bound:
        if self.bound is None:
            raise PlanError(
                "a loaded plan has no function yet", kind="not-bound", where=self.where,
                remedy="call load(path).bind(fn, *args) first",
            )  # fmt: skip
        return self.bound

    def _mesh(self, devices: Sequence[Any] | None) -> jax.sharding.Mesh:
        """The mesh over real devices.

        Raises:
            PlanError: if there are too few.
        """
        here = jax.devices() if devices is None else devices
        need = self.mesh.num_devices
        if len(here) < need:
            flag = f"--xla_force_host_platform_device_count={need}"
            raise PlanError(
                f"the plan needs {need} devices ({self.mesh}), there are {len(here)}",
                kind="too-few-devices", where=self.where,
                remedy=f"plan for the devices there are, start more processes, or on a CPU set "
                f"XLA_FLAGS={flag} before JAX starts",
            )  # fmt: skip
        return build_mesh(self.mesh, devices)

    @cached_property
    def _reshard(self) -> ReshardModel:
        collectives = CollectiveModel(self.cluster)
        return ReshardModel(self.cluster, self.mesh, collectives, self.file.room_bytes)

    def compile(self, *, devices: Sequence[Any] | None = None) -> Any:
        """One callable with the signature of the function, on the devices present.

        With `optimizer=`: (params, opt_state, batch) -> (params, opt_state, loss).

        Raises:
            PlanError: if there are fewer devices than the plan needs, or no function is bound.
        """
        traced = self._need().traced
        self._mesh(devices)
        return compile_plan(
            traced, self.decisions, self._reshard, devices=devices,
            emission=self.file.emission,
        )  # fmt: skip

    @property
    def in_shardings(self) -> Any:
        """PartitionSpecs of the arguments, as a tuple of pytrees."""
        traced = self._need().traced
        states = self.decisions.inputs[len(traced.program.consts) :]
        specs = [partition_spec(s) for s in states]
        args, _ = jax.tree.unflatten(traced.in_tree, specs)
        return args

    @property
    def out_shardings(self) -> Any:
        """PartitionSpecs of the results, as a pytree."""
        traced = self._need().traced
        specs = [partition_spec(s) for s in self.decisions.outputs]
        return jax.tree.unflatten(traced.out_tree, specs)

    def _specs_like(self, tree: Any, what: str, argnum: int | None) -> Any:
        """Specs of the argument that has the structure and shapes of `tree`."""
        return specs_like(self._need(), self.in_shardings, tree, what, argnum, self.where)

    def shard(
        self, tree: Any, *, argnum: int | None = None, devices: Sequence[Any] | None = None
    ) -> Any:
        """Places the arrays of one argument as the plan wants them.

        Args:
            tree: the argument.
            argnum: its position; found by its structure and shapes if not given.
            devices: all there are if None.

        Raises:
            PlanError: if no argument, or more than one, has this structure.
        """
        specs = self._specs_like(tree, "the tree to shard", argnum)
        return placed(tree, specs, self._mesh(devices))

    def init(
        self,
        init_fn: Callable[..., Any],
        *args: Any,
        argnum: int | None = None,
        devices: Sequence[Any] | None = None,
    ) -> Any:
        """Runs `init_fn(*args)` so that its result is created sharded, never whole.

        Raises:
            PlanError: if its result is none of the function's arguments.
        """
        result = jax.eval_shape(init_fn, *args)
        specs = self._specs_like(result, "the result of init_fn", argnum)
        mesh = self._mesh(devices)
        shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
        return jax.jit(init_fn, out_shardings=shardings)(*args)
