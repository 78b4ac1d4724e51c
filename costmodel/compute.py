"""Seconds of matrix products, of other arithmetic and of memory traffic on one device."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles import Device, GemmTable, OpTable, load_profile

from .cluster import Cluster
from .fit import Curve, fit_curve, full_grid, monotone_grid

Floats = NDArray[np.float64]

# A V100 in Alpa's database copies 4 GiB (so moves 8 GiB) in 10.7 ms: 803 of 900 GB/s.
MEMORY_EFFICIENCY: Final = 0.89

# Share of the vector unit's peak for arithmetic that has no table; assumed.
VECTOR_EFFICIENCY: Final = 0.7

# A convolution against the matrix product of its sizes (implicit GEMM); assumed.
CONV_EFFICIENCY: Final = 0.8

# Operations of one exp, tanh, log, sine, ... where none was timed: the length of the polynomials
# that stand for them; assumed.
TRANSCENDENTAL_FLOPS: Final = 24.0

# Devices whose table covers a full grid: the efficiency of the others is taken from the nearer one.
REFERENCES: Final = ("b200", "h100")

# The largest block of memory that the C library keeps between steps at most; larger ones are taken
# from the operating system anew each time. Source: mallopt(3), M_MMAP_THRESHOLD, on 64 bits.
KEPT_BYTES: Final = 32 << 20

# Types that no unit computes in directly are carried out in the type on the right.
_CARRIED: Final = {
    "bool": "int8",
    "complex64": "float32",
    "complex128": "float64",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e4m3b11fnuz": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fn",
    "float8_e5m2fnuz": "float8_e5m2",
    "float8_e3m4": "float8_e4m3fn",
    "uint8": "int8",
    "int4": "int8",
    "uint4": "int8",
    "int2": "int8",
    "uint2": "int8",
}
_BYTES: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float4_e2m1fn": 0.5}


def item_bytes(dtype: str) -> float:
    """Bytes of one element of a numpy-like dtype name, sub-byte types as fractions.

    Raises:
        ValueError: if the name ends in no width, as `str` would.
    """
    if dtype in _BYTES:
        return _BYTES[dtype]
    if dtype == "bool" or dtype.startswith("float8"):
        return 1
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    if not digits:
        raise ValueError(f"item_bytes: {dtype!r} is not a dtype name; write for example bfloat16")
    return int(digits) / 8


@final
class ComputeModel:
    """Prices work on one device of a cluster; pure, and never falling in any size.

    A matrix product is looked up in the measured table of its dtype. Where the device has no
    such table, the efficiency curve is that of the measured device (H100 or B200) with the
    nearest peak, on the problem with every dimension scaled by the cube root of the ratio of
    peaks. That moves the knee of the curve to where the slower device reaches it:
    t(m, n, k) = t_ref(s m, s n, s k) with s = (peak_ref / peak)^(1/3).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._tables = _fits(cluster.gemm) if cluster.gemm else {}
        self._ops = _op_curves(cluster.ops) if cluster.ops else {}
        # A measured bandwidth is that of the largest copy, not of one that stays in a cache: what
        # a step touches once comes from memory, though each array alone would fit the cache.
        self._memory_rate = cluster.device.memory_bandwidth_bytes_per_s * (
            1.0 if cluster.device.evidence == "measured" else MEMORY_EFFICIENCY
        )
        self.device: Final[Device] = cluster.device
        self.launch_s: Final = cluster.device.kernel_launch_s
        self.transcendental_flops: Final = (
            self._rate("elementwise") / self._rate("transcendental")
            if {"elementwise", "transcendental"} <= self._ops.keys()
            else TRANSCENDENTAL_FLOPS
        )

    def gemm_s(
        self, batch: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str
    ) -> Floats:
        """Time of `[batch, m, k] @ [batch, k, n]`, launch included, broadcast over the sizes.

        Never below the time to read the operands and write the result once, nor below a launch;
        0 where a size is 0. On float32 operands it is the tensorfloat32 path of devices that
        have one, as XLA takes by default.

        Raises:
            ValueError: if a size is negative or `dtype` is not a dtype name.
        """
        sizes = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (batch, m, n, k)))
        if any(np.any(~(size >= 0.0)) for size in sizes):
            raise ValueError(f"gemm_s: sizes must be at least 0, got {batch}, {m}, {n}, {k}")
        b, rows, columns, depth = (np.maximum(size, 1.0) for size in sizes)
        elements = b * (rows * depth + depth * columns + rows * columns)
        busy = np.maximum(self._table_s(b, rows, columns, depth, dtype), self.launch_s)
        found = np.maximum(busy, elements * item_bytes(dtype) / self._memory_rate)
        return np.where(np.prod(np.stack(sizes), axis=0) > 0.0, found, 0.0)

    def _table_s(self, b: Floats, m: Floats, n: Floats, k: Floats, dtype: str) -> Floats:
        carried = _CARRIED.get(dtype, dtype)
        if (table := self._tables.get(carried)) is not None:
            return table(b, m, n, k)
        peak = self.peak_flops(dtype, tensor=True)
        reference, reference_peak = _reference(carried, peak)
        scale = (reference_peak / peak) ** (1.0 / 3.0)
        return reference(b, m * scale, n * scale, k * scale)

    def peak_flops(self, dtype: str, *, tensor: bool) -> float:
        """Peak of the unit that computes `dtype`: its own, or the widest fallback that exists.

        Args:
            dtype: numpy-like name.
            tensor: the matrix unit, against the vector unit, which is float32 or wider.
        """
        carried = _CARRIED.get(dtype, dtype)
        if not tensor:
            wide = carried if carried == "float64" else "float32"
            return self.device.peak(wide) or self._slow_float64()
        order = [carried, "float32"]
        if carried == "float32":
            order = ["tensorfloat32", "float32"]
        elif carried.startswith("float8") or carried == "int8" or carried == "float4_e2m1fn":
            order = [carried, "float8_e4m3fn", "bfloat16", "float16", "float32"]
        elif carried == "float64":
            return self.device.peak("float64") or self._slow_float64()
        return next(rate for name in order if (rate := self.device.peak(name)))

    def _slow_float64(self) -> float:
        """Without a figure, 1/64 of float32: the ratio of devices without a double unit."""
        return (self.device.peak("float32") or 0.0) / 64.0

    def memory_s(self, moved_bytes: ArrayLike) -> Floats:
        """Time to move that many bytes between the device and its memory, launch not included."""
        return np.asarray(moved_bytes, dtype=np.float64) / self._memory_rate

    def flops_s(self, flops: ArrayLike, dtype: str) -> Floats:
        """Time of arithmetic on the vector unit, launch not included.

        Args:
            flops: operations, a multiply-add counting two.
            dtype: numpy-like name.
        """
        rate = VECTOR_EFFICIENCY * self.peak_flops(dtype, tensor=False)
        if "elementwise" in self._ops:
            rate = self._rate("elementwise")
        return np.asarray(flops, dtype=np.float64) / rate

    def convolution_s(
        self, groups: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str
    ) -> Floats:
        """Time of a convolution, launch included.

        Measured over its flops where the device has timings; else the product
        `[groups, m, k] @ [groups, k, n]` at `CONV_EFFICIENCY`, or the vector unit where that is
        faster, as for one channel per group.

        Args:
            groups: feature and batch groups.
            m: positions of the output, batch included.
            n: output channels of a group.
            k: input channels of a group times the window.
            dtype: numpy-like name.
        """
        b, m, n, k = (np.asarray(x, dtype=np.float64) for x in (groups, m, n, k))
        flops = 2.0 * b * m * n * k
        if (curve := self._ops.get("convolution")) is not None:
            return curve(flops)
        product = self.gemm_s(b, m, n, k, dtype) / CONV_EFFICIENCY
        return np.minimum(product, self.launch_s + self.flops_s(flops, dtype))

    def moving_s(self, op: str, moved_bytes: Floats) -> Floats | None:
        """Time of a measured gather, scatter, reduction or transpose; None if not measured."""
        curve = self._ops.get(op)
        return None if curve is None else curve(moved_bytes)

    def taking_s(self, block_bytes: ArrayLike) -> Floats:
        """Time to get memory for a block, where the runtime does not keep its memory.

        Args:
            block_bytes: allocated at once.
        """
        size, rate = np.asarray(block_bytes, dtype=np.float64), self.device.fresh_bytes_per_s
        return np.zeros(size.shape) if rate is None else np.where(size > KEPT_BYTES, size, 0) / rate

    def _rate(self, op: str) -> float:
        """Operations per second of a measured op at its best size."""
        curve = self._ops[op]
        return float(np.max(curve.size / curve.seconds))


