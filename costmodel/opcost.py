"""Seconds of an operation under each of its strategies, on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ir import (
    AMOUNTS,
    ATTENTION,
    CUMULATIVE,
    EXCHANGE,
    EXCHANGED,
    FFT,
    GROUPED,
    HALVES,
    HOST_COPIES,
    REGISTERED,
    SCALED,
    SHARD_MAP,
    SLIDING,
    FactorSpec,
    Node,
    OpDef,
    TensorType,
    amount_on_shard,
    flops_of,
    grouped_sizes,
    lookup,
)

from .arithmetic import arithmetic_s, dtype_of, is_narrow, measured_as
from .attention_blocks import AttentionWork, Hops
from .borders import Borders
from .compute import ComputeModel, item_bytes
from .exchanged_rows import RowExchange
from .grouped import GroupedWork
from .mapped import OpSeconds, mapped_s
from .pencils import Pencils
from .running_totals import RunningTotals
from .sorting import ordering_s

Floats = NDArray[np.float64]

_BLOCK_SCALED = "float4_e2m1fn"
LARGE = 8192.0  # sides of a product that runs at full rate


@dataclass(frozen=True, slots=True)
class OpWork:
    """One op as the cost model sees it.

    reads: operand positions that this op pays for reading; others come from its own fusion.
    writes: result positions that reach memory.
    launches: kernels it starts, 0 inside a fusion that another op started.
    moved: operands and results that a loop moves beside it: side, position, how often.
    computed: how often its arithmetic is paid for, beside what it moves; None: the larger of both.
    """

    node: Node
    record: OpDef
    operands: tuple[TensorType, ...]
    spec: FactorSpec
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    launches: int
    moved: tuple[tuple[str, int, float], ...] = ()
    computed: int | None = None


def op_seconds(
    work: OpWork, ways: Mapping[str, Floats], compute: ComputeModel, hops: Hops | None = None
) -> Floats:
    """Time of one execution on one device, for all strategies at once, with what loops copy.

    Args:
        work: the op.
        ways: for every factor the number of parts it is split into, one entry per strategy.
        compute: prices of the device.
        hops: prices of permutes inside the op; where None, these are left out.

    Returns:
        Seconds, one per strategy.
    """
    seconds = _own_seconds(work, ways, compute, hops)
    if not work.moved:
        return seconds
    seconds = np.atleast_1d(seconds)  # that of a product of scalars is a number
    local, count = local_sizes(work.spec, ways), len(seconds)
    for side, position, times in work.moved:
        if side == "operand":
            type_, dims = work.operands[position], work.spec.operands[position]
        else:
            type_, dims = work.node.outputs[position], work.spec.results[position]
        seconds = seconds + compute.memory_s(times * tensor_bytes(type_, dims, local, count))
    return seconds


def _own_seconds(
    work: OpWork, ways: Mapping[str, Floats], compute: ComputeModel, hops: Hops | None
) -> Floats:
    """Time of an op alone.

    A product and an attention kernel are priced by measured tables, a grouped product by those of
    its tiles, a convolution as a product, a gather, scatter or reduction by its own timings where
    the device has them, rows that devices exchange included; everything else by the larger of its
    arithmetic and its traffic: t = max(flops / rate, bytes / bandwidth) + launches * t_launch. A
    copy to or from the host takes no time of the device; what of it nothing runs beside is the
    planner's to add (`ComputeModel.host_copy_s`).
    """
    count = len(next(iter(ways.values()))) if ways else 1
    local = local_sizes(work.spec, ways)
    if work.node.op == "dot_general":
        return _product_s(work, local, compute)
    if work.node.op in SCALED:
        return _scaled_product_s(work, local, compute)
    if work.node.op in HOST_COPIES:
        return np.zeros(count)
    if work.node.op == SHARD_MAP:
        return mapped_s(work.node, ways, compute.cluster, _on_shards(compute))
    moved = _traffic(work, local, count)
    if work.node.op == REGISTERED:
        return _registered_s(work, ways, moved, compute)
    own = _exchanging_s(work, ways, moved, compute, hops)
    if own is not None:
        return own
    busy = _computing_s(work, ways, local, moved, compute)
    return busy + _sharing_s(work, ways, compute, hops) if work.spec.joint else busy


def _sharing_s(
    work: OpWork, ways: Mapping[str, Floats], compute: ComputeModel, hops: Hops | None
) -> Floats:
    """What an op with joint factors takes beside its work on a shard, collectives included."""
    count = len(next(iter(ways.values())))
    if work.node.op in EXCHANGED:
        rows = RowExchange(work.node, work.operands, ways)
        own = rows.seconds(compute)
        return own if hops is None else own + rows.exposed_s(hops)
    if work.node.op in (*CUMULATIVE, FFT):
        given = work.operands[0], work.spec, ways
        shared = Pencils(work.node, *given) if work.node.op == FFT else RunningTotals(*given)
        own = shared.seconds(compute)
        return own if hops is None else own + shared.exchange(hops).exposed_s
    if work.node.op not in SLIDING or hops is None:
        return np.zeros(count)
    borders = Borders(work.node, work.operands, work.spec, ways, count)
    return borders.seconds(hops) + compute.memory_s(borders.copied_bytes())


def _computing_s(
    work: OpWork, ways: Mapping[str, Floats], local: Mapping[str, Floats], moved: Floats,
    compute: ComputeModel,
) -> Floats:  # fmt: skip
    """Time of an op without exchanges of its own."""
    count = len(moved)
    if work.node.op == "conv_general_dilated":
        return np.maximum(_convolution_s(work, local, compute), compute.memory_s(moved))
    measured = compute.moving_s(measured_as(work.node.op), moved)
    if measured is not None:
        return np.where(moved > 0.0, measured, 0.0)
    share, starts = _share(work.spec, ways, count), work.launches * compute.launch_s
    ordered = ordering_s(work.node, work.operands, share, compute.memory_s(moved), compute)
    if ordered is not None:
        return ordered + starts
    arithmetic = share * arithmetic_s(work.node, work.operands, compute)
    if work.computed is not None:
        return work.computed * arithmetic + compute.memory_s(moved) + starts
    return np.maximum(arithmetic, compute.memory_s(moved)) + starts


# Ops that exchange parts and hold memory of their own while they run.
HOLDING = (*ATTENTION, *CUMULATIVE, *EXCHANGED, FFT, GROUPED, *SLIDING)


def _exchanging_s(
    work: OpWork, ways: Mapping[str, Floats], moved: Floats, compute: ComputeModel,
    hops: Hops | None,
) -> Floats | None:  # fmt: skip
    """Time of attention and of grouped products, what is exposed of their exchange included."""
    if work.node.op in ATTENTION:
        attention = AttentionWork(work.node, work.operands, ways)
        busy = np.maximum(attention.seconds(compute), compute.memory_s(moved))
        return busy if hops is None else busy + attention.exposed_s(compute, hops)
    if work.node.op != GROUPED:
        return None
    sizes = grouped_sizes(work.operands, dict(work.node.attrs))
    if sizes is None:
        return None
    grouped = GroupedWork(sizes, work.operands[0].dtype, ways, compute.cluster.imbalance)
    busy = grouped.seconds(compute) + np.zeros(len(moved))
    return busy if hops is None else busy + grouped.exchange(compute, hops).exposed_s


def held_bytes(
    node: Node, operands: tuple[TensorType, ...], spec: FactorSpec, ways: Mapping[str, Floats],
    count: int,
) -> Floats:  # fmt: skip
    """Bytes that an op holds beside operands and results, one entry per strategy.

    Args:
        node: one of `HOLDING`.
        operands: types of its whole operands.
        spec: its factors.
        ways: for every factor the number of parts, one entry per strategy.
        count: number of strategies.
    """
    if node.op in ATTENTION:
        return AttentionWork(node, operands, ways).scratch_bytes()
    if node.op in SLIDING:
        return Borders(node, operands, spec, ways, count).held
    if node.op in CUMULATIVE:
        return np.zeros(count) + RunningTotals(operands[0], spec, ways).held_bytes()
    if node.op == FFT:
        return np.zeros(count) + Pencils(node, operands[0], spec, ways).held_bytes()
    if node.op in EXCHANGED:
        held = RowExchange(node, operands, ways).held_bytes() if EXCHANGE in ways else 0.0
        return np.zeros(count) + held
    sizes = grouped_sizes(operands, dict(node.attrs))
    grouped = GroupedWork(sizes, operands[0].dtype, ways).held_bytes() if sizes else 0.0
    return np.zeros(count) + grouped


def local_sizes(spec: FactorSpec, ways: Mapping[str, Floats]) -> dict[str, Floats]:
    """Size of every factor on a device, one entry per strategy."""
    found: dict[str, Floats] = {}
    for name, size in spec.sizes:
        found[name] = size / ways[name]
        for joint in spec.splitting(name)[1:]:
            found[name] = found[name] / ways[joint]
    return found


def _on_shards(compute: ComputeModel) -> OpSeconds:
    """Seconds of an op split by factors, which starts a kernel of its own."""

    def seconds(node: Node, operands: Sequence[TensorType], split: Mapping[str, float]) -> float:
        record, types = lookup(node.op), tuple(operands)
        spec = record.factors(types, node.outputs, dict(node.attrs))
        reads, writes = tuple(range(len(types))), tuple(range(len(node.outputs)))
        work = OpWork(node, record, types, spec, reads, writes, 1)
        ways = {name: np.array([split.get(name, 1.0)]) for name in spec.names}
        return float(op_seconds(work, ways, compute)[0])

    return seconds


def _flops(work: OpWork) -> float:
    return float(flops_of(work.record, work.node, work.operands))


def _share(spec: FactorSpec, ways: Mapping[str, Floats], count: int) -> Floats:
    total: Floats = np.ones(count)
    for name, _ in spec.sizes:
        total = total * ways[name]
    return 1.0 / total


def _scaled_product_s(work: OpWork, local: Mapping[str, Floats], compute: ComputeModel) -> Floats:
    """Of a product with scales of blocks.

    Matrix units that compute in 4 bits scale blocks themselves. For others XLA multiplies operands
    by their scales in memory, in the type of the result, and their product is one of that type
    (xla/service/gpu/transforms/block_scaling_rewriter.cc).
    """
    if compute.device.peak(_BLOCK_SCALED):
        return _product_s(work, local, compute)
    wide, count = work.node.outputs[0].dtype, len(next(iter(local.values()), np.ones(1)))
    moved: Floats = np.zeros(count)
    for type_, dims in zip(work.operands[:2], work.spec.operands[:2], strict=True):
        own = tensor_bytes(type_, dims, local, count)
        moved = moved + own * (1.0 + item_bytes(wide) * type_.size / max(type_.nbytes, 1))
    unpacked = compute.memory_s(moved) + 2.0 * compute.launch_s
    return unpacked + _product_s(work, local, compute, wide)


def _product_s(
    work: OpWork, local: Mapping[str, Floats], compute: ComputeModel, dtype: str = ""
) -> Floats:
    """Of a product, in the type of its first operand or another one."""
    lhs, rhs = ({f for dim in dims for f in dim} for dims in work.spec.operands[:2])
    out = {f for dims in work.spec.results for dim in dims for f in dim}
    sizes: dict[str, Floats | float] = {"b": 1.0, "m": 1.0, "n": 1.0, "k": 1.0}
    for name, size in local.items():
        if name in out:
            role = "b" if name in lhs and name in rhs else "m" if name in lhs else "n"
        else:
            role = "k"
        sizes[role] = sizes[role] * size
    dtype = dtype or work.operands[0].dtype
    return compute.gemm_s(sizes["b"], sizes["m"], sizes["n"], sizes["k"], dtype)


def _registered_s(
    work: OpWork, ways: Mapping[str, Floats], moved: Floats, compute: ComputeModel
) -> Floats:
    """Of an op that a user registered, with what the registration says of its costs."""
    attrs, whole = dict(work.node.attrs), dict(work.spec.sizes)
    flops = np.broadcast_to(_flops(work) * _share(work.spec, ways, len(moved)), moved.shape)
    found: Floats = np.zeros(len(moved))
    for k in range(len(moved)):
        local = {name: size / float(ways[name][k]) for name, size in whole.items()}
        told = {kind: amount_on_shard(attrs, kind, whole, local) for kind in AMOUNTS}
        done, bytes_, seconds = (told[kind] for kind in AMOUNTS)
        arithmetic = _arithmetic_s(work, flops[k] if done is None else done, compute)
        memory = compute.memory_s(moved[k] if bytes_ is None else bytes_)
        own = max(arithmetic, float(memory)) + work.launches * compute.launch_s
        found[k] = own if seconds is None else seconds
    return found


def _arithmetic_s(work: OpWork, flops: float, compute: ComputeModel) -> float:
    """Of sums of products at the rate of a large product, else on the vector unit."""
    after = {name for dims in work.spec.results for dim in dims for name in dim}
    if after.issuperset(work.spec.names):
        return float(compute.flops_s(flops, dtype_of(work.node, work.operands)))
    large = float(compute.gemm_s(1.0, LARGE, LARGE, LARGE, dtype_of(work.node, work.operands)))
    return flops * large / (2.0 * LARGE**3)


def _convolution_s(work: OpWork, local: Mapping[str, Floats], compute: ComputeModel) -> Floats:
    """As a product: groups, output positions, output channels, and window times input channels."""
    inner = {f for dim in work.spec.operands[1] for f in dim}
    out = {f for dim in work.spec.results[0] for f in dim}
    sizes: dict[str, Floats | float] = {"b": 1.0, "m": 1.0, "n": 1.0, "k": 1.0}
    for name, size in local.items():
        if name in ("f", "g"):
            role = "b"
        elif name in out:
            role = "n" if name in inner else "m"
        else:
            role = "k" if name in inner else ""
        if role:
            sizes[role] = sizes[role] * size
    dtype = work.operands[0].dtype
    narrow = is_narrow(work.node, work.operands)
    return compute.convolution_s(
        sizes["b"], sizes["m"], sizes["n"], sizes["k"], dtype, narrow=narrow
    )  # fmt: skip


def tensor_bytes(type_: TensorType, dims: Sequence[tuple[str, ...]], local: Mapping[str, Floats],
                 count: int) -> Floats:  # fmt: skip
    """Local bytes of a tensor, one entry per strategy."""
    whole = math.prod(size for size, dim in zip(type_.shape, dims, strict=True) if not dim)
    item = type_.nbytes / max(type_.size, 1)
    total: Floats = np.full(count, float(whole) * item)
    for dim in dims:
        for name in dim:
            total = total * local[name]
    return total


def _traffic(work: OpWork, local: Mapping[str, Floats], count: int) -> Floats:
    operands = [
        tensor_bytes(t, dims, local, count)
        for t, dims in zip(work.operands, work.spec.operands, strict=True)
    ]
    results = [
        tensor_bytes(t, dims, local, count)
        for t, dims in zip(work.node.outputs, work.spec.results, strict=True)
    ]
    zero: Floats = np.zeros(count)
    op = work.node.op
    if op in VIEWS and not (op == "transpose" and work.writes):
        return zero
    if op in ("gather", "dynamic_slice"):
        return sum(operands[1:], zero) + 2.0 * results[0]
    if op.startswith("scatter"):
        halves = work.operands[2].dtype in HALVES and op != "scatter"
        times = ADDED_HALVES if halves else 2.0 if op == "scatter" else 3.0
        return operands[1] + times * operands[2] + results[0]
    if op == "dynamic_update_slice":
        return 2.0 * operands[1]
    if op in ("sort", "top_k", "approx_top_k"):
        length = work.operands[0].shape[-1] if work.operands[0].shape else 1
        return (sum(operands, zero) + sum(results, zero)) * max(1.0, math.log2(max(length, 2)))
    if op == "slice":  # reads what it makes
        operands = results
    return sum((operands[i] for i in work.reads), zero) + sum(
        (results[i] for i in work.writes), zero
    )


# A scatter that adds reads what it adds and what it adds to, and writes that. Numbers of 16 bits
# are added by comparing and swapping words of 32: 16384 rows of 2048 take 340 us on an H100, 15
# times their bytes (`scatter_add` in `benchmarks/data/one_gpu_h100_kernels.csv`).
ADDED_HALVES = 15.0

# Ops that only rename memory; a transpose is one where it meets a product, as XLA folds it.
VIEWS = (
    "reshape", "squeeze", "expand_dims", "bitcast_convert_type", "copy_p", "transpose",
    "stop_gradient", "optimization_barrier", "name",
)  # fmt: skip
