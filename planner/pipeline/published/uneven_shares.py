"""How replicas of unequal speed and memory split each micro-batch.

    tau = min max_r x_r p_r   with  sum_r x_r = 1,  x_r <= cap_r

Faster devices take more, as many as their memory holds; what is over goes to the others. This is
the exact form of the load shifting in Jia et al., "Whale", USENIX ATC 2022, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def split(
    seconds: Sequence[Floats], counts: Sequence[int], caps: Sequence[Floats]
) -> tuple[Floats, list[Floats]]:
    """Shares of the replicas of each kind.

    Args:
        seconds: per kind, of a whole micro-batch on one replica, any shape.
        counts: replicas of each kind.
        caps: per kind, the largest share that its memory allows.

    Returns:
        tau, infinite where the caps do not add up to a whole micro-batch, and a share per kind.
    """
    limits = [np.clip(cap, 0.0, 1.0) for cap in caps]
    full = [np.zeros(seconds[0].shape, dtype=bool) for _ in counts]
    tau = np.zeros(seconds[0].shape)
    for _ in range(len(counts) + 1):
        left = np.ones_like(tau)
        rate = np.zeros_like(tau)
        for p, n, limit, is_full in zip(seconds, counts, limits, full, strict=True):
            left = left - np.where(is_full, n * limit, 0.0)
            with np.errstate(divide="ignore"):
                rate = rate + np.where(is_full, 0.0, n / p)
        with np.errstate(divide="ignore", invalid="ignore"):
            tau = np.where(left > 1e-15, left / rate, 0.0)
        for k, (p, limit) in enumerate(zip(seconds, limits, strict=True)):
            with np.errstate(divide="ignore", invalid="ignore"):
                full[k] |= ~(np.isinf(p) & np.isinf(tau)) & (tau > limit * p)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = [
            np.where(is_full, limit, np.nan_to_num(tau / p))
            for p, limit, is_full in zip(seconds, limits, full, strict=True)
        ]
    total = sum((n * x for n, x in zip(counts, found, strict=True)), np.zeros_like(tau))
    slowest = np.max([x * p for x, p in zip(found, seconds, strict=True)], axis=0)
    return np.where(total >= 1 - 1e-9, slowest, np.inf), found
