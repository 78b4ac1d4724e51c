"""`maxtext`: settings of MaxText, as a YAML file that is given beside base.yml."""

from __future__ import annotations

from collections.abc import Mapping

from ..analysed_plan import AnalysedPlan
from .degrees import DATA, EXPERT, IDLE, SEQUENCE, TENSOR, Degrees, degrees
from .record import Exported, Subject

_AXIS = {DATA: "data", SEQUENCE: "context", EXPERT: "expert", TENSOR: "tensor", IDLE: "data"}


def maxtext(subject: Subject) -> Exported:
    """Degrees inside a slice of fast links (ici_) and between them (dcn_)."""
    analysed = subject.analysed
    d = degrees(analysed)
    notes = list(d.notes)
    inside, between = _levels(analysed, d)
    lines = ["# Settings of a plan for MaxText; the model's own settings are not part of a plan."]
    for prefix, sizes in (("ici", inside), ("dcn", between)):
        lines += [f"{prefix}_{axis}_parallelism: {size}" for axis, size in sizes.items()]
    lines.append(f"per_device_batch_size: {_per_device(analysed, d):g}")
    lines.append(f"gradient_accumulation_steps: {d.microbatches}")
    lines.append(f"dtype: {d.dtype}")
    lines.append(f"remat_policy: {_remat(d)}")
    if analysed.program.host_states:
        lines.append("optimizer_memory_host_offload: True")
        notes.append(f"the plan keeps {len(analysed.program.host_states)} arrays of state on the "
                     "host, MaxText all of the optimizer's")  # fmt: skip
    if d.recompute == "selective":
        notes.append("MaxText has several policies that save products; save_qkv_proj is one")
    if d.zero in (1, 2):
        notes.append(f"ZeRO-{d.zero} has no setting: parameters are whole over {DATA} axes here, "
                     "optimizer state too")  # fmt: skip
    notes.append("layers are split by MaxText's own logical axis rules; the format `shardings` "
                 "has rules derived from the plan")  # fmt: skip
    lines += [f"# not expressed: {note}" for note in notes]
    return Exported(("\n".join(lines) + "\n").encode(), (), tuple(notes))


def _levels(analysed: AnalysedPlan, d: Degrees) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Degrees by axis of MaxText, inside islands of fast links and between them."""
    names = ("data", "fsdp", "context", "tensor", "expert", "pipeline")
    inside: dict[str, int] = dict.fromkeys(names, 1)
    between = dict(inside)
    stride = analysed.cluster.num_devices
    for axis, size in analysed.program.mesh:
        stride //= size
        kind = d.meaning[axis]
        name = "fsdp" if kind == DATA and d.zero == 3 else _AXIS[kind]
        near = max(1, min(size, analysed.cluster.island // stride))
        inside[name] *= near
        between[name] *= size // near
    between["pipeline"] = d.pipeline
    return inside, between


def _per_device(analysed: AnalysedPlan, d: Degrees) -> float:
    """MaxText counts examples per device and micro-batch; fractions are allowed."""
    return d.batch / (analysed.cluster.num_devices * d.microbatches) if d.batch else 1.0


def _remat(d: Degrees) -> str:
    return {"none": "minimal", "selective": "save_qkv_proj", "full": "full"}[d.recompute]
