"""Plans in stages for other runtimes: the parts that their formats can express."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from costmodel import Cluster

from ...common.errors import PlanError
from ...common.write_files import write_files
from ...files.plan_file import PlanFile
from ...pipeline.file_schedule import schedule_file, transfers
from ..analysed_plan import AnalysedPlan
from .degrees import Degrees, degrees
from .kept import AGAIN, UNREAD, Kept, computes_again
from .megatron import arguments
from .megatron_bridge import text
from .record import Exported, json_bytes
from .specs import spec_of
from .write import Written, format_called


def export_stages(
    file: PlanFile, programs: Sequence[AnalysedPlan], to: str, path: Path, where: str
) -> Written:
    """Exports a plan in stages.

    Args:
        file: the plan.
        programs: the search space around each of `file.programs`.
        to: name of the format.
        path: the file to write.
        where: the plan is, for errors.

    Raises:
        PlanError: if the format is unknown, cannot express the plan, or cannot be written.
    """
    name = format_called(to).name
    if name not in _MAKERS:
        raise PlanError(
            f"the format '{name}' cannot say stages with programs of their own", kind="bad-plan",
            where=where, remedy=f"export {', '.join(_MAKERS)}, or plan with pipeline='off'",
        )  # fmt: skip
    made = _MAKERS[name](file, programs)
    write_files([(path, made.main)])
    return Written(name, (path,), made.notes)


def _schedule(file: PlanFile, programs: Sequence[AnalysedPlan]) -> Exported:
    """Tasks of every stage in order, with costs, as `meshwright simulate` reads them."""
    del programs
    data = msgspec.to_builtins(schedule_file(file))
    return Exported(json_bytes(data), (), ("one device of the schedule is the devices of a stage",))


def _shardings(file: PlanFile, programs: Sequence[AnalysedPlan]) -> Exported:
    """PartitionSpecs of every stage's parameters on its own mesh."""
    stages: list[dict[str, Any]] = []
    for stage, plan in zip(file.stages, file.members, strict=True):
        states = programs[stage.program].decisions.inputs
        own = [state for state, role in zip(states, plan.roles, strict=True) if role == "parameter"]
        stages.append(
            {
                "devices": list(stage.devices),
                "mesh": [[axis, n] for axis, n in plan.mesh],
                "parameters": {
                    name: spec_of(state) for name, state in zip(stage.params, own, strict=True)
                },
            }
        )
    data = {"format": "meshwright-stage-shardings", "version": 1, "stages": stages}
    notes = ("shardings say where parameters lie, not what runs between them",)
    return Exported(json_bytes(data), (), notes)


def _traffic(file: PlanFile, programs: Sequence[AnalysedPlan]) -> Exported:
    """Transfers between stages, and collectives inside them."""
    del programs
    stages = [
        [
            {"kind": c.kind, "axes": list(c.axes), "bytes_per_device": c.bytes, "count": c.count,
             "seconds": c.seconds, "cause": c.cause}
            for c in program.collectives
        ]
        for program in file.members
    ]  # fmt: skip
    data = {
        "format": "meshwright-stage-traffic", "version": 1, "step_s": file.joined.step_s,
        "transfers": transfers(file), "stages": stages,
    }  # fmt: skip
    return Exported(json_bytes(data))


def _megatron(file: PlanFile, programs: Sequence[AnalysedPlan]) -> Exported:
    """Megatron-LM's arguments, where all stages are split alike."""
    one, notes = _alike(file, programs, "Megatron-LM")
    words = arguments(one, notes)
    devices = Cluster.from_dict(file.joined.cluster).num_devices
    data = {
        "format": "meshwright-megatron", "version": 1, "world_size": devices,
        "arguments": words, "not_expressed": notes,
    }  # fmt: skip
    return Exported(json_bytes(data), (), tuple(notes))


def _megatron_bridge(file: PlanFile, programs: Sequence[AnalysedPlan]) -> Exported:
    """Overrides of Megatron-Bridge, where all stages are split alike."""
    one, notes = _alike(file, programs, "Megatron-Bridge")
    data = text(one, notes)
    return Exported(data, (), tuple(notes))


def _alike(
    file: PlanFile, programs: Sequence[AnalysedPlan], runtime: str
) -> tuple[Degrees, list[str]]:
    """The degrees of all stages, and what they leave out.

    Raises:
        PlanError: if stages are split in different ways.
    """
    joined = file.joined
    found = [degrees(analysed) for analysed in programs]
    said = {(tuple(sorted(d.meaning.items())), tuple(d.sizes.items()), d.zero) for d in found}
    if len(said) > 1:
        raise PlanError(
            f"its stages are split in different ways, which {runtime} cannot say",
            kind="bad-plan", where=programs[0].where, remedy="export schedule and shardings",
        )  # fmt: skip
    kinds = set(file.recompute)
    recompute = kinds.pop() if len(kinds) == 1 else "full"
    one = replace(
        found[0], pipeline=len(file.groups), microbatches=joined.microbatches,
        batch=found[0].batch * joined.microbatches,
        kept=_KEPT[recompute] if recompute in _KEPT and (
            recompute != "none" or not any(map(computes_again, programs))
        ) else UNREAD,
    )  # fmt: skip
    notes = [*one.notes, f"the schedule is {joined.schedule}, {runtime}'s is 1F1B"]
    if len({b - a for a, b in zip(file.cuts, file.cuts[1:], strict=False)}) > 1:
        notes.append(f"stages have different numbers of layers; {runtime} divides them evenly")
    if joined.chunks > 1:
        notes.append(f"{joined.chunks} stages in turn are on each group of devices")
    if len(set(file.recompute)) > 1:
        notes.append(f"recomputation differs by stage: {', '.join(file.recompute)}")
    return one, notes


# what stages compute again by kind, in the terms of one program
_KEPT = {
    "none": Kept(), "selective": Kept("selective", {"attention": AGAIN}, others=(
        "other products without weights are computed again too, those of experts as well",)),
    "full": Kept("full"), "stage": Kept("full"),
}  # fmt: skip

_MAKERS: Mapping[str, Callable[[PlanFile, Sequence[AnalysedPlan]], Exported]] = {
    "megatron": _megatron, "megatron-bridge": _megatron_bridge, "schedule": _schedule,
    "shardings": _shardings, "traffic": _traffic,
}  # fmt: skip
