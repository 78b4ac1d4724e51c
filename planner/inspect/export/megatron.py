"""`megatron`: arguments of Megatron-LM's training scripts."""

from __future__ import annotations

from .degrees import EXPERT, SEQUENCE, TENSOR, Degrees, degrees
from .record import Exported, Subject, json_bytes

FORMAT = "meshwright-megatron"
# Of Megatron-FSDP, by the stage of ZeRO.
STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}
FULL = "which layers are recomputed is not read off the program: all of them are"
NO_MODEL = "the model itself (layers, heads, sizes) is not part of a plan"
_DTYPE = {"bfloat16": ("--bf16",), "float16": ("--fp16",)}
_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity", "selective"),
    "full": (
        "--recompute-granularity", "full", "--recompute-method", "uniform",
        "--recompute-num-layers", "1",
    ),
}  # fmt: skip


def megatron(subject: Subject) -> Exported:
    """Degrees and batch sizes as Megatron-LM's arguments.

    world size = tensor x pipeline x context x data; experts are spread over data ranks.
    """
    d = degrees(subject.analysed)
    notes = [*d.notes, *([FULL] if d.recompute == "full" else []), NO_MODEL]
    data = {"format": FORMAT, "version": 1, "world_size": subject.analysed.cluster.num_devices,
            "arguments": arguments(d), "not_expressed": notes}  # fmt: skip
    return Exported(json_bytes(data), (), tuple(notes))


def arguments(d: Degrees) -> list[str]:
    """Words of the command line."""
    return [*_degrees(d), *_zero(d.zero), *_DTYPE.get(d.dtype, ()), *_RECOMPUTE[d.recompute]]


def _degrees(d: Degrees) -> list[str]:
    values = {
        "--tensor-model-parallel-size": d.degree(TENSOR),
        "--pipeline-model-parallel-size": d.pipeline,
        "--context-parallel-size": d.degree(SEQUENCE),
        "--expert-model-parallel-size": d.degree(EXPERT),
        "--micro-batch-size": d.micro_batch,
        "--global-batch-size": max(d.batch, 1),
    }
    found = [word for flag, value in values.items() for word in (flag, str(value))]
    if d.sequence_parallel and d.degree(TENSOR) > 1:
        found.append("--sequence-parallel")
    return found


def _zero(stage: int) -> list[str]:
    if stage == 0:
        return []
    if stage == 1:
        return ["--use-distributed-optimizer"]
    return [
        "--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
        STRATEGY[stage], "--no-gradient-accumulation-fusion", "--ckpt-format", "fsdp_dtensor",
    ]  # fmt: skip
