"""`deepspeed`: a ds_config.json.

Keys of `activation_checkpointing`: deepspeedai/DeepSpeed 077e6740,
`deepspeed/runtime/activation_checkpointing/config.py`.
"""

from __future__ import annotations

from typing import Any

from .degrees import EXPERT, IDLE, SEQUENCE, TENSOR, Degrees, degrees
from .kept import FULL, HOST, INPUT, LIGHT, NONE, Kept
from .record import Exported, Subject, json_bytes

_AWAY = {"device": "cpu", "pin_memory": True}


def deepspeed(subject: Subject) -> Exported:
    """DeepSpeed's settings; train_batch_size = micro-batch x accumulation x data-parallel size."""
    d = degrees(subject.analysed)
    notes = list(d.notes)
    replicas = d.replicas * d.degree(IDLE)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": d.micro_batch,
        "gradient_accumulation_steps": d.microbatches,
        "train_batch_size": d.micro_batch * d.microbatches * replicas,
        "zero_optimization": _zero(d.zero, _offloads(d, notes)),
    }
    if d.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    elif d.dtype == "float16":
        config["fp16"] = {"enabled": True}
    if d.degree(TENSOR) > 1:
        config["tensor_parallel"] = {"autotp_size": d.degree(TENSOR)}
        notes.append("DeepSpeed chooses itself which layers are split by rows and by columns")
    if d.degree(SEQUENCE) > 1:
        config["sequence_parallel_size"] = d.degree(SEQUENCE)
    if d.degree(EXPERT) > 1:
        notes.append(f"expert parallelism of {d.degree(EXPERT)} is set where the model is built: "
                     f"deepspeed.moe.layer.MoE(..., ep_size={d.degree(EXPERT)})")  # fmt: skip
    config |= _checkpointing(d.kept, notes)
    if d.pipeline > 1:
        notes.append(f"{d.pipeline} stages: pass num_stages={d.pipeline} to PipelineModule")
    if d.batch != config["train_batch_size"]:
        notes.append(f"the plan's batch is {d.batch}, these settings make "
                     f"{config['train_batch_size']}")  # fmt: skip
    return Exported(json_bytes(config), (), tuple(notes))


def _checkpointing(kept: Kept, notes: list[str]) -> dict[str, Any]:
    """The section on activations, where more than light operations are computed again."""
    if kept.kind == NONE and not kept.those(HOST):
        if kept.light:
            notes.append(f"DeepSpeed has no setting for what the plan does: {LIGHT}")
        return {}
    inputs = kept.kind == FULL and INPUT in kept.those(HOST)
    notes.append("what is computed again is set where the model is built, by "
                 "deepspeed.checkpointing.checkpoint around parts of its layers; in the plan: "
                 f"{'; '.join(kept.texts())}")  # fmt: skip
    if kept.those(HOST) - ({INPUT} if inputs else set[str]()):
        notes.append("of activations, DeepSpeed sends the inputs of checkpointed layers to the "
                     "host, and nothing else")  # fmt: skip
    section = {"partition_activations": False, "cpu_checkpointing": inputs}
    return {"activation_checkpointing": section}


def _offloads(d: Degrees, notes: list[str]) -> dict[str, Any]:
    """What is on the host between steps, of which DeepSpeed has all of a kind or nothing."""
    found: dict[str, Any] = {}
    if d.state_on_host:
        found["offload_optimizer"] = _AWAY
        notes.append(f"the plan keeps {d.state_on_host:.1%} of the optimizer's state on the host, "
                     "DeepSpeed all of it, where its CPU optimizer updates it")  # fmt: skip
    if d.parameters_on_host:
        share = f"the plan keeps {d.parameters_on_host:.1%} of the parameters on the host"
        if d.zero == 3:
            found["offload_param"] = _AWAY
        notes.append(f"{share}, DeepSpeed {'all of them' if d.zero == 3 else 'only with ZeRO-3'}")
    return found


def _zero(stage: int, away: dict[str, Any]) -> dict[str, Any]:
    if stage == 0:
        return {"stage": 0} if not away else {"stage": 1, **away}
    return {"stage": stage, "overlap_comm": True, "contiguous_gradients": True,
            "reduce_scatter": stage >= 2, **away}  # fmt: skip
