# pyright: basic
"""`verify` for a plan in stages: each distinct stage compiled, its collectives held against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...common.errors import PlanError
from ...common.surface import public_methods
from ...common.units_text import bytes_text
from ...pipeline.bound_stages import BoundStages
from ...pipeline.file_schedule import transfers
from ..plan import Plan
from .program import Verification, verify_program

NOTE = "a stage is compiled with its micro-batches in one loop; it runs in parts"


@public_methods
@dataclass(frozen=True, slots=True)
class StagesVerification(Verification):
    """Every distinct stage beside its compiled program.

    collectives: of all stages, one after another; memory is that of the fullest.
    stages: of the distinct programs.
    members: for each stage the number of its verification; equal stages share one.
    peaks: predicted bytes of each stage with all micro-batches in flight.
    transfers: what goes between stages; it is copied, not compiled.
    """

    stages: tuple[Verification, ...]
    members: tuple[int, ...]
    peaks: tuple[float, ...]
    transfers: tuple[dict[str, Any], ...]

    @property
    def unexplained_bytes(self) -> float:
        """Of the stage that has most of them."""
        return max(stage.unexplained_bytes for stage in self.stages)

    def summary(self) -> dict[str, Any]:
        """The contract of `meshwright verify --json`; figures of all stages stand in `stages`."""
        found = [stage.summary() for stage in self.stages]
        peaks = [row["memory"] for row in found]
        rows = [row | {"stage": s} for s, m in enumerate(self.members)
                for row in found[m]["collectives"]]  # fmt: skip
        return {
            "ok": self.ok, "compiler": self.compiler, "compiler_options": self.compiler_options,
            "collectives": rows,
            "memory": {key: max(memory[key] for memory in peaks) for key in peaks[0]},
            "unexplained_bytes": self.unexplained_bytes, "stages": found,
            "members": list(self.members), "transfers": list(self.transfers),
            "notes": [NOTE],
        }  # fmt: skip

    def __str__(self) -> str:
        peaks = ", ".join(f"{bytes_text(peak)} (stage {s})" for s, peak in enumerate(self.peaks))
        lines = [
            f"{NOTE}: its memory here is that of one micro-batch in flight; with all that are in "
            f"flight the plan has {peaks}"
        ]
        for m, stage in enumerate(self.stages):
            which = ", ".join(str(s) for s, k in enumerate(self.members) if k == m)
            lines.append(f"stage {which}: {stage}")
        lines += [
            f"transfer of {t['what']}: devices {t['from_devices'][0]} to "
            f"{t['from_devices'][1] - 1} -> {t['to_devices'][0]} to {t['to_devices'][1] - 1}, "
            f"{t['count']} x {bytes_text(t['bytes'])}"
            for t in self.transfers
        ]
        return "\n".join(lines)


def verify_stages(plan: Plan, *, compiler: str | None = None) -> StagesVerification:
    """Compiles every distinct stage and holds it against its plan.

    Raises:
        PlanError: if no function is bound, or the compiler is missing or unknown.
    """
    if not isinstance(plan.bound, BoundStages):
        raise PlanError(
            "a loaded plan has no function yet", kind="not-bound", where=plan.where,
            remedy="call load(path).bind(loss_fn, params, batch, optimizer=...) first",
        )  # fmt: skip
    members = tuple(stage.program for stage in plan.file.stages)
    found: list[Verification] = []
    for member in range(len(plan.file.programs)):
        s = members.index(member)
        bound = replace(plan.stage_plans[s], bound=plan.bound.stages[s].traced)
        found.append(verify_program(bound, compiler=compiler))
    fullest = max(found, key=lambda stage: stage.compiled.peak_bytes)
    return StagesVerification(
        ok=all(stage.ok for stage in found), compiler=fullest.compiler,
        collectives=tuple(row for member in members for row in found[member].collectives),
        predicted_peak_bytes=max(stage.predicted_peak_bytes for stage in found),
        predicted_argument_bytes=max(stage.predicted_argument_bytes for stage in found),
        predicted_host_bytes=max(stage.predicted_host_bytes for stage in found),
        compiled=fullest.compiled, limit_bytes=fullest.limit_bytes,
        compiler_options=fullest.compiler_options, overlap=fullest.overlap,
        stages=tuple(found), members=members,
        peaks=tuple(stage.peak_bytes for stage in plan.file.stages),
        transfers=tuple(transfers(plan.file)),
    )  # fmt: skip
