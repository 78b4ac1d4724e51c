"""Seconds and memory of a grouped product, in tiles of rows of one group each.

A device with R rows of its own G groups computes R / B + G / 2 tiles of B rows, as the last tile
of a group is half empty in the mean; T of them are one batched product. Beside it, rows of tiles
are brought together and put back, and every tile has a copy of its group's matrix:

    t = gemm(tiles, B, width, depth) + bytes / bandwidth + steps * launches

Groups that are split over w devices have unequal numbers of rows: the busiest device has w^0.2
times the mean. Fused experts on H100s, split over w devices, take that much longer when tokens
choose experts by a power law of 1.01 than when they are balanced (medians: 1.62 times at 8 devices,
2.34 at 64; 2.01 and 3.22 for a power law of 1.2). Split rows are even.

Where rows and groups are split alike over n devices, every one has as many rows. It lacks the
matrices of the groups that these are of beside its own, and fetches them, in rounds of

    min(G + ceil(n^0.2), groups - G)

matrices: it has rows of G + 1 groups in the mean, and a device that holds groups with more rows
than the mean sends their matrices to so many more. With drawn loads, of which the largest device
has n^0.2 times the mean, the device that lacks or sends most has 0.6 to 1.2 rounds in the mean of
the draws (`tests/costmodel/test_grouped.py`); the price is that of one. Sums of the gradient go the
other way. Nothing is computed beside an exchange.

Emission: `planner.emit.grouped`.

Source: aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), timings of TensorRT-LLM's experts, whose
medians by number of devices are in `benchmarks/data/experts_load.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ir import GROUPS, NEAR, ROWS, TILES_AT_ONCE, GroupedSizes

from .attention_blocks import Exchange, Hops
from .compute import ComputeModel, item_bytes

Floats = NDArray[np.float64]

# Busiest device against the mean, of w devices: w to this power.
LOAD_POWER: Final = 0.2
# Kernels of a step beside its product: two or three that bring together, one that puts back, and
# the test for the end of the loop.
_KERNELS: Final = 5.0
_SUM: Final = 4.0  # bytes of an element of a sum


def load(ways: Floats) -> Floats:
    """Rows of the busiest device against the mean, where groups are split over `ways` devices."""
    return np.power(ways, LOAD_POWER)


def fetched_of(groups: float, ways: Floats) -> Floats:
    """Matrices of a round, where rows and as many groups are split alike over `ways` devices."""
    own = groups / ways
    return np.minimum(own + np.ceil(load(ways)), groups - own)


@final
class GroupedWork:
    """A grouped product on the busiest device under each of some strategies.

    Args:
        sizes: of the product as a whole.
        dtype: of its operands.
        ways: for every factor the number of parts, one entry per strategy.
    """

    def __init__(self, sizes: GroupedSizes, dtype: str, ways: Mapping[str, Floats]) -> None:
        names = (ROWS, GROUPS, "k", "n", NEAR)
        each = (np.asarray(ways.get(name, 1.0), dtype=np.float64) for name in names)
        rows, groups, depth, width, near = np.broadcast_arrays(*each)
        self.dtype, self.item = dtype, float(item_bytes(dtype))
        self.contracts_rows = sizes.contracts_rows
        self.depth, self.width = sizes.depth / depth, sizes.width / width
        self.near, self.count, self.fetched = near > 1.0, near, fetched_of(sizes.groups, near)
        self.rows, self.groups = sizes.rows / (rows * near), sizes.groups / (groups * near)
        # rows are in the order of groups: a part of the rows has few groups, and the other way
        self.own = np.minimum(self.rows, sizes.rows * load(groups) / groups)
        met = self.groups + self.fetched
        present = np.minimum(met, sizes.groups * self.own / max(sizes.rows, 1) + 1.0)
        self.tile = np.maximum(np.minimum(float(sizes.tile_rows), self.rows), 1.0)
        self.tiles = self.own / self.tile + 0.5 * present
        most = np.floor(self.rows / self.tile) + np.minimum(self.groups, self.rows)
        self.matrices = self.groups * self.depth * self.width  # elements of a device
        self.at_once = np.minimum(float(TILES_AT_ONCE), most)
        self.is_empty = min(sizes.rows, sizes.groups, sizes.depth, sizes.width) == 0

    def seconds(self, compute: ComputeModel) -> Floats:
        """Seconds in one run; 0 without elements."""
        if self.is_empty:
            return np.zeros_like(self.tiles)
        product = compute.gemm_s(*self._product(), self.dtype)
        steps = np.maximum(np.ceil(self.tiles / self.at_once), 1.0 + self.near)
        return product + compute.memory_s(self._moved()) + steps * _KERNELS * compute.launch_s

    def exchange(self, hops: Hops) -> Exchange:
        """All-to-alls of one run."""
        count = np.where(self.near & (not self.is_empty), 1.0, 0.0)
        item = _SUM if self.contracts_rows else self.item
        full = count * self.fetched * self.depth * self.width * item
        seconds = hops.seconds(full, ("all-to-all",))
        return Exchange(count, full * (1.0 - 1.0 / self.count), seconds, seconds)

    def _product(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Batch, rows, columns and depth of the product of all tiles."""
        if self.contracts_rows:
            return self.tiles, self.depth, self.width, self.tile
        return self.tiles, self.tile, self.width, self.depth

    def _moved(self) -> Floats:
        matrix = self.depth * self.width
        rows = 2.0 * self.tile * (self.depth + self.width) * self.item
        if self.contracts_rows:  # sums are read and written, made zero before and short after
            return self.tiles * (rows + 3.0 * matrix * _SUM) + 2.0 * self.matrices * _SUM
        return self.tiles * (rows + 2.0 * matrix * self.item) + self.rows * self.width * self.item

    def held_bytes(self) -> Floats:
        """Bytes that it holds beside operands and results; 0 without elements."""
        if self.is_empty:
            return np.zeros_like(self.tiles)
        matrix = self.depth * self.width
        rows = self.at_once * self.tile * (self.depth + self.width) * self.item
        passing = 2.0 * self.fetched * matrix  # matrices, or sums, on their way
        if self.contracts_rows:
            return rows + (self.at_once * matrix + passing + self.matrices) * _SUM
        return rows + (self.at_once * matrix + passing) * self.item
