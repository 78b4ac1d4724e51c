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


def mapped_s(node: Node, cluster: Cluster, op_s: OpSeconds) -> float:
    """Time of one run of a `shard_map`: its ops one after the other, collectives in between.

    Args:
        node: the op, whose body works on shards.
        cluster: devices and links.
        op_s: seconds of an op of the body on shards of these types.
    """
    axes = {name: size for name, size in mapped_axes(node.attr("mesh")).items() if size > 1}
    if math.prod(axes.values()) != cluster.num_devices:
        axes = {}
    model = CollectiveModel(cluster)
    return _body_s(node.bodies[0], _Prices(axes, model, op_s))


@dataclass(frozen=True, slots=True)
class MappedCollective:
    """A collective in the body of a `shard_map`.

    group_size: number of devices that exchange data.
    sent_bytes: bytes that each device sends in one run, ring convention.
    count: its runs in one run of the `shard_map`.
    """

    kind: CollectiveKind
    group_size: int
    sent_bytes: float
    count: float


def mapped_collectives(node: Node) -> list[MappedCollective]:
    """The collectives of a `shard_map`, one for each operand; those of all branches of a `cond`."""
    sizes = mapped_axes(node.attr("mesh"))
    return list(_collectives(node.bodies[0], sizes, 1.0))


def _collectives(graph: Graph, sizes: Mapping[str, int], runs: float) -> Iterator[MappedCollective]:
    for node in graph.nodes:
        for body in node.bodies:
            yield from _collectives(body, sizes, runs * runs_of(node))
        kind = COLLECTIVES.get(node.op)
        count = math.prod(sizes.get(name, 1) for name in _names(node))
        if kind is None or count == 1:
            continue
        for type_ in _measured(kind, node, [graph.type_of(o) for o in node.inputs]):
            sent = wire_bytes(kind, count, float(type_.nbytes))
            yield MappedCollective(kind, count, sent, runs)


def _measured(
    kind: CollectiveKind, node: Node, operands: Sequence[TensorType]
) -> Sequence[TensorType]:
    """The tensors by whose bytes a collective is measured."""
    return node.outputs if kind == "all-gather" else operands


class _Prices:
    def __init__(self, axes: Mapping[str, int], model: CollectiveModel, op_s: OpSeconds) -> None:
        self.axes, self.model, self.op_s = axes, model, op_s

    def seconds(self, node: Node, operands: Sequence[TensorType]) -> float:
        kind = COLLECTIVES.get(node.op)
        if kind is None:
            return self.op_s(node, operands)
        names = [*self.axes]
        over = tuple(names.index(name) for name in _names(node) if name in self.axes)
        if not over:
            return 0.0
        group = group_for(self.model.cluster, tuple(self.axes.values()), over)
        types = _measured(kind, node, operands)
        return sum(self.model.seconds(kind, group, float(t.nbytes)) for t in types)


def _names(node: Node) -> list[str]:
    for key in ("axes", "axis_name"):
        if node.has_attr(key):
            value: Attr = node.attr(key)
            return [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
    return []


def _body_s(graph: Graph, prices: _Prices) -> float:
    total = 0.0
    for node in graph.nodes:
        if node.bodies and lookup(node.op).family == "control":
            inside = sum(_body_s(body, prices) for body in node.bodies)
            total += runs_of(node) * inside / (len(node.bodies) if node.op == "cond" else 1)
        else:
            total += prices.seconds(node, [graph.type_of(o) for o in node.inputs])
    return total
