"""Cumulative ops whose dimension is split: totals that devices exchange, and results made of them.

Of B bytes of L elements along the dimension on each of n devices, a total is t = B / L bytes,

    sent = (n - 1) * t    seconds = local op + all-gather(n * t) + (memory of 2 B + launch)

as every device gets all totals and combines its results with those before it, in a kernel beside
which nothing runs.

Emission: `planner.emit.running`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ir import RUNNING, FactorSpec, TensorType

from .attention_blocks import Exchange, Hops
from .collectives import wire_fraction
from .compute import ComputeModel, item_bytes

Floats = NDArray[np.float64]
_KERNELS: Final = 2.0  # totals, results


@final
class RunningTotals:
    """A cumulative op on one device under each of some strategies.

    Args:
        operand: type of the whole operand of one of `ir.CUMULATIVE`.
        spec: its factors.
        ways: for every factor the number of parts, one entry per strategy.
    """

    def __init__(self, operand: TensorType, spec: FactorSpec, ways: Mapping[str, Floats]) -> None:
        self.n = np.asarray(ways.get(RUNNING, 1.0), dtype=np.float64)
        self.split = self.n > 1.0
        shard: Floats = np.full(self.n.shape, float(operand.size * item_bytes(operand.dtype)))
        length: Floats = np.ones(self.n.shape)
        members = dict(spec.joint).get(RUNNING, ())
        for dim, size in zip(spec.operands[0], operand.shape, strict=True):
            for name in dim:
                parts = self.n if name in members else np.asarray(ways.get(name, 1.0))
                shard = shard / parts
                length = size / parts if name in members else length
        self.shard = np.where(self.split, shard, 0.0)
        self.totals = self.n * self.shard / length  # of all devices

    def seconds(self, compute: ComputeModel) -> Floats:
        """Seconds of compute beside the op on one shard."""
        combined = compute.memory_s(2.0 * self.shard + 2.0 * self.totals)
        return np.where(self.split, combined + _KERNELS * compute.launch_s, 0.0)

    def exchange(self, hops: Hops) -> Exchange:
        """The collective of one run."""
        share = np.array([wire_fraction("all-gather", int(n)) for n in self.n.ravel()])
        seconds = hops.seconds(self.totals, ("all-gather",))
        sent = self.totals * share.reshape(self.n.shape)
        return Exchange(self.split.astype(np.float64), sent, seconds, seconds)

    def held_bytes(self) -> Floats:
        """Bytes of totals and of results before they are combined."""
        return self.shard + 2.0 * self.totals
