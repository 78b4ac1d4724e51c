"""Fourier transforms of several dimensions whose first one is split: two all-to-alls each.

With B bytes of complex numbers on each of n devices, the last dimension padded to a multiple of n,

    sent = 2 (n - 1) / n * B    seconds = local transforms + 2 all-to-all(B) + memory of 8 B

in which the array is turned and padded before each exchange, and turned and cut after it.

Emission: `planner.emit.pencils`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ir import PENCILS, FactorSpec, Node, TensorType

from .attention_blocks import Exchange, Hops
from .collectives import wire_fraction
from .compute import ComputeModel, item_bytes

Floats = NDArray[np.float64]
_MOVES: Final = 8.0  # reads and writes of the array
_KERNELS: Final = 4.0


@final
class Pencils:
    """A Fourier transform on one device under each of some strategies.

    Args:
        node: the transform.
        operand: type of its whole operand.
        spec: its factors.
        ways: for every factor the number of parts, one entry per strategy.
    """

    def __init__(
        self, node: Node, operand: TensorType, spec: FactorSpec, ways: Mapping[str, Floats]
    ) -> None:
        self.n = np.asarray(ways.get(PENCILS, 1.0), dtype=np.float64)
        self.split = self.n > 1.0
        result = node.outputs[0]
        complex_ = result if result.dtype.startswith("complex") else operand
        dims = spec.results[0] if complex_ is result else spec.operands[0]
        width = complex_.shape[-1]
        padded = np.ceil(width / self.n) * self.n / width
        whole = float(complex_.size * item_bytes(complex_.dtype))
        local = np.asarray(whole * padded, dtype=np.float64)
        for dim in dims:
            for name in dim:
                for factor in spec.splitting(name):
                    local = local / np.asarray(ways.get(factor, 1.0))
        self.local = np.where(self.split, local, 0.0)

    def seconds(self, compute: ComputeModel) -> Floats:
        """Seconds of compute beside the transforms."""
        moved = compute.memory_s(_MOVES * self.local) + _KERNELS * compute.launch_s
        return np.where(self.split, moved, 0.0)

    def exchange(self, hops: Hops) -> Exchange:
        """The collectives of one run."""
        share = np.array([wire_fraction("all-to-all", int(n)) for n in self.n.ravel()])
        seconds = 2.0 * hops.seconds(self.local, ("all-to-all",))
        sent = 2.0 * self.local * share.reshape(self.n.shape)
        return Exchange(2.0 * self.split.astype(np.float64), sent, seconds, seconds)

    def held_bytes(self) -> Floats:
        """Bytes of the array before and after an exchange."""
        return 2.0 * self.local
