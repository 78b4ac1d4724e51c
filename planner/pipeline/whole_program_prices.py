"""Prices of the whole program, from which lower estimates of its stages follow.

It is planned on sub-meshes of a few sizes for a few numbers of micro-batches, without a limit of
memory; `StageBounds.whole` interpolates. What recomputation adds is priced once, and has the same
ratio to the forward pass elsewhere; it is negative where storing a value takes longer than making
it twice.
"""

from __future__ import annotations

from costmodel import Cluster

from .divide.space import anchors, priced_counts
from .trials import Trials


def price_wholes(
    trials: Trials, machine: Cluster, counts: tuple[int, ...], kinds: tuple[str, ...]
) -> None:
    """Prices the whole program.

    The next larger numbers take the place of those into which the loss cannot be divided.

    Args:
        trials: holder of the estimates.
        machine: the cluster.
        counts: numbers of micro-batches to choose from, rising.
        kinds: kinds of recomputation to choose from.

    Raises:
        IndivisibleError: if the loss cannot be divided by the number that the options ask for.
    """
    left = [*counts]
    for goal in priced_counts(counts):
        near = [m for m in left if m >= goal] + [m for m in reversed(left) if m < goal]
        able = next((m for m in near if trials.is_able(m)), None)
        if able is None or (able, anchors(machine)[0]) in trials.bounds.wholes:
            continue
        for size in anchors(machine):
            trials.planner.say(f"{able} micro-batches on {size} devices")
            trials.bounds.wholes[able, size] = trials.planner.whole(able, size)
    rows = sorted(trials.bounds.wholes.items())
    (count, size), price = rows[len(rows) // 2]
    for kind in kinds:
        if kind in ("selective", "full"):  # that of a whole stage is a forward pass
            more_s = trials.planner.whole(count, size, kind).microbatch_s - price.microbatch_s
            trials.bounds.again[kind] = more_s / (price.forward_s or 1.0)