@final
class _Grid:
    """Timings on a full grid of (batch, m, n, k): straight along each axis inside.

    Outside, the nearest time of the grid is scaled by the flops, so the border's efficiency goes
    on, down to a side of `TILE` and to the shortest time of the grid.
    """

    # Sides below this, or below the smallest measured one, still fill a tile of the matrix unit.
    TILE = 64.0

    def __init__(self, axes: list[Floats], seconds: Floats) -> None:
        self._axes = axes
        self._s = np.exp(monotone_grid(np.log(seconds)))

    def __call__(self, b: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        least = [min(self.TILE, float(axis[0])) for axis in self._axes[1:]]
        asked = [b, *(np.maximum(x, tile) for x, tile in zip((m, n, k), least, strict=True))]
        inside = [np.clip(x, axis[0], axis[-1]) for x, axis in zip(asked, self._axes, strict=True)]
        outside = np.ones(b.shape)
        for x, y in zip(asked, inside, strict=True):
            outside = outside * (x / y)
        scaled = _multilinear(self._axes, self._s, inside) * outside
        # Starting a product does not get cheaper with its flops: the shortest time is the floor.
        return np.maximum(scaled, self._s.flat[0])


def _multilinear(axes: list[Floats], values: Floats, at: list[Floats]) -> Floats:
    """Interpolates `values` linearly between the points of a grid, one axis after another."""
    corners = np.zeros(at[0].shape)
    lows: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    weights: list[Floats] = []
    for axis, x in zip(axes, at, strict=True):
        low = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, max(len(axis) - 2, 0))
        high = np.minimum(low + 1, len(axis) - 1)
        width = np.where(high > low, axis[high] - axis[low], 1.0)
        lows.append((low, high))
        weights.append(np.where(high > low, (x - axis[low]) / width, 0.0))
    for corner in itertools.product((0, 1), repeat=len(axes)):
        weight = np.ones(at[0].shape)
        for side, w in zip(corner, weights, strict=True):
            weight = weight * (w if side else 1.0 - w)
        index = tuple(lows[i][side] for i, side in enumerate(corner))
        corners = corners + weight * values[index]
    return corners


