"""Seconds of an all-to-all that runs in chunks beside the products next to it.

Of c chunks each is on its way for t_c seconds, and the products take p_c for each; the first chunk,
or the last, has none of them beside it. What is left may hide behind the L seconds of other compute
that neither lead to the exchange nor follow from it. Compute is slowed down by the factor i of
interference where a collective is beside it:

    hidden   H = (c - 1) min(t_c, i p_c) / i + min(c t_c - (c - 1) min(t_c, i p_c), i L) / i
    added    c t_c - H + max(0, c p_c - p) + copies

with p the products as a whole. What is exchanged is copied twice, each time through memory and
back: cut into chunks before, put together after, for those who read it as a whole. Operands of
products that are cut are copied once, and so are results that are read as a whole, by others than
operations that are element by element, which read and make chunks.

Emission: `planner.emit.exchange_in_chunks`.

Source: Li et al., Lancet, MLSys 2024, arXiv:2404.19429, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .collectives import INTERFERENCE
from .compute import ComputeModel

Floats = NDArray[np.float64]
_PASSES: Final = 2.0  # through memory, of what is copied


@dataclass(frozen=True, slots=True)
class ProductChunks:
    """Products that are cut into chunks, in one run on a device.

    alone_s: as a whole.
    part_s: number of chunks -> seconds of one chunk of all of them.
    copied_bytes: of operands that are cut and results that are put together, on all devices.
    """

    alone_s: float
    part_s: tuple[tuple[int, float], ...]
    copied_bytes: float


@dataclass(frozen=True, slots=True)
class InChunks:
    """An exchange in chunks, one entry per way to exchange, in one run.

    count: chunks.
    chunk_s: seconds of one chunk.
    part_s: of the products of one chunk.
    slower_s: by which the products take longer in chunks, copies included.
    """

    count: int
    chunk_s: Floats
    part_s: Floats
    slower_s: Floats

    def hidden_s(self, beside_s: float) -> Floats:
        """Seconds that are hidden, interference taken off.

        Args:
            beside_s: seconds of other compute beside the exchange.
        """
        piped = (self.count - 1.0) * np.minimum(self.chunk_s, INTERFERENCE * self.part_s)
        left = np.minimum(self.count * self.chunk_s - piped, INTERFERENCE * beside_s)
        return (piped + left) / INTERFERENCE

    def added_s(self, beside_s: float) -> Floats:
        """Seconds that it adds to the step, if its window has the compute for what is hidden."""
        return self.count * self.chunk_s - self.hidden_s(beside_s) + self.slower_s


def in_chunks(
    count: int, chunk_s: Floats, products: ProductChunks, local_bytes: Floats, share: Floats,
    compute: ComputeModel,
) -> InChunks:  # fmt: skip
    """Prices of exchanges in chunks, one entry per way to exchange.

    Args:
        count: chunks.
        chunk_s: seconds of the exchange of one.
        products: beside it.
        local_bytes: bytes of a device that are exchanged.
        share: of what is copied that a device has.
        compute: prices of the device.
    """
    part_s = dict(products.part_s)[count]
    copied_s = compute.memory_s(_PASSES * (2.0 * local_bytes + share * products.copied_bytes))
    slower_s = max(0.0, count * part_s - products.alone_s) + count * compute.launch_s + copied_s
    return InChunks(count, chunk_s, np.full(chunk_s.shape, part_s), slower_s)
