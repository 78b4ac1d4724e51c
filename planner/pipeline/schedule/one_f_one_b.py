"""1F1B: after a warm-up of forwards, one forward and one backward in turn."""

from __future__ import annotations

from .placement import chain
from .table import Schedule, Table, table_of
from .task import Kind

EAGER, DEEP = 2, 4  # micro-batches that a stage begins beside one of the next stage


def one_f_one_b(
    stages: int, microbatches: int, *, in_flight: int | None = None, ahead: int = 1
) -> Schedule:
    """Stage i of p starts with K_i forwards and then alternates.

        K_i = min(a (p - 1 - i) + 1, in_flight)

    a = 1 (policy A of DAPPLE, PipeDream's steady state, Megatron) is for transfers that are short
    beside compute. While a micro-batch is on its way to the next stage and back, a stage works on
    a others, which hides transfers up to (a - 1) / 2 of its time; a = 2 is policy B. Stage i keeps
    K_i micro-batches of activations.

    Args:
        stages: devices p, one chunk on each.
        microbatches: in a step.
        in_flight: most micro-batches that a device may hold; no limit if None.
        ahead: a, by how many more micro-batches a stage begins than the next.

    Source: Fan et al., DAPPLE, PPoPP 2021, section 3.2; Narayanan et al., PipeDream, SOSP 2019.
    """
    name = {1: "1f1b", EAGER: "1f1b-eager", DEEP: "1f1b-deep"}.get(ahead, f"1f1b, {ahead} ahead")
    tables = [
        one_stage(min(warm_up(left, microbatches, ahead), in_flight or microbatches),
                  microbatches, stage)
        for stage, left in enumerate(range(stages, 0, -1))
    ]  # fmt: skip
    return Schedule(name, chain(stages), microbatches, tuple(tables))


def warm_up(left: int, microbatches: int, ahead: int = 1) -> int:
    """Micro-batches in flight on the stage with `left` stages from it to the last."""
    return min(ahead * (left - 1) + 1, microbatches)


def one_f_one_b_eager(stages: int, microbatches: int, *, in_flight: int | None = None) -> Schedule:
    """1F1B with DAPPLE's policy B: twice the warm-up, to hide transfers up to t / 2."""
    return one_f_one_b(stages, microbatches, in_flight=in_flight, ahead=EAGER)


def one_f_one_b_deep(stages: int, microbatches: int, *, in_flight: int | None = None) -> Schedule:
    """1F1B with four times the warm-up, for transfers as long as compute, and uneven stages."""
    return one_f_one_b(stages, microbatches, in_flight=in_flight, ahead=DEEP)


def one_stage(warm_up: int, microbatches: int, chunk: int) -> Table:
    """`warm_up` forwards, then backwards and forwards in turn."""
    head = min(warm_up, microbatches)
    rows = [(Kind.FORWARD, chunk, m) for m in range(head)]
    for m in range(microbatches):
        rows.append((Kind.BACKWARD, chunk, m))
        if head + m < microbatches:
            rows.append((Kind.FORWARD, chunk, head + m))
    return table_of(rows)
