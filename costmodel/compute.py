"""Seconds of matrix products, of other arithmetic and of memory traffic on one device."""

from __future__ import annotations

import functools
import math
from typing import Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ir import TO_HOST
from profiles import Device, OpTable, ProfileError, load_profile

from .attention import AttentionFit, KernelFit, attention_table_fit, kernel_fit
from .cluster import Cluster
from .fit import Curve, fit_curve
from .products import TILE, ProductFit, table_fit

Floats = NDArray[np.float64]

# A V100 in Alpa's database copies 4 GiB (so moves 8 GiB) in 10.7 ms: 803 of 900 GB/s.
MEMORY_EFFICIENCY: Final = 0.89

# Share of the vector unit's peak for arithmetic that has no table. The peak counts a multiply-add
# as two; 32 multiplications and additions in turn of 16384x4096 numbers take 134 us on an H100
# (`chain` in bfloat16, `benchmarks/data/one_gpu_h100_kernels.csv`).
VECTOR_EFFICIENCY: Final = 0.48

# A convolution against a cubic matrix product of as many operations. Of values from 0.5 to 0.9 this
# one has the smallest mean error over 41 convolutions with at least 64 channels and their gradients
# on an H100 (`benchmarks/data/one_gpu_h100_kernels.csv`): 26 % in the median, against 57 % by
# products of the sizes of the implicit GEMM, whose few columns slow cuDNN down less than products.
CONV_EFFICIENCY: Final = 0.6

# Operations of one exp, tanh, log, sine, ... where none was timed: the length of the polynomials
# that stand for them; assumed.
TRANSCENDENTAL_FLOPS: Final = 24.0

