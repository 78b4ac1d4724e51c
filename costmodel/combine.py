"""Small collectives joined into few: what the compiler's combiner makes of a list of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from profiles import CollectiveKind

from .collectives import CollectiveModel
from .group import Group

# XLA's combiners on GPUs join neighbours up to this many bytes and operands
# (xla/service/collective_utils.h: 30 MiB + 7, and gpu_compiler.cc: 256).
COMBINED_BYTES: Final = 30 * 2**20 + 7
COMBINED_COUNT: Final = 256

# The kinds that XLA combines; an all-to-all stays as it is.
COMBINED_KINDS: Final = ("all-gather", "all-reduce", "collective-permute", "reduce-scatter")


def bundles(
    full_bytes: Iterable[float], *, at_most_bytes: float = COMBINED_BYTES,
    at_most: int = COMBINED_COUNT,
) -> list[float]:  # fmt: skip
    """Bytes of the combined collectives, neighbours joined in order while they fit.

    Args:
        full_bytes: of each collective [byte], in the order in which they are issued.
        at_most_bytes: a bundle of several stays within it; a larger single one stays alone.
        at_most: operands of one bundle.
    """
    found: list[float] = []
    count = 0
    for size in full_bytes:
        if found and count < at_most and found[-1] + size <= at_most_bytes:
            found[-1] += size
            count += 1
        else:
            found.append(size)
            count = 1
    return found


def combined_s(
    model: CollectiveModel, kind: CollectiveKind, group: Group, full_bytes: Sequence[float]
) -> float:
    """Seconds of independent collectives of one kind over one group after combining.

    sum over bundles of t(bundle). Never more than the sum of the single times as long as a time is
    latency plus bytes over rate; measured curves may break that by their noise, so that the
    smaller of the two is taken.

    Args:
        model: prices of the cluster.
        kind: one of `KINDS`.
        group: the devices of each.
        full_bytes: of each collective [byte] as `CollectiveModel.seconds` counts them, in order.
    """
    single = sum(model.seconds(kind, group, size) for size in full_bytes)
    if kind not in COMBINED_KINDS:
        return single
    return min(single, sum(model.seconds(kind, group, size) for size in bundles(full_bytes)))
