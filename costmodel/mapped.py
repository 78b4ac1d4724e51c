"""Seconds of the user's `shard_map` on one device: its body's ops, and the collectives in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ir import (
    Attr,
    Graph,
    MappedParts,
    Node,
    TensorType,
    left_axes,
    lookup,
    mapped_axes,
    mapped_parts,
    parts_split,
    runs_of,
)
from ir.analysis import Place
from profiles import CollectiveKind

from .cluster import Cluster
from .collectives import CollectiveModel, group_for, wire_bytes

# Primitives that exchange data between devices. Bytes of a collective are those of the whole tensor
# over its group for the gathering kinds, else those of the operand of one device.
COLLECTIVES: Mapping[str, CollectiveKind] = {
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_to_all": "all-to-all",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "reduce_scatter": "reduce-scatter",
}
Floats = NDArray[np.float64]
OpSeconds = Callable[[Node, Sequence[TensorType], Mapping[str, float]], float]
_UNSPLIT: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class MappedCollective:
    """A collective in the body of a `shard_map`.

    axes: those of the mesh that it goes over, of sizes above one.
    group_size: number of devices that exchange data.
    sent_bytes: bytes that each device sends in one run, ring convention.
    tensor_bytes: by which it is priced.
    count: its runs in one run of the `shard_map`; in a branch of n, 1/n of them.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    group_size: int
    sent_bytes: float
    tensor_bytes: float
    count: float


def mapped_s(node: Node, ways: Mapping[str, Floats], cluster: Cluster, op_s: OpSeconds) -> Floats:
    """Time of one run of a `shard_map`: its ops one after the other, collectives in between.

    It is infinite where parts are split by another number than axes of its mesh that it leaves to
    the compiler have devices.

    Args:
        node: the op, whose body works on shards.
        ways: of each strategy, by how much its factors are split; its parts, that is.
        cluster: devices and links.
        op_s: seconds of an op of the body on shards of these types, split by factors.
    """
    count, found = len(next(iter(ways.values()))) if ways else 1, list[float]()
    sizes = mapped_axes(node.attr("mesh"))
    able = {math.prod(sizes[name] for name in group) for group in _left_groups(node)}
    for k in range(count):
        split = parts_split(node, {name: float(each[k]) for name, each in ways.items()})
        asked = {n for n in (*split.values(), math.prod(split.values())) if n > 1}
        found.append(_body_s(node, split, cluster, op_s) if asked <= able else math.inf)
    return np.array(found)


def _left_groups(node: Node) -> list[tuple[str, ...]]:
    """Groups of the axes that a `shard_map` leaves to the compiler, the smallest first."""
    sizes = mapped_axes(node.attr("mesh"))
    left = sorted(name for name in left_axes(node.attr("auto")) if sizes[name] > 1)
    return [group for n in range(len(left)) for group in combinations(left, n + 1)]


def _body_s(node: Node, split: Mapping[int, float], cluster: Cluster, op_s: OpSeconds) -> float:
    parts, model = mapped_parts(node) if split else None, CollectiveModel(cluster)
    ops = sum(
        runs * op_s(inner, types, parts.ways(place, split) if parts else {})
        for inner, types, runs, place in _leaves(node.bodies[0], 1.0)
        if inner.op not in COLLECTIVES
    )
    sent = mapped_collectives(node, split)
    return ops + sum(c.count * mapped_collective_s(c, node, model) for c in sent)


def mapped_collective_s(found: MappedCollective, node: Node, model: CollectiveModel) -> float:
    """Time of one run of a collective in a `shard_map`; 0 where its mesh is not the cluster's."""
    axes = {name: size for name, size in mapped_axes(node.attr("mesh")).items() if size > 1}
    if math.prod(axes.values()) != model.cluster.num_devices:
        return 0.0
    over = tuple([*axes].index(name) for name in found.axes)
    group = group_for(model.cluster, tuple(axes.values()), over)
    return model.seconds(found.kind, group, found.tensor_bytes)


def mapped_collectives(node: Node, split: Mapping[int, float] = _UNSPLIT) -> list[MappedCollective]:
    """The collectives of a `shard_map`, one for each operand.

    Args:
        node: the op.
        split: by how much its parts are split.
    """
    sizes, parts = mapped_axes(node.attr("mesh")), mapped_parts(node) if split else None
    found: list[MappedCollective] = []
    for inner, operands, runs, place in _leaves(node.bodies[0], 1.0):
        if parts is not None:
            found += _of_parts(inner, parts, split, place, runs, node)
        kind = COLLECTIVES.get(inner.op)
        axes = tuple(name for name in _names(inner) if sizes.get(name, 1) > 1)
        if kind is None or not axes:
            continue
        count = math.prod(sizes[name] for name in axes)
        side, types = ("result", inner.outputs) if kind == "all-gather" else ("operand", operands)
        for k, type_ in enumerate(types):
            size = float(type_.nbytes) / (parts.share(place, side, k, split) if parts else 1.0)
            sent = wire_bytes(kind, count, size)
            found.append(MappedCollective(kind, axes, count, sent, size, runs))
    return found


def _of_parts(
    inner: Node, parts: MappedParts, split: Mapping[int, float], place: Place, runs: float,
    node: Node,
) -> list[MappedCollective]:  # fmt: skip
    """All-reduces of what an op adds up along parts, over axes that the `shard_map` leaves."""
    sizes, ways = mapped_axes(node.attr("mesh")), _left_groups(node)
    found: list[MappedCollective] = []
    for k, type_ in enumerate(inner.outputs):
        count = int(parts.sums(place, k, split))
        if count > 1:
            axes = next(c for c in ways if math.prod(sizes[name] for name in c) == count)
            size = float(type_.nbytes) / parts.share(place, "result", k, split)
            sent = wire_bytes("all-reduce", count, size)
            found.append(MappedCollective("all-reduce", axes, count, sent, size, runs))
    return found


def _leaves(
    graph: Graph, runs: float, prefix: Place = ()
) -> Iterator[tuple[Node, Sequence[TensorType], float, Place]]:
    """The ops of a body, with types of operands, runs and place, those of bodies inside.

    A branch of n counts 1/n, as in a plan.
    """
    for i, node in enumerate(graph.nodes):
        if node.bodies and lookup(node.op).family == "control":
            each = runs * runs_of(node) / (len(node.bodies) if node.op == "cond" else 1)
            for number, body in enumerate(node.bodies):
                yield from _leaves(body, each, (*prefix, i, number))
        else:
            yield node, [graph.type_of(o) for o in node.inputs], runs, (*prefix, i)


def _names(node: Node) -> list[str]:
    for key in ("axes", "axis_name"):
        if node.has_attr(key):
            value: Attr = node.attr(key)
            return [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
    return []
