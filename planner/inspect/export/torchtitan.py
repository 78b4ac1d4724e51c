"""`torchtitan`: settings of torchtitan, as a TOML file whose tables replace those of a recipe.

Modes and the products that `selective` keeps: pytorch/torchtitan b5bcd76c, 2026-08-21:
`torchtitan/distributed/activation_checkpoint.py`. Since 9810191b (2026-02-23) its settings are
Python, where the modes are None, SelectiveAC.Config() and FullAC.Config().
"""

from __future__ import annotations

from ..analysed_plan import AnalysedPlan
from ..layout import stores
from .degrees import DATA, EXPERT, IDLE, SEQUENCE, TENSOR, Degrees, degrees
from .kept import AGAIN, FULL, HOST, INPUT, KEPT, LIGHT, MIXED, NONE, Kept
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
        *_checkpoint(d.kept, notes),
    ]
    kinds = (("optimizer's state", d.state_on_host), ("parameters", d.parameters_on_host))
    if there := [f"{share:.1%} of the {what}" for what, share in kinds if share]:
        notes.append(f"on the host: {', '.join(there)}; torchtitan's enable_cpu_offload moves all "
                     "of both, and gradients")  # fmt: skip
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


# Of selective checkpointing by operation, which computes every second product again.
_EVERY_SECOND = {
    "query": KEPT, "key": AGAIN, "value": KEPT, "attention": KEPT, "attention-out": AGAIN,
    "mlp-gate": KEPT, "mlp-up": AGAIN, "mlp-out": KEPT,
}  # fmt: skip


def _checkpoint(kept: Kept, notes: list[str]) -> list[str]:
    """The mode; `selective` where that keeps no product with weights that the plan does not."""
    if kept.kind == NONE and not kept.those(HOST):
        if kept.light:
            notes.append(f"torchtitan has no setting for what the plan does: {LIGHT}")
        return ['mode = "none"']
    if kept.kind == FULL:
        mode = ['mode = "full"']
        differs = bool(kept.those(HOST) or kept.those(MIXED) or kept.others or kept.spared)
    else:
        left = kept.those(AGAIN) | kept.those(HOST) | kept.those(MIXED)
        more = {part for part in left if _EVERY_SECOND.get(part, KEPT) == KEPT} - {INPUT}
        op = bool(kept.parts) and not more - {"attention"}
        mode = ['mode = "selective"', 'selective_ac_option = "op"'] if op else ['mode = "full"']
        differs = kept.parts != _EVERY_SECOND
    if differs:
        notes.append("torchtitan computes again all of a layer, or every second product with "
                     f"weights; in the plan: {'; '.join(kept.texts())}")  # fmt: skip
    if kept.those(HOST):
        notes.append("torchtitan has no setting for activations on the host")
    return mode
