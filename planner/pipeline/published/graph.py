"""`LayerGraph`: measured layers, the ways each may run, and the bytes between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import cast

import networkx as nx

from ...common.errors import PlanError

RECOMPUTE = ("none", "full")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a layer: per device of a tensor-parallel group, for the profile's batch.

    recompute: `none`, or `full` where the layer keeps its inputs only and runs forward again.
    forward_s, backward_s: compute, tensor-parallel collectives and recomputation included.
    parameter_bytes: weights whose gradients data-parallel replicas exchange.
    flight_bytes: held for each micro-batch between its forward and its backward.
    fixed_bytes: held all the time: weights, gradients, optimizer state, workspace.
    """

    recompute: str
    forward_s: float
    backward_s: float
    parameter_bytes: float
    flight_bytes: float
    fixed_bytes: float

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer and its variants by tensor-parallel degree, degrees ascending."""

    name: str
    variants: tuple[tuple[int, tuple[Variant, ...]], ...]

    def at(self, degree: int) -> tuple[Variant, ...]:
        """Variants at a degree; none if it was not measured."""
        return next((found for d, found in self.variants if d == degree), ())


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor between two layers.

    sync_bytes: what the tensor-parallel group of the sender (out) and receiver (into) exchanges on
        top when the tensor leaves the stage, by degree.
    """

    source: int
    target: int
    size_bytes: float
    into_bytes: tuple[tuple[int, float], ...] = ()
    out_bytes: tuple[tuple[int, float], ...] = ()

    def into(self, degree: int) -> float:
        """Bytes of the receiving group."""
        return dict(self.into_bytes).get(degree, 0.0)

    def out(self, degree: int) -> float:
        """Bytes of the sending group."""
        return dict(self.out_bytes).get(degree, 0.0)


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """A profile: layers in topological order, checked.

    batch: samples that the times and bytes are for.
    shared: whether all edges out of a layer carry the same tensor, which a stage sends and receives
        once however many layers read it.

    Raises:
        PlanError: on no layers, cycles, missing ends, duplicate edges, numbers that are negative
            or not finite, degrees without a variant.
    """

    name: str
    format: str
    batch: int
    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    shared: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees at which every layer was measured."""
        first = [degree for degree, found in self.layers[0].variants if found]
        return tuple(d for d in sorted(first) if all(layer.at(d) for layer in self.layers))

    def sources(self, target: int) -> Iterator[Edge]:
        """Edges into a layer."""
        return (edge for edge in self.edges if edge.target == target)


def bad_profile(where: str, message: str, remedy: str = "") -> PlanError:
    """The one error of readers and checks."""
    return PlanError(
        message, kind="bad-profile", where=where, remedy=remedy or "correct or re-measure the file"
    )


def ordered(
    where: str, names: Mapping[str, Layer], edges: Mapping[tuple[str, str], Edge]
) -> tuple[tuple[Layer, ...], tuple[Edge, ...]]:
    """Layers in a topological order, the file's order where that is free, and edges renumbered.

    Args:
        where: the file, for messages.
        names: layers by the file's identifier, in the file's order.
        edges: by (identifier, identifier); the indices inside are ignored.

    Raises:
        PlanError: if an edge names no layer, or edges form a cycle.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    for source, target in edges:
        for end in (source, target):
            if end not in names:
                raise bad_profile(where, f"edge '{source}' to '{target}' names layer '{end}', "
                                  "which the file does not describe")  # fmt: skip
        graph.add_edge(source, target)
    rank = {name: position for position, name in enumerate(names)}
    try:
        order = list(nx.lexicographical_topological_sort(graph, key=rank.__getitem__))
    except nx.NetworkXUnfeasible as error:
        found = cast("list[tuple[str, str]]", nx.find_cycle(graph))  # pyright: ignore[reportUnknownMemberType]
        cycle = [a for a, _ in found]
        raise bad_profile(
            where, f"layers form a cycle: {' -> '.join([*cycle, cycle[0]])}"
        ) from error
    place = {name: position for position, name in enumerate(order)}
    moved = [
        Edge(place[a], place[b], edge.size_bytes, edge.into_bytes, edge.out_bytes)
        for (a, b), edge in edges.items()
    ]
    moved.sort(key=lambda edge: (edge.source, edge.target))
    return tuple(names[name] for name in order), tuple(moved)


def _check(graph: LayerGraph) -> None:
    where = graph.name
    if not graph.layers:
        raise bad_profile(where, "has no layers")
    if graph.batch < 1:
        raise bad_profile(where, f"batch must be at least 1, got {graph.batch}")
    for layer in graph.layers:
        _check_layer(where, layer)
    if not graph.degrees():
        raise bad_profile(where, "no tensor-parallel degree is measured for every layer")
    seen: set[tuple[int, int]] = set()
    for edge in graph.edges:
        ends = (edge.source, edge.target)
        if not 0 <= edge.source < edge.target < len(graph.layers):
            raise bad_profile(where, f"edge {ends} does not lead forward between two layers")
        if ends in seen:
            raise bad_profile(where, f"edge {ends} is given twice")
        seen.add(ends)
        sizes = (edge.size_bytes, *(v for _, v in (*edge.into_bytes, *edge.out_bytes)))
        for value in sizes:
            check_number(where, f"bytes of edge {ends}", value)


def _check_layer(where: str, layer: Layer) -> None:
    if not any(found for _, found in layer.variants):
        raise bad_profile(where, f"layer '{layer.name}' has no measured variant")
    for degree, variants in layer.variants:
        if degree < 1:
            raise bad_profile(where, f"layer '{layer.name}' has degree {degree}, below 1")
        kinds = [variant.recompute for variant in variants]
        if len(set(kinds)) != len(kinds) or not set(kinds) <= set(RECOMPUTE):
            raise bad_profile(
                where,
                f"layer '{layer.name}' has variants {kinds} at degree {degree}; expected each of "
                f"{RECOMPUTE} at most once",
            )
        for variant in variants:
            for item in fields(variant)[1:]:
                value = getattr(variant, item.name)
                check_number(where, f"{item.name} of layer '{layer.name}'", value)


def check_number(where: str, what: str, value: object) -> float:
    """`value` as a float.

    Raises:
        PlanError: if it is no number, negative or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_profile(where, f"{what} is {value!r}, expected a number")
    try:
        number = float(value)
    except OverflowError:  # of a whole number
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise bad_profile(where, f"{what} is {number}, expected a finite number of at least 0")
    return number
