"""Collectives that ops run themselves: attention, products, lookups, borders, `shard_map`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel import (
    HOLDING,
    AttentionWork,
    Borders,
    CollectiveModel,
    ComputeModel,
    Exchange,
    GroupedWork,
    Hops,
    Pencils,
    ReshardModel,
    RowExchange,
    RunningTotals,
    hops_of,
    joint_axes,
    mapped_collective_s,
    mapped_collectives,
)
from ir import (
    ATTENTION,
    CUMULATIVE,
    EXCHANGED,
    FFT,
    SHARD_MAP,
    SLIDING,
    FactorSpec,
    Mesh,
    Node,
    Strategy,
    TensorType,
    grouped_sizes,
    parts_split,
)
from ir.analysis import FlatOp, operand_types

from ..lower import Decided
from .in_parts import PERMUTE


@dataclass(frozen=True, slots=True)
class Inside:
    """A kind of collective of one op, all of its runs in one call.

    sent_bytes: of a device.
    exposed_s: the part of `seconds` in which the op does not compute, or is slowed down.
    """

    kind: str
    axes: tuple[str, ...]
    count: float
    sent_bytes: float
    seconds: float
    exposed_s: float
    cause: str


def inside_ops(decided: Decided) -> Iterator[Inside]:
    """The collectives of each op of a plan that exchanges parts while it runs."""
    builder, built, plan = decided.builder, decided.built, decided.plan
    flat, cache = builder.flat, builder.cache
    for i in built.op_node:
        op, strategy = flat.ops[i], plan.strategies[i]
        cause = f"{op.node.op} {op.node.source}".strip()
        if op.node.op == SHARD_MAP:
            split = _split_parts(op.node, strategy, plan.mesh)
            yield from _mapped(op, cache.reshard.collectives, f"inside {cause}", split)
            continue
        spec = builder.spec(op)
        if op.node.op not in HOLDING or strategy is None:
            continue
        axes, hops = joint_axes(spec, strategy, plan.mesh.names), None
        if axes:
            hops = hops_of(spec, (strategy,), cache.reshard, overlap=builder.overlap)
        if hops is None:
            continue
        parts = strategy.factor_axes(plan.mesh)
        ways = {n: np.array([float(plan.mesh.product(parts.get(n, ())))]) for n in spec.names}
        if op.node.op in SLIDING:
            whole_s = builder.borders.seconds(i, (strategy,))
            hidden_s = float(builder.borders.hidden_s(i, whole_s)[0])
            shown = 1.0 - hidden_s / float(whole_s[0]) if whole_s[0] else 1.0
            for sent in Borders(op.node, operand_types(flat, op), spec, ways, 1).sent:
                if sent.each:
                    along = joint_axes(spec, strategy, plan.mesh.names, (sent.slide.factor,))
                    count, total, total_s = (
                        float(x[0]) * op.weight
                        for x in (sent.count, sent.bytes, sent.seconds(hops))
                    )
                    yield Inside(PERMUTE, along, count, total, total_s, total_s * shown, cause)
            continue
        types = operand_types(flat, op)
        for kind, found in _exchanges(op, types, spec, ways, cache.compute, hops):
            figures = (found.count, found.sent_bytes, found.seconds, found.exposed_s)
            count, sent, seconds, exposed = (float(x[0]) * op.weight for x in figures)
            yield Inside(kind, axes, count, sent, seconds, exposed, cause)


def permutes(inside: Sequence[Inside], reshard: ReshardModel) -> tuple[bool, bool]:
    """Whether ops send permutes, and whether within a host, where they are priced as copies."""
    groups = [reshard.group(row.axes) for row in inside if row.kind == PERMUTE and row.count]
    return bool(groups), any(map(reshard.collectives.within_host, groups))


def _exchanges(
    op: FlatOp, types: tuple[TensorType, ...], spec: FactorSpec,
    ways: dict[str, NDArray[np.float64]], compute: ComputeModel, hops: Hops,
) -> Sequence[tuple[str, Exchange]]:  # fmt: skip
    """Collectives of an op with joint factors, by kind."""
    if op.node.op in CUMULATIVE:
        return (("all-gather", RunningTotals(types[0], spec, ways).exchange(hops)),)
    if op.node.op == FFT:
        return (("all-to-all", Pencils(op.node, types[0], spec, ways).exchange(hops)),)
    if op.node.op in EXCHANGED:
        return RowExchange(op.node, types, ways).exchange(hops)
    if op.node.op in ATTENTION:
        return AttentionWork(op.node, types, ways).exchanges(compute, hops)
    sizes = grouped_sizes(types, dict(op.node.attrs))
    assert sizes is not None  # others have no joint factors
    work = GroupedWork(sizes, types[0].dtype, ways, compute.cluster.imbalance)
    return (("all-to-all", work.exchange(compute, hops)),)


def mapped_ops(decided: Decided) -> Iterator[tuple[FlatOp, Mapping[int, float]]]:
    """The `shard_map`s of a program, and by how much the plan splits the parts of each."""
    plan = decided.plan
    for i, op in enumerate(decided.builder.flat.ops):
        if op.node.op == SHARD_MAP:
            yield op, _split_parts(op.node, plan.strategies[i], plan.mesh)


def _split_parts(node: Node, strategy: Strategy | None, mesh: Mesh) -> dict[int, float]:
    """By how much a strategy splits the parts of a `shard_map`."""
    axes = strategy.factor_axes(mesh) if strategy is not None else {}
    return parts_split(node, {name: float(mesh.product(by)) for name, by in axes.items()})


def _mapped(
    op: FlatOp, model: CollectiveModel, cause: str, split: Mapping[int, float]
) -> Iterator[Inside]:
    """Those of a `shard_map`, whose ops run one after the other."""
    for found in mapped_collectives(op.node, split):
        count = found.count * op.weight
        seconds = count * mapped_collective_s(found, op.node, model)
        sent = count * found.sent_bytes
        yield Inside(found.kind, found.axes, count, sent, seconds, seconds, cause)
