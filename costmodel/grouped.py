"""Seconds and memory of a grouped product, in tiles of rows of one group each.

A device with R rows of its own G groups computes R / B + G / 2 tiles of B rows, as the last tile
of a group is half empty in the mean; T of them are one batched product. Beside it, rows of tiles
are brought together and put back, and every tile has a copy of its group's matrix:

    t = gemm(tiles, B, width, depth) + bytes / bandwidth + steps * launches

Groups that are split over w devices have unequal numbers of rows: the busiest device has w^0.2
times the mean. Fused experts on H100s, split over w devices, take that much longer when tokens
choose experts by a power law of 1.01 than when they are balanced (medians: 1.62 times at 8 devices,
2.34 at 64; 2.01 and 3.22 for a power law of 1.2). Split rows are even.

Where rows and groups are split alike, every device has as many rows, and matrices pass by from both
sides, from as far as the rows before a device's own groups are more or less than its share. With
loads that deviate by s, which makes the largest of n what it is above, that is the largest value of
a Brownian bridge, sqrt(pi / 8) s sqrt(n) devices, and one more for the edges:

    rounds = 1 + sqrt(pi / 8) s sqrt(n),  s = (n^0.2 - 1) / sqrt(2 ln n),  n - 1 at most,

of each side: 1.4 of 8 devices, 3.3 of 64. Nothing is computed beside a permute.

Emission: `planner.emit.grouped`.

Sources: largest of n deviates and of a bridge, Feller, An Introduction to Probability Theory,
volume 2; aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), timings of TensorRT-LLM's experts, whose
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


def rounds_of(ways: Floats) -> Floats:
    """Rounds from each side, where rows and groups are split alike over `ways` devices."""
    n = np.maximum(ways, 2.0)
    deviation = (load(n) - 1.0) / np.sqrt(2.0 * np.log(n))
    far = 1.0 + np.sqrt(np.pi / 8.0) * deviation * np.sqrt(n)
    return np.minimum(far, np.maximum(ways, 1.0) - 1.0)


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
        self.near, self.rounds = near > 1.0, rounds_of(near)
        self.rows, self.groups = sizes.rows / (rows * near), sizes.groups / (groups * near)
        # rows are in the order of groups: a part of the rows has few groups, and the other way
        self.own = np.minimum(self.rows, sizes.rows * load(groups) / groups)
        met = self.groups * np.where(self.near, 1.0 + 2.0 * self.rounds, 1.0)
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
        steps = np.maximum(np.ceil(self.tiles / self.at_once), 1.0 + 2.0 * self.rounds)
        return product + compute.memory_s(self._moved()) + steps * _KERNELS * compute.launch_s

    def exchange(self, hops: Hops) -> Exchange:
        """Permutes of one run."""
        count = np.where(self.near & (not self.is_empty), 2.0 * self.rounds, 0.0)
        each = self.matrices * (_SUM if self.contracts_rows else self.item)
        seconds = count * hops.seconds(each)
        return Exchange(count, count * each, seconds, seconds)

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
        if self.contracts_rows:
            found = rows + self.at_once * matrix * _SUM + self._passing(3.0, 1.0) * _SUM
        else:
            found = rows + (self.at_once * matrix + self._passing(2.0, 0.0)) * self.item
        return found

    def _passing(self, near: float, otherwise: float) -> Floats:
        """Elements of copies of a device's matrices.

        Args:
            near: number of copies where matrices pass by from other devices.
            otherwise: number of copies where they do not.
        """
        return self.matrices * np.where(self.near, near, otherwise)
