"""`megatron-bridge`: overrides of a recipe of NVIDIA's Megatron-Bridge, as a YAML file.

Sections and fields are those of its `ConfigContainer` (NVIDIA-NeMo/Megatron-Bridge 067f987,
2026-08-22: `src/megatron/bridge/training/config.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .degrees import EXPERT, SEQUENCE, TENSOR, Degrees, degrees
from .megatron import FULL, NO_MODEL, STRATEGY
from .record import Exported, Subject

Section = Mapping[str, str | int | bool]
_PRECISION = {"bfloat16": "bf16_mixed", "float16": "fp16_mixed"}
_RECOMPUTE: Mapping[str, Section] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1
    },
}  # fmt: skip


def megatron_bridge(subject: Subject) -> Exported:
    """Degrees, batch sizes, sharded data parallelism, precision and recomputation."""
    d = degrees(subject.analysed)
    notes = [*d.notes, *([FULL] if d.recompute == "full" else []), NO_MODEL]
    if d.dtype not in _PRECISION:
        notes.append(f"products of {d.dtype} have no recipe of mixed precision")
    return Exported(text(d, notes), (), tuple(notes))


def text(d: Degrees, notes: Sequence[str]) -> bytes:
    """The file: sections of overrides, then what they do not express."""
    lines = ["# Overrides of a plan for a recipe of Megatron-Bridge (ConfigContainer)."]
    if d.dtype in _PRECISION:
        lines.append(f"mixed_precision: {_PRECISION[d.dtype]}")
    for name, section in _sections(d):
        lines.append(f"{name}:")
        lines += [f"  {field}: {_literal(value)}" for field, value in section.items()]
    lines += [f"# not expressed: {note}" for note in notes]
    return ("\n".join(lines) + "\n").encode()


def _literal(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sections(d: Degrees) -> Iterator[tuple[str, Section]]:
    tensor = d.degree(TENSOR)
    fused: Section = {"gradient_accumulation_fusion": False} if d.zero > 1 else {}
    yield "model", {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": d.pipeline,
        "context_parallel_size": d.degree(SEQUENCE),
        "expert_model_parallel_size": d.degree(EXPERT),
        "sequence_parallel": d.sequence_parallel and tensor > 1,
        **_RECOMPUTE[d.recompute], **fused,
    }  # fmt: skip
    yield "train", {
        "micro_batch_size": d.micro_batch, "global_batch_size": max(d.batch, 1)
    }  # fmt: skip
    fully = d.zero > 1  # Megatron-FSDP's strategies
    strategy: Section = {
        "use_megatron_fsdp": True, "data_parallel_sharding_strategy": STRATEGY[d.zero],
        "average_in_collective": False,
    } if fully else {}  # fmt: skip
    yield "ddp", {"use_distributed_optimizer": d.zero > 0, **strategy}
    yield "optimizer", {"use_distributed_optimizer": d.zero > 0}
    if fully:
        yield "dist", {"use_megatron_fsdp": True}
        yield "checkpoint", {"ckpt_format": "fsdp_dtensor"}
