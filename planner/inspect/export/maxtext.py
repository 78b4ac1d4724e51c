"""`maxtext`: settings of MaxText, as a YAML file that is given beside base.yml.

Policies and names of tensors: AI-Hypercomputer/maxtext e591f30c, 2026-08-22:
`src/maxtext/configs/base.yml`, `layers/decoders.py` (`get_remat_policy`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..analysed_plan import AnalysedPlan
from .degrees import DATA, EXPERT, IDLE, SEQUENCE, TENSOR, Degrees, degrees
from .kept import AGAIN, HOST, INPUT, KEPT, MIXED, Kept
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
    lines += _remat(d.kept, notes)
    lines += _on_host(d, notes)
    if d.zero in (1, 2):
        notes.append(f"ZeRO-{d.zero} has no setting: parameters are whole over {DATA} axes here, "
                     "optimizer state too")  # fmt: skip
    notes.append("layers are split by MaxText's own logical axis rules; the format `shardings` "
                 "has rules derived from the plan")  # fmt: skip
    lines += [f"# not expressed: {note}" for note in notes]
    return Exported(("\n".join(lines) + "\n").encode(), (), tuple(notes))


def _on_host(d: Degrees, notes: list[str]) -> list[str]:
    """What is on the host between steps, of which MaxText has all of a kind or nothing."""
    kinds = (
        ("optimizer", "the optimizer's state", d.state_on_host),
        ("parameter", "the parameters", d.parameters_on_host),
    )
    there = [kind for kind in kinds if kind[2]]
    notes += [f"the plan keeps {share:.1%} of {what} on the host, MaxText all"
              for _, what, share in there]  # fmt: skip
    return [f"{name}_memory_host_offload: True" for name, _, _ in there]


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


# part of a layer -> the name that MaxText gives its result
_NAMES = {
    INPUT: "decoder_layer_input", "query": "query_proj", "key": "key_proj", "value": "value_proj",
    "key-value": "kv_proj", "query-key-value": "qkv_proj", "attention": "context",
    "attention-out": "out_proj", "mlp-in": "mlpwi", "mlp-gate": "mlpwi_0", "mlp-up": "mlpwi_1",
    "mlp-out": "mlpwo", "expert-in": "moe_mlpwi_0", "expert-gate": "moe_mlpwi_0",
    "expert-up": "moe_mlpwi_1", "expert-out": "moe_mlpwo",
}  # fmt: skip
_WHERE = {KEPT: "device", AGAIN: "remat", HOST: "offload", MIXED: "remat"}


def _remat(kept: Kept, notes: list[str]) -> list[str]:
    """A policy by name where one is the plan's, else one for each tensor.

    What has no name of MaxText is computed again, which needs no more memory.
    """
    notes += kept.others
    if kept.kind == "full" and not kept.those(HOST) and not kept.spared:
        return ["remat_policy: full"]
    notes.append("MaxText computes all light operations again, such as norms and activations")
    if kept.those(MIXED):
        notes.append(f"not alike in all layers: {', '.join(sorted(kept.those(MIXED)))}")
    if kept.kind == "none" and not kept.those(HOST):
        return ["remat_policy: minimal_with_context"]
    if not kept.parts:
        notes.append("the plan computes some products again; which of MaxText's tensors they are "
                     "is not known, so that all are")  # fmt: skip
        return ["remat_policy: full"]
    tensors = [f"{_NAMES[part]}: '{_WHERE[state]}'" for part, state in kept.parts.items()]
    return ["remat_policy: custom", *tensors]
