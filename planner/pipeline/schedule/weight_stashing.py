"""Asynchronous 1F1B: updates inside the step; a micro-batch keeps its first weights."""

from __future__ import annotations

from ...common.errors import PlanError
from .one_f_one_b import one_stage
from .placement import chain
from .table import Schedule, Table, table_of
from .task import Kind


def stashed(stages: int, microbatches: int, *, update_every: int = 1) -> Schedule:
    """1F1B with an update after every `update_every` backwards and no flush.

    The backward of a micro-batch uses the weights that its forward used, so stage i of p keeps
    p - i versions if every micro-batch updates (PipeDream), and two if p or more share an update
    (PipeDream-2BW). Not equal to the synchronous step: gradients are late by up to p updates.

    Args:
        stages: devices p, one chunk on each.
        microbatches: simulated; the first ones fill the pipeline.
        update_every: micro-batches that share an update.

    Source: Narayanan et al., PipeDream, SOSP 2019, section 3.3; Memory-efficient pipeline-parallel
        DNN training, ICML 2021, section 3.1.
    """
    if update_every < 1:
        raise PlanError(
            f"an update every {update_every} micro-batches", kind="bad-schedule",
            where="update_every", remedy="use 1 or more",
        )  # fmt: skip
    tables = [
        _with_updates(one_stage(stages - stage, microbatches, stage), microbatches, update_every)
        for stage in range(stages)
    ]
    return Schedule(
        "1f1b-stashed", chain(stages), microbatches, tuple(tables), update_every=update_every
    )


def _with_updates(table: Table, microbatches: int, every: int) -> Table:
    rows: list[tuple[int, int, int]] = []
    for kind, chunk, m in table[:, :3].tolist():
        rows.append((kind, chunk, m))
        if kind == Kind.BACKWARD and ((m + 1) % every == 0 or m + 1 == microbatches):
            rows.append((Kind.OPTIMIZER, chunk, m // every))
    return table_of(rows)
