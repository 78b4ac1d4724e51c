"""Seconds and memory of a grouped product, in tiles of rows of one group each.

A device with R rows of its own G groups computes R / B + G / 2 tiles of B rows, as the last tile
of a group is half empty in the mean; T of them are one batched product. Beside it, rows of tiles
are brought together and put back, and every tile has a copy of its group's matrix:

    t = gemm(tiles, B, width, depth) + bytes / bandwidth + steps * launches

Groups that are split over w devices have unequal numbers of rows: the busiest device has w^p
times the mean, with p = 0.2 unless the user says otherwise (0 for a router that is held balanced).
Fused experts on H100s, split over w devices, take w^0.2 times as long when tokens choose experts by
a power law of 1.01 as when they are balanced (medians: 1.62 times at 8 devices, 2.34 at 64; 2.01
and 3.22, p of 0.3, for a power law of 1.2). Split rows are even.

Where rows and groups are split alike over n devices, every one has as many rows. It lacks the
matrices of the groups that these are of beside its own, and fetches them,

    min(G min(1, p / 0.2) + ceil(n^p), groups - G)

matrices, none of equal groups (p = 0): it has rows of G + 1 groups in the mean, and a device that
holds groups with more rows than the mean sends their matrices to so many more. With drawn loads, of
which the largest device has n^p times the mean, the device that lacks or sends most has 0.5 to 1.7
times as many in the mean of the draws (`tests/costmodel/test_grouped.py`). The emitted program has
room for those of p = 0.2, and takes more rounds where there are more. Sums of the gradient go the
other way, with nothing beside them.

Matrices are fetched beside the product of the rows of own groups. Of drawn loads the device with
fewest of these has

    max(0, 1 - 3.05 p (n / 8)^0.65)

of its rows in them (within 0.1, `tests/costmodel/test_grouped.py`): 0.39 on 8 devices, none on 32.

Blocks of rows with sizes of their own are products one after the other, of which a device has its
share; they fetch the matrices that they lack each for itself.

Emission: `planner.emit.grouped`.

Source: aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), timings of TensorRT-LLM's experts, whose
medians by number of devices are in `benchmarks/data/experts_load.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ir import BLOCKS, GROUPS, NEAR, ROWS, TILES_AT_ONCE, GroupedSizes

from .attention_blocks import Exchange, Hops
from .cluster import IMBALANCE
from .compute import ComputeModel, item_bytes

Floats = NDArray[np.float64]

# Kernels of a step beside its product: two or three that bring together, one that puts back, and
# the test for the end of the loop.
_KERNELS: Final = 5.0
_SUM: Final = 4.0  # bytes of an element of a sum


def load(ways: Floats, imbalance: float = IMBALANCE) -> Floats:
    """Rows of the busiest device against the mean, where groups are split over `ways` devices."""
    return np.power(ways, imbalance)


def fetched_of(groups: float, ways: Floats, imbalance: float = IMBALANCE) -> Floats:
    """Matrices that a device lacks, where rows and as many groups are split alike.

    Args:
        groups: number of groups.
        ways: devices.
        imbalance: see `IMBALANCE`.
    """
    if imbalance == 0.0:
        return np.zeros_like(ways)
    own = groups / ways
    moved = own * min(1.0, imbalance / IMBALANCE)
    return np.minimum(moved + np.ceil(load(ways, imbalance)), groups - own)


def own_share(ways: Floats, imbalance: float = IMBALANCE) -> Floats:
    """Rows in groups that a device holds, of the one that has fewest; rows and groups split alike.

    Args:
        ways: devices.
        imbalance: see `IMBALANCE`.
    """
    return np.maximum(0.0, 1.0 - 3.05 * imbalance * (ways / 8.0) ** 0.65)


@final
class GroupedWork:
    """A grouped product on the busiest device under each of some strategies.

    Args:
        sizes: of the product as a whole.
        dtype: of its operands.
        ways: for every factor the number of parts, one entry per strategy.
        imbalance: see `IMBALANCE`.
    """

    def __init__(
        self, sizes: GroupedSizes, dtype: str, ways: Mapping[str, Floats],
        imbalance: float = IMBALANCE,
    ) -> None:  # fmt: skip
        names = (ROWS, GROUPS, "k", "n", NEAR)
        each = (np.asarray(ways.get(name, 1.0), dtype=np.float64) for name in names)
        rows, groups, depth, width, near = np.broadcast_arrays(*each)
        self.dtype, self.item = dtype, float(item_bytes(dtype))
        self.contracts_rows = sizes.contracts_rows
        self.depth, self.width = sizes.depth / depth, sizes.width / width
        self.near, self.count = near > 1.0, near
        self.room = fetched_of(sizes.groups, near)
        self.fetched = fetched_of(sizes.groups, near, imbalance)
        self.own_share = 0.0 if self.contracts_rows else own_share(near, imbalance)
        self.rows, self.groups = sizes.rows / (rows * near), sizes.groups / (groups * near)
        # rows are in the order of groups: a part of the rows has few groups, and the other way
        self.own = np.minimum(self.rows, sizes.rows * load(groups, imbalance) / groups)
        met = self.groups + self.fetched
        present = np.minimum(met, sizes.groups * self.own / max(sizes.rows, 1) + 1.0)
        self.tile = np.maximum(np.minimum(float(sizes.tile_rows), self.rows), 1.0)
        self.tiles = self.own / self.tile + 0.5 * present
        most = np.floor(self.rows / self.tile) + np.minimum(self.groups, self.rows)
        self.matrices = self.groups * self.depth * self.width  # elements of a device
        self.at_once = np.minimum(float(TILES_AT_ONCE), most)
        blocks = np.asarray(ways.get(BLOCKS, 1.0), dtype=np.float64)
        self.blocks = max(sizes.blocks, 1) / np.broadcast_to(blocks, self.rows.shape)
        self.is_empty = min(sizes.rows, sizes.groups, sizes.depth, sizes.width) == 0

    def seconds(self, compute: ComputeModel) -> Floats:
        """Seconds in one run; 0 without elements."""
        if self.is_empty:
            return np.zeros_like(self.tiles)
        product = compute.gemm_s(*self._product(), self.dtype)
        steps = np.maximum(np.ceil(self.tiles / self.at_once), 1.0 + self.near)
        moved_s = compute.memory_s(self._moved())
        return self.blocks * (product + moved_s + steps * _KERNELS * compute.launch_s)

    def exchange(self, compute: ComputeModel, hops: Hops) -> Exchange:
        """All-to-alls of one run."""
        count = np.where(self.near & (not self.is_empty), self.blocks, 0.0)
        item = _SUM if self.contracts_rows else self.item
        matrix = count * self.depth * self.width * item
        full, first = matrix * self.fetched, matrix * np.minimum(self.fetched, self.room)
        seconds, first_s = (hops.seconds(nbytes, ("all-to-all",)) for nbytes in (full, first))
        # only the first round has rows of own groups beside it
        exposed = seconds - first_s + hops.exposed(first_s, self.own_share * self.seconds(compute))
        return Exchange(count, full * (1.0 - 1.0 / self.count), seconds, exposed)

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
        passing = 2.0 * self.room * matrix  # matrices, or sums, on their way
        if self.contracts_rows:
            return rows + (self.at_once * matrix + passing + self.matrices) * _SUM
        return rows + (self.at_once * matrix + passing) * self.item
