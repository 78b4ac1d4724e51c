"""`megatron`: arguments of Megatron-LM's training scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .degrees import EXPERT, SEQUENCE, TENSOR, Degrees, degrees
from .megatron_memory import Field, distributed, model_fields, optimizer_fields
from .record import Exported, Subject, json_bytes

FORMAT = "meshwright-megatron"
# Of Megatron-FSDP, by the stage of ZeRO.
STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}
NO_MODEL = "the model itself (layers, heads, sizes) is not part of a plan"
_DTYPE = {"bfloat16": ("--bf16",), "float16": ("--fp16",)}


def megatron(subject: Subject) -> Exported:
    """Degrees and batch sizes as Megatron-LM's arguments.

    world size = tensor x pipeline x context x data; experts are spread over data ranks.
    """
    d = degrees(subject.analysed)
    notes = list(d.notes)
    words = arguments(d, notes)
    notes.append(NO_MODEL)
    data = {"format": FORMAT, "version": 1, "world_size": subject.analysed.cluster.num_devices,
            "arguments": words, "not_expressed": notes}  # fmt: skip
    return Exported(json_bytes(data), (), tuple(notes))


def arguments(d: Degrees, notes: list[str]) -> list[str]:
    """Words of the command line; `notes` gets what they do not say."""
    return [
        *_degrees(d), *_zero(d), *_DTYPE.get(d.dtype, ()), *_words(model_fields(d.kept, notes)),
        *_words(optimizer_fields(d, notes)),
    ]  # fmt: skip


def _words(fields: Mapping[str, Field]) -> Iterator[str]:
    for name, value in fields.items():
        yield f"--{name.replace('_', '-')}"
        if not isinstance(value, bool):
            yield from value if isinstance(value, tuple) else (str(value),)


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


def _zero(d: Degrees) -> list[str]:
    if d.zero < 2:
        return ["--use-distributed-optimizer"] if distributed(d) else []
    return [
        "--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
        STRATEGY[d.zero], "--no-gradient-accumulation-fusion", "--ckpt-format", "fsdp_dtensor",
    ]  # fmt: skip
