"""Merges layers of graphs that are too long or too branchy to search as they are.

An edge is contracted where it is the only way out of one end or into the other, which cannot make a
cycle; the pair with the least time goes first. A plan for the merged graph is a plan for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .downset_lattice import lattice_size
from .graph import Edge, Layer, LayerGraph, Variant
from .recompute import choices


def coarsened(
    graphs: Mapping[str, LayerGraph], *, most_layers: int, most_sets: int
) -> tuple[dict[str, LayerGraph], tuple[tuple[int, ...], ...]]:
    """Graphs with at most so many layers and suffix sets.

    Args:
        graphs: by device kind, of one structure.
        most_layers: layers to keep.
        most_sets: suffix sets to keep.

    Returns:
        The graphs, and the layers of the old graph that each new layer stands for.
    """
    first = next(iter(graphs.values()))
    groups: list[tuple[int, ...]] = [(v,) for v in range(len(first.layers))]
    current = dict(graphs)
    while len(groups) > 2:
        graph = next(iter(current.values()))
        few = len(groups) <= most_layers and lattice_size(graph, most_sets) <= most_sets
        pair = None if few else _cheapest(graph)
        if pair is None:
            break
        current = {kind: _merged(g, *pair) for kind, g in current.items()}
        u, v = pair
        joined = tuple(sorted(groups[u] + groups[v]))
        order = _order(len(groups), graph, u, v)
        groups = [joined if old == v else groups[old] for old in order]
    return current, tuple(groups)


def _cheapest(graph: LayerGraph) -> tuple[int, int] | None:
    leaving = [0] * len(graph.layers)
    entering = [0] * len(graph.layers)
    for edge in graph.edges:
        leaving[edge.source] += 1
        entering[edge.target] += 1
    degree = graph.degrees()[0]
    seconds = [layer.at(degree)[0].seconds for layer in graph.layers]
    able = [
        (seconds[e.source] + seconds[e.target], e.source, e.target)
        for e in graph.edges
        if leaving[e.source] == 1 or entering[e.target] == 1
    ]
    return min(able)[1:] if able else None


def _order(count: int, graph: LayerGraph, u: int, v: int) -> list[int]:
    """Old indices in a topological order with u merged into v."""
    rank = {x: x for x in range(count)}
    edges = {
        (v if e.source == u else e.source, v if e.target == u else e.target) for e in graph.edges
    }
    waiting = {x: {a for a, b in edges if b == x and a != x} for x in rank if x != u}
    order: list[int] = []
    while waiting:
        ready = min(x for x, before in waiting.items() if not before)
        order.append(ready)
        del waiting[ready]
        for before in waiting.values():
            before.discard(ready)
    return order


def _merged(graph: LayerGraph, u: int, v: int) -> LayerGraph:
    order = _order(len(graph.layers), graph, u, v)
    place = {old: new for new, old in enumerate(order)} | {u: order.index(v)}
    layers = [
        _both(graph.layers[u], graph.layers[v]) if old == v else graph.layers[old] for old in order
    ]
    found: dict[tuple[int, int], Edge] = {}
    for edge in graph.edges:
        ends = (place[edge.source], place[edge.target])
        if ends[0] == ends[1]:
            continue
        known = found.get(ends)
        size = edge.size_bytes + (known.size_bytes if known else 0.0)
        into = _sum(edge.into_bytes, known.into_bytes if known else ())
        out = _sum(edge.out_bytes, known.out_bytes if known else ())
        found[ends] = Edge(*ends, size, into, out)
    edges = tuple(found[ends] for ends in sorted(found))
    return replace(graph, layers=tuple(layers), edges=edges)


def _sum(
    a: tuple[tuple[int, float], ...], b: tuple[tuple[int, float], ...]
) -> tuple[tuple[int, float], ...]:
    x, y = dict(a), dict(b)
    return tuple((d, x.get(d, 0.0) + y.get(d, 0.0)) for d in sorted(x | y))


def _both(a: Layer, b: Layer) -> Layer:
    degrees = [d for d, found in a.variants if found and b.at(d)]
    variants = tuple((d, _pairs(a.at(d), b.at(d))) for d in degrees)
    return Layer(f"{a.name} + {b.name}"[:80], variants)


def _pairs(a: tuple[Variant, ...], b: tuple[Variant, ...]) -> tuple[Variant, ...]:
    x, y = choices(a), choices(b)
    return tuple(
        Variant(
            kind,
            x[kind].forward_s + y[kind].forward_s,
            x[kind].backward_s + y[kind].backward_s,
            x[kind].parameter_bytes + y[kind].parameter_bytes,
            x[kind].flight_bytes + y[kind].flight_bytes,
            x[kind].fixed_bytes + y[kind].fixed_bytes,
        )
        for kind in x
        if kind in y
    )