# Devices whose tables cover a grid: the efficiency of the others is taken from the nearest one.
REFERENCES: Final = ("a100", "b200", "h100")

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
    "float8_e5m2": "float8_e4m3fn",
    "float8_e5m2fnuz": "float8_e4m3fn",
    "float8_e3m4": "float8_e4m3fn",
    "uint8": "int8",
    "int4": "int8",
    "uint4": "int8",
    "int2": "int8",
    "uint2": "int8",
}
# Types of equal width, which matrix units compute at one rate where their peaks are equal.
_TWINS: Final = {
    "bfloat16": "float16",
    "float16": "bfloat16",
    "int8": "float8_e4m3fn",
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
    such table, the efficiency curve is that of the measured device with the nearest peak, on the
    problem with every dimension scaled by the cube root of the ratio of peaks. That moves the knee
    of the curve to where the slower device reaches it:
    t(m, n, k) = t_ref(s m, s n, s k) with s = (peak_ref / peak)^(1/3).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._gemm, self._attention = cluster.gemm, cluster.attention
        self._fits: dict[str, ProductFit | None] = {}
        self._ops = _op_curves(cluster.ops) if cluster.ops else {}
        # A measured bandwidth is that of the largest copy, not of one that stays in a cache: what
        # a step touches once comes from memory, though each array alone would fit the cache.
        self._memory_rate = cluster.device.memory_bandwidth_bytes_per_s * (
            1.0 if cluster.device.evidence == "measured" else MEMORY_EFFICIENCY
        )
        self.cluster: Final = cluster
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

        Never below the time to read the operands and write the result once, nor below a launch, nor
        below the flops over the rate that the power limit lets last; 0 where a size is 0. On
        float32 operands it is the tensorfloat32 path of devices that have one, as XLA takes by
        default. A product with a side that would be padded is computed on the vector unit where
        that is faster.

        Raises:
            ValueError: if a size is negative or `dtype` is not a dtype name.
        """
        sizes = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (batch, m, n, k)))
        if any(np.any(~(size >= 0.0)) for size in sizes):
            raise ValueError(f"gemm_s: sizes must be at least 0, got {batch}, {m}, {n}, {k}")
        b, rows, columns, depth = (np.maximum(size, 1.0) for size in sizes)
        elements = b * (rows * depth + depth * columns + rows * columns)
        busy = self._table_s(b, rows, columns, depth, dtype)
        moved = elements * item_bytes(dtype) / self._memory_rate
        limit = self.device.sustained(_CARRIED.get(dtype, dtype)) or np.inf
        lasting = 2.0 * b * rows * columns * depth / limit
        found = np.maximum.reduce([busy, np.full_like(busy, self.launch_s), moved, lasting])
        return np.where(np.prod(np.stack(sizes), axis=0) > 0.0, found, 0.0)

    def _table_s(self, b: Floats, m: Floats, n: Floats, k: Floats, dtype: str) -> Floats:
        carried, scale = _CARRIED.get(dtype, dtype), 1.0
        peak = self.peak_flops(dtype, tensor=True)
        fit = self._fit(carried) or self._fit(self._twin(carried))
        if fit is None:
            fit, reference_peak = _reference(carried, peak)
            scale = (reference_peak / peak) ** (1.0 / 3.0)
        found = fit(b, m * scale, n * scale, k * scale)
        padded = np.any([x < least for x, least in zip((m, n, k), fit.least, strict=True)], axis=0)
        flops = 2.0 * b * m * n * k
        vector = self.launch_s + np.maximum(self.flops_s(flops, dtype), flops / peak)
        return np.where(padded, np.minimum(found, vector), found)

    def _fit(self, dtype: str) -> ProductFit | None:
        if dtype not in self._fits:
            self._fits[dtype] = table_fit(self._gemm, dtype) if self._gemm else None
        return self._fits[dtype]

    def _twin(self, dtype: str) -> str:
        """The type of equal width and rate, or the type itself."""
        twin = _TWINS.get(dtype, dtype)
        return twin if self.device.peak(twin) == self.device.peak(dtype) else dtype

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

    def attention_s(
        self, heads: ArrayLike, key_heads: ArrayLike, pairs: ArrayLike, keys: ArrayLike,
        features: float, dtype: str, *, unequal: ArrayLike = 0.0, backward: bool = False,
    ) -> Floats:  # fmt: skip
        """Time of an attention kernel, launch included.

        Timings of the kernels that JAX calls go first, of this device or of one with the same peak.
        By those of other libraries it takes as long as a causal kernel with as many pairs of a
        query and a key, of L = sqrt(2 pairs) queries. Timings are of bfloat16; those of other
        types, and of the measured device with the nearest peak where this one has none, are scaled
        by the peaks.

        Args:
            heads: query heads of all batches.
            key_heads: key heads of all batches.
            pairs: pairs of a query and a key that are computed for one head.
            keys: keys of a head.
            features: size of a head.
            dtype: numpy-like name.
            unequal: keys that the last query sees beyond the mean.
            backward: whether it is the backward kernel.
        """
        peak = self.peak_flops(dtype, tensor=True)
        kernels = self._kernels()
        if kernels is not None:
            busy = kernels(heads, pairs, keys, features, unequal=unequal, backward=backward)
            busy = busy * self.peak_flops("bfloat16", tensor=True) / peak
            return np.maximum(busy, self.launch_s)
        own = attention_table_fit(self._attention, "bfloat16") if self._attention else None
        if own is None:
            fit, timed_peak = _attention_reference(peak)
        else:
            fit, timed_peak = own, self.peak_flops("bfloat16", tensor=True)
        length = np.sqrt(2.0 * np.asarray(pairs, dtype=np.float64))
        busy = fit(length, heads, key_heads, keys, features, backward=backward) * timed_peak / peak
        return np.maximum(busy, self.launch_s)

    def _kernels(self) -> KernelFit | None:
        """Timings of the kernels that JAX calls, of this device or of one with its peak."""
        own = kernel_fit(self._attention, "bfloat16") if self._attention else None
        return own or _same_chip(self.peak_flops("bfloat16", tensor=True))

    def convolution_s(
        self, groups: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *,
        narrow: bool = False,
    ) -> Floats:  # fmt: skip
        """Time of a convolution, launch included.

        Measured over its flops where the device has timings; else a cubic product of as many
        operations in each group, at `CONV_EFFICIENCY`, with fewer columns or less depth than a tile
        of products padded to it; or the vector unit where that is faster, as for one channel per
        group.

        Args:
            groups: feature and batch groups.
            m: positions of the output, batch included.
            n: output channels of a group.
            k: input channels of a group times the window.
            dtype: numpy-like name.
            narrow: whether it has fewer input channels than the matrix unit reads at once.
        """
        b, m, n, k = (np.asarray(x, dtype=np.float64) for x in (groups, m, n, k))
        flops = 2.0 * b * m * n * k
        if (curve := self._ops.get("convolution")) is not None:
            return curve(flops)
        vector = self.launch_s + self.flops_s(flops, dtype)
        if narrow:
            return vector
        side = np.cbrt(m * np.maximum(n, TILE) * np.maximum(k, TILE))
        product = self.gemm_s(b, side, side, side, dtype) / CONV_EFFICIENCY
        return np.minimum(product, vector)

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

    def host_copy_s(self, op: str, nbytes: ArrayLike) -> Floats:
        """Time of a copy between the memory of a device and that of its host.

        t = t_launch + bytes / rate

        Args:
            op: one of `ir.HOST_COPIES`.
            nbytes: of the device's part.

        Raises:
            ProfileError: if nothing is known of the link between them.
        """
        link = self.device.host_link
        if link is None:
            raise ProfileError(
                "a copy to the memory of the host has no price", where=self.device.name,
                remedy="give `host_link` in its profile, or plan with offload='never'",
            )  # fmt: skip
        rate = link.to_host_bytes_per_s if op == TO_HOST else link.from_host_bytes_per_s
        return self.launch_s + np.asarray(nbytes, dtype=np.float64) / rate

    def _rate(self, op: str) -> float:
        """Operations per second of a measured op at its best size."""
        curve = self._ops[op]
        return float(np.max(curve.size / curve.seconds))


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


@functools.lru_cache(maxsize=64)
def _same_chip(peak: float) -> KernelFit | None:
    """The fit of a device with the same peak of bfloat16."""
    for name in REFERENCES:
        profile = load_profile(name)
        if profile.attention and profile.device.peak("bfloat16") == peak:
            return kernel_fit(profile.attention, "bfloat16")
    return None


@functools.lru_cache(maxsize=64)
def _attention_reference(peak: float) -> tuple[AttentionFit, float]:
    """The measured fit of bfloat16 with the nearest peak, and that peak."""
    found: list[tuple[float, str, float]] = []
    for name in REFERENCES:
        rate = load_profile(name).device.peak("bfloat16")
        if load_profile(name).attention and rate:
            found.append((abs(math.log(rate / peak)), name, rate))
    _, name, rate = min(found)
    table = load_profile(name).attention
    fit = attention_table_fit(table, "bfloat16") if table else None
    assert fit is not None
    return fit, rate


@functools.lru_cache(maxsize=256)
def _reference(dtype: str, peak: float) -> tuple[ProductFit, float]:
    """The measured fit with the nearest peak, and that peak: of the dtype, else of bfloat16."""
    found: dict[str, list[tuple[float, str, float]]] = {dtype: [], "bfloat16": []}
    tables = {name: table for name in REFERENCES if (table := load_profile(name).gemm)}
    for name, table in tables.items():
        device, timed = load_profile(name).device, {row.dtype for row in table.rows}
        for wanted, candidates in found.items():
            unit = "tensorfloat32" if wanted == "float32" else wanted
            if wanted in timed and (rate := device.peak(unit)):
                candidates.append((abs(math.log(rate / peak)), name, rate))
    wanted = dtype if found[dtype] else "bfloat16"
    _, name, rate = min(found[wanted])
    fit = table_fit(tables[name], wanted)
    assert fit is not None
    return fit, rate