@final
class _ByFlops:
    """Timings that fill no grid (cubes only): a curve over the number of flops."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve

    def __call__(self, b: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        return self._curve(2.0 * b * m * n * k)


_Fit = _Grid | _ByFlops


@functools.lru_cache(maxsize=32)
def _fits(table: GemmTable) -> dict[str, _Fit]:
    """A fit for each dtype of a table; XLA's table calls the tensorfloat32 path float32."""
    fits: dict[str, _Fit] = {}
    for dtype in sorted({row.dtype for row in table.rows}):
        rows = [row for row in table.rows if row.dtype == dtype]
        keys = np.array([(row.batch, row.m, row.n, row.k) for row in rows], dtype=np.float64)
        seconds = np.array([row.seconds for row in rows])
        grid = full_grid(keys, seconds)
        if grid is not None:
            fits[dtype] = _Grid(*grid)
        else:
            fits[dtype] = _ByFlops(fit_curve(2.0 * np.prod(keys, axis=1), seconds))
    return fits


# What the time of each op is a curve over: its flops, or the bytes it moves.
_BY_FLOPS: Final = ("convolution", "elementwise", "transcendental")
_BY_BYTES: Final = ("gather", "reduce", "scatter", "transpose")


@functools.lru_cache(maxsize=32)
def _op_curves(table: OpTable) -> dict[str, Curve]:
    """A curve for each op that is priced by itself.

    Attention and optimizers are sums of others, copies give the device's bandwidth.
    """
    found: dict[str, Curve] = {}
    for op in (*_BY_FLOPS, *_BY_BYTES):
        rows = [row for row in table.rows if row.op == op]
        size = [row.flops if op in _BY_FLOPS else row.moved_bytes for row in rows]
        if rows and min(size) > 0:
            found[op] = fit_curve(size, [row.seconds for row in rows])
    return found


@functools.lru_cache(maxsize=256)
def _reference(dtype: str, peak: float) -> tuple[_Fit, float]:
    """The measured fit with the nearest peak, and that peak: of the dtype, else of bfloat16."""
    found: dict[str, list[tuple[float, str, float]]] = {dtype: [], "bfloat16": []}
    fits = {name: _fits(table) for name in REFERENCES if (table := load_profile(name).gemm)}
    for name, of_dtype in fits.items():
        device = load_profile(name).device
        for wanted, candidates in found.items():
            unit = "tensorfloat32" if wanted == "float32" else wanted
            if wanted in of_dtype and (rate := device.peak(unit)):
                candidates.append((abs(math.log(rate / peak)), name, rate))
    wanted = dtype if found[dtype] else "bfloat16"
    _, name, rate = min(found[wanted])
    return fits[name][wanted], rate
