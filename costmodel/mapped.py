"""Seconds of the user's `shard_map` on one device: its body's ops, and the collectives in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir import Attr, Graph, Node, TensorType, lookup, mapped_axes, runs_of
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
OpSeconds = Callable[[Node, Sequence[TensorType]], float]


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


def mapped_s(node: Node, cluster: Cluster, op_s: OpSeconds) -> float:
    """Time of one run of a `shard_map`: its ops one after the other, collectives in between.

    Args:
        node: the op, whose body works on shards.
        cluster: devices and links.
        op_s: seconds of an op of the body on shards of these types.
    """
    ops = sum(
        runs * op_s(inner, types)
        for inner, types, runs in _leaves(node.bodies[0], 1.0)
        if inner.op not in COLLECTIVES
    )
    model = CollectiveModel(cluster)
    return ops + sum(
        c.count * mapped_collective_s(c, node, model) for c in mapped_collectives(node)
    )


def mapped_collective_s(found: MappedCollective, node: Node, model: CollectiveModel) -> float:
    """Time of one run of a collective in a `shard_map`; 0 where its mesh is not the cluster's."""
    axes = {name: size for name, size in mapped_axes(node.attr("mesh")).items() if size > 1}
    if math.prod(axes.values()) != model.cluster.num_devices:
        return 0.0
    over = tuple([*axes].index(name) for name in found.axes)
    group = group_for(model.cluster, tuple(axes.values()), over)
    return model.seconds(found.kind, group, found.tensor_bytes)


def mapped_collectives(node: Node) -> list[MappedCollective]:
    """The collectives of a `shard_map`, one for each operand."""
    sizes = mapped_axes(node.attr("mesh"))
    found: list[MappedCollective] = []
    for inner, operands, runs in _leaves(node.bodies[0], 1.0):
        kind = COLLECTIVES.get(inner.op)
        axes = tuple(name for name in _names(inner) if sizes.get(name, 1) > 1)
        if kind is None or not axes:
            continue
        count = math.prod(sizes[name] for name in axes)
        for type_ in inner.outputs if kind == "all-gather" else operands:
            size = float(type_.nbytes)
            sent = wire_bytes(kind, count, size)
            found.append(MappedCollective(kind, axes, count, sent, size, runs))
    return found


def _leaves(graph: Graph, runs: float) -> Iterator[tuple[Node, Sequence[TensorType], float]]:
    """The ops of a body with the types of their operands and their runs, those of bodies inside.

    A branch of n counts 1/n, as in a plan.
    """
    for node in graph.nodes:
        if node.bodies and lookup(node.op).family == "control":
            each = runs * runs_of(node) / (len(node.bodies) if node.op == "cond" else 1)
            for body in node.bodies:
                yield from _leaves(body, each)
        else:
            yield node, [graph.type_of(o) for o in node.inputs], runs


def _names(node: Node) -> list[str]:
    for key in ("axes", "axis_name"):
        if node.has_attr(key):
            value: Attr = node.attr(key)
            return [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
    return []
