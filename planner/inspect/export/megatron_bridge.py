"""`megatron-bridge`: overrides of a recipe of NVIDIA's Megatron-Bridge, as a YAML file.

Sections and fields are those of its `ConfigContainer` (NVIDIA-NeMo/Megatron-Bridge 067f987,
2026-08-22: `src/megatron/bridge/training/config.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .degrees import EXPERT, SEQUENCE, TENSOR, Degrees, degrees
from .megatron import NO_MODEL, STRATEGY
from .megatron_memory import Field, distributed, model_fields, optimizer_fields
from .record import Exported, Subject

Section = Mapping[str, Field]
_PRECISION = {"bfloat16": "bf16_mixed", "float16": "fp16_mixed"}


def megatron_bridge(subject: Subject) -> Exported:
    """Degrees, batch sizes, sharded data parallelism, precision and recomputation."""
    d = degrees(subject.analysed)
    notes = list(d.notes)
    if d.dtype not in _PRECISION:
        notes.append(f"products of {d.dtype} have no recipe of mixed precision")
    data = text(d, notes)
    return Exported(data, (), tuple(notes))


def text(d: Degrees, notes: list[str]) -> bytes:
    """The file: sections of overrides, then what they do not express, which `notes` gets too."""
    lines = ["# Overrides of a plan for a recipe of Megatron-Bridge (ConfigContainer)."]
    if d.dtype in _PRECISION:
        lines.append(f"mixed_precision: {_PRECISION[d.dtype]}")
    for name, section in _sections(d, notes):
        lines.append(f"{name}:")
        lines += [f"  {field}: {_literal(value)}" for field, value in section.items()]
    notes.append(NO_MODEL)
    lines += [f"# not expressed: {note}" for note in notes]
    return ("\n".join(lines) + "\n").encode()


def _literal(value: Field) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sections(d: Degrees, notes: list[str]) -> Iterator[tuple[str, Section]]:
    tensor = d.degree(TENSOR)
    fused: Section = {"gradient_accumulation_fusion": False} if d.zero > 1 else {}
    yield "model", {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": d.pipeline,
        "context_parallel_size": d.degree(SEQUENCE),
        "expert_model_parallel_size": d.degree(EXPERT),
        "sequence_parallel": d.sequence_parallel and tensor > 1,
        **model_fields(d.kept, notes), **fused,
    }  # fmt: skip
    yield "train", {
        "micro_batch_size": d.micro_batch, "global_batch_size": max(d.batch, 1)
    }  # fmt: skip
    fully = d.zero > 1  # Megatron-FSDP's strategies
    strategy: Section = {
        "use_megatron_fsdp": True, "data_parallel_sharding_strategy": STRATEGY[d.zero],
        "average_in_collective": False,
    } if fully else {}  # fmt: skip
    yield "ddp", {"use_distributed_optimizer": distributed(d), **strategy}
    yield "optimizer", {
        "use_distributed_optimizer": distributed(d), **optimizer_fields(d, notes)
    }  # fmt: skip
    if fully:
        yield "dist", {"use_megatron_fsdp": True}
        yield "checkpoint", {"ckpt_format": "fsdp_dtensor"}
