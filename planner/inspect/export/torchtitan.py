"""`torchtitan`: settings of torchtitan, as a TOML file whose tables replace those of a recipe."""

from __future__ import annotations

from ..analysed_plan import AnalysedPlan
from ..layout import stores
from .degrees import DATA, EXPERT, IDLE, SEQUENCE, TENSOR, Degrees, degrees
from .record import Exported, Subject


def torchtitan(subject: Subject) -> Exported:
    """Degrees of parallelism, batch sizes and recomputation.

    Devices = replicate x shard x context x tensor x pipeline; groups of experts lie within the
    shard degree, as they take different examples too.
    """
    analysed = subject.analysed
    d = degrees(analysed)
    replicas, shards = _data(analysed, d)
    notes = list(d.notes)
    if d.zero in (1, 2):
        notes.append(f"ZeRO-{d.zero} has no setting: optimizer state is whole over axes that are "
                     "replicated here")  # fmt: skip
    replicas *= d.degree(IDLE)  # devices that repeat the work of others
    examples = d.batch // (replicas * shards * d.microbatches) if d.batch else 0
    lines = [
        "# Settings of a plan for torchtitan; the model's own settings are not part of a plan.",
        "[parallelism]",
        f"data_parallel_replicate_degree = {replicas}",
        f"data_parallel_shard_degree = {shards}",
        f"context_parallel_degree = {d.degree(SEQUENCE)}",
        f"tensor_parallel_degree = {d.degree(TENSOR)}",
        f"pipeline_parallel_degree = {d.pipeline}",
        f"expert_parallel_degree = {d.degree(EXPERT)}",
        "",
        "[training]",
        f"local_batch_size = {max(1, examples)}",
        f"global_batch_size = {d.batch or -1}",
        "",
        "[activation_checkpoint]",
        f'mode = "{d.recompute}"',
    ]
    if d.batch and examples * replicas * shards * d.microbatches != d.batch:
        notes.append(f"{d.batch} examples do not divide over {replicas * shards} replicas")
    lines += [f"# not expressed: {note}" for note in notes]
    return Exported(("\n".join(lines) + "\n").encode(), (), tuple(notes))


def _data(analysed: AnalysedPlan, d: Degrees) -> tuple[int, int]:
    """Degrees over which parameters are copied, and over which they are split."""
    replicas = shards = 1
    for axis, kind in d.meaning.items():
        if kind == EXPERT or (kind == DATA and stores(analysed, axis, "parameter")):
            shards *= d.sizes[axis]
        elif kind == DATA:
            replicas *= d.sizes[axis]
    return replicas, shards
