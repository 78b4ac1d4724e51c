"""`verify`: the plan's predictions beside what a compiler makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ir import IRError, iterations_if_unknown

from ...common.errors import PlanError
from ...common.surface import public_methods
from ...common.units_text import bytes_text
from ...emit.compilers import (
    COMPILERS,
    Compiled,
    compile_for_mesh,
    devices_for,
    gpus_present,
    has_plugin,
)
from ...emit.gpu_targets import GPU_TARGETS
from ...emit.hlo import collective_instructions
from ...sharding.cost.inside_ops import mapped_ops
from ..plan import Plan
from ..reprice import predicted_peak_bytes
from .collectives import Row, compare_collectives
from .scheduled import Overlap, scheduled_overlap

# Share of the predicted bytes on the wire that may be unexplained, and bytes that always may: what
# a few scalars need.
THRESHOLD = 0.01
FLOOR_BYTES = 1024.0


@public_methods
@dataclass(frozen=True, slots=True)
class Verification:
    """A plan beside its compiled program; bytes are per device.

    ok: the unexplained bytes are below the threshold, and for a GPU the program fits its memory.
    compiler: which one.
    collectives: by kind and group.
    predicted_peak_bytes, predicted_argument_bytes: of the plan, under this compiler.
    predicted_host_bytes: memory of the host that the plan takes for each device.
    compiled: text and memory of the program.
    limit_bytes: of a device, 0 where the program was not compiled for it.
    compiler_options: that the plan sets for this compiler.
    overlap: exposed seconds of the plan and of the compiler's schedule; None where collectives do
        not run beside compute.
    """

    ok: bool
    compiler: str
    collectives: tuple[Row, ...]
    predicted_peak_bytes: float
    predicted_argument_bytes: float
    predicted_host_bytes: float
    compiled: Compiled
    limit_bytes: float
    compiler_options: dict[str, bool | int]
    overlap: Overlap | None

    @property
    def unexplained_bytes(self) -> float:
        """Bytes on the wire of collectives that differ from the plan's for no known reason."""
        return sum(row.unexplained_bytes for row in self.collectives)

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright verify --json`."""
        m = self.compiled
        return {
            "ok": self.ok, "compiler": self.compiler, "compiler_options": self.compiler_options,
            "collectives": [
                {"kind": row.kind, "group_size": row.group_size,
                 "predicted_bytes": row.predicted_bytes, "compiled_bytes": row.compiled_bytes,
                 "note": row.note, "written_bytes": row.written_bytes,
                 "predicted_count": row.predicted_count, "compiled_count": row.compiled_count,
                 "unexplained_bytes": row.unexplained_bytes}
                for row in self.collectives
            ],
            "memory": {
                "predicted_peak_bytes": self.predicted_peak_bytes,
                "compiled_peak_bytes": m.peak_bytes,
                "predicted_argument_bytes": self.predicted_argument_bytes,
                "compiled_argument_bytes": m.argument_bytes,
                "compiled_output_bytes": m.output_bytes,
                "compiled_temporary_bytes": m.temporary_bytes,
                "compiled_alias_bytes": m.alias_bytes,
                "predicted_host_bytes": self.predicted_host_bytes,
                "compiled_host_bytes": m.host_bytes,
            },
            "overlap": None if self.overlap is None else self.overlap.summary(),
            "unexplained_bytes": self.unexplained_bytes,
            "notes": [*m.notes, *(() if self.overlap is None else self.overlap.notes)],
        }  # fmt: skip

    def __str__(self) -> str:
        m = self.compiled
        lines = [f"{'verified' if self.ok else 'NOT verified'} with the compiler '{self.compiler}'"]
        for row in self.collectives:
            group = f" over {row.group_size}" if row.group_size else ""
            lines.append(
                f"  {row.kind}{group}: predicted {row.predicted_count:g} x, "
                f"{bytes_text(row.predicted_bytes)}; compiled {row.compiled_count:g} x, "
                f"{bytes_text(row.compiled_bytes)}" + (f" ({row.note})" if row.note else "")
            )
        lines += [
            f"  unexplained: {bytes_text(self.unexplained_bytes)} on the wire",
            f"  memory: predicted {bytes_text(self.predicted_peak_bytes)}; compiled "
            f"{bytes_text(m.peak_bytes)} = arguments {bytes_text(m.argument_bytes)} + temporaries "
            f"{bytes_text(m.temporary_bytes)} + results {bytes_text(m.output_bytes)}, of which "
            f"{bytes_text(m.alias_bytes)} reuse arguments",
        ]
        if self.predicted_host_bytes or m.host_bytes:
            lines.append(
                f"  memory of the host: predicted {bytes_text(self.predicted_host_bytes)}; "
                f"compiled {bytes_text(m.host_bytes)}"
            )
        if self.limit_bytes and m.peak_bytes > self.limit_bytes:
            lines.append(f"  does not fit: a device has {bytes_text(self.limit_bytes)}")
        lines += [] if self.overlap is None else self.overlap.lines()
        return "\n".join([*lines, *(f"  note: {note}" for note in m.notes)])


def verify_program(plan: Plan, *, compiler: str | None = None) -> Verification:
    """Compiles a plan of one program and holds its collectives and memory against the prediction.

    Args:
        plan: with its function.
        compiler: see `planner.verify`.

    Raises:
        PlanError: if the compiler is missing or unknown, does not know the plan's devices, or
            cannot compile the program.
    """
    chosen = _usual(plan) if compiler is None else compiler
    if chosen not in COMPILERS:
        raise PlanError(
            f"there is no compiler '{chosen}'", kind="bad-option", where="compiler",
            remedy=f"use one of {', '.join(COMPILERS)}",
        )  # fmt: skip
    cluster, count = plan.cluster, plan.mesh.num_devices
    try:
        devices = devices_for(chosen, count, cluster.devices_per_host, cluster.profile)
    except IRError as error:
        raise PlanError(
            str(error), kind="no-compiler", where=f"compiler {chosen}", remedy=_remedy(chosen)
        ) from error
    program = plan.compile(devices=devices)
    try:
        compiled = compile_for_mesh(program)
    except IRError as error:
        raise PlanError(
            str(error), kind="no-compiler", where=f"compiler {chosen}", remedy=_other(chosen)
        ) from error
    trips = iterations_if_unknown(plan.graph)
    found = collective_instructions(compiled.text, devices=count, unknown_trips=trips)
    rows = compare_collectives(
        plan.collectives, program.written, plan.mesh, found, widens=chosen == "host",
        own=mapped_ops(plan.analysed.decided),
    )  # fmt: skip
    unexplained = sum(row.unexplained_bytes for row in rows)
    allowed = max(FLOOR_BYTES, THRESHOLD * sum(row.predicted_bytes for row in rows))
    limit = 0.0 if chosen == "host" else float(cluster.memory_bytes)
    elsewhere = chosen == "host" and not cluster.has_cpus
    peak = predicted_peak_bytes(plan, chosen) if elsewhere else plan.peak_bytes
    fits = not limit or compiled.peak_bytes <= limit
    return Verification(
        unexplained <= allowed and fits, chosen, rows, peak, plan.program.argument_bytes,
        plan.program.host_bytes, compiled, limit,
        {} if chosen == "host" else plan.compiler_options,
        None if chosen == "host" else scheduled_overlap(plan, compiled.text, trips),
    )  # fmt: skip


def _usual(plan: Plan) -> str:
    """The compiler nearest to the plan's machine that is here."""
    profile = plan.cluster.profile
    if profile != "host" and gpus_present() >= plan.mesh.num_devices:
        return "gpu"
    return "gpu-aot" if profile in GPU_TARGETS and has_plugin() else "host"


def _other(compiler: str) -> str:
    if compiler == "host":
        return "use --compiler gpu-aot, or report the program to the makers of XLA"
    return "use --compiler host, which checks the same collectives"


def _remedy(compiler: str) -> str:
    if compiler == "gpu":
        return "use --compiler gpu-aot, which needs no GPU, or host"
    return "pip install 'meshwright[gpu-aot]' for one of its GPUs, or use --compiler host"
