"""Longest paths of a graph, level by level.

The level of a node is the largest number of edges on a path to it. All nodes of a level are
computed at once, so that the time grows with the depth of the schedule, hardly with its width.
Levels do not depend on durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from .dependencies import Floats
from .event_graph import Graph
from .task_rows import Ints


@final
@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Nodes by level, and their incoming edges in the same order.

    nodes: all nodes, level after level; those of level 0 wait for nothing.
    node_at: first node of each level, and the end.
    before, share: edges, grouped by the node that they lead to, in the order of `nodes`.
    edge_at: first edge of each level, and the end.
    offset: first edge of each node, counted from the first edge of its level.
    """

    nodes: Ints
    node_at: Ints
    before: Ints
    share: Floats
    edge_at: Ints
    offset: Ints


def levels_of(graph: Graph) -> tuple[Levels, Ints]:
    """Levels, and the nodes on or behind cycles, which have none."""
    waits = np.bincount(graph.after, minlength=graph.size)
    order = np.argsort(graph.before, kind="stable")
    nexts = graph.after[order]
    starts = np.concatenate(([0], np.cumsum(np.bincount(graph.before, minlength=graph.size))))
    ready = np.flatnonzero(waits == 0)
    found: list[Ints] = []
    while len(ready):
        found.append(ready)
        reached = nexts[_ranges(starts[ready], starts[ready + 1])]
        np.subtract.at(waits, reached, 1)
        ready = np.unique(reached[waits[reached] == 0])
    nodes = np.concatenate(found) if found else np.empty(0, np.int64)
    stuck = np.flatnonzero(waits > 0)
    node_at = np.cumsum([0, *(len(level) for level in found)])
    return _levels(graph, nodes, node_at), stuck


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """All numbers from each start to its end, one range after another."""
    sizes = ends - starts
    ahead = np.cumsum(sizes)
    total = int(ahead[-1]) if len(ahead) else 0
    return np.arange(total) + np.repeat(starts - (ahead - sizes), sizes)


def _levels(graph: Graph, nodes: Ints, node_at: NDArray[np.int64]) -> Levels:
    place = np.full(graph.size, len(nodes), np.int64)
    place[nodes] = np.arange(len(nodes))
    order = np.argsort(place[graph.after], kind="stable")
    order = order[: int(np.count_nonzero(place[graph.after] < len(nodes)))]
    count = np.bincount(place[graph.after[order]], minlength=len(nodes))
    first = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    edge_at = first[node_at]
    level = np.repeat(np.arange(len(node_at) - 1), np.diff(node_at))
    offset = first[:-1] - edge_at[level]
    return Levels(nodes, node_at, graph.before[order], graph.share[order], edge_at, offset)


def longest(levels: Levels, duration_s: Floats) -> Floats:
    """Earliest start of every node [s].

    Args:
        levels: of the graph.
        duration_s: of every node; shape [nodes], or [nodes, cases] to do several at once.
    """
    start = np.zeros(duration_s.shape)
    share = levels.share.reshape(-1, *(1,) * (duration_s.ndim - 1))
    lag = duration_s[levels.before] * share
    nodes, before, offset = levels.nodes, levels.before, levels.offset
    node_at, edge_at = levels.node_at.tolist(), levels.edge_at.tolist()
    for level in range(1, len(node_at) - 1):
        a, b = edge_at[level], edge_at[level + 1]
        i, j = node_at[level], node_at[level + 1]
        ends = start[before[a:b]] + lag[a:b]
        start[nodes[i:j]] = np.maximum.reduceat(ends, offset[i:j], axis=0)
    return start


def longest_path(levels: Levels, duration_s: Floats) -> tuple[Floats, Floats]:
    """The latest end of each of several cases [s], and how often each node is on the way to it.

    Args:
        levels: of the graph.
        duration_s: of every node in every case, [node, case].

    Returns:
        The ends, [case], and the share of each node's duration on one longest path, [node, case].
    """
    count = int(duration_s.shape[1])
    start_s, last = np.zeros(duration_s.shape), np.full(duration_s.shape, -1)
    node_at, edge_at = levels.node_at.tolist(), levels.edge_at.tolist()
    for level in range(1, len(node_at) - 1):
        a, b = edge_at[level], edge_at[level + 1]
        i, j = node_at[level], node_at[level + 1]
        before, offset = levels.before[a:b], levels.offset[i:j]
        ends = start_s[before] + duration_s[before] * levels.share[a:b, None]
        latest = np.maximum.reduceat(ends, offset, axis=0)
        is_latest = ends == np.repeat(latest, np.diff(np.append(offset, b - a)), axis=0)
        numbers: Ints = np.array(range(a, b), dtype=np.int64)
        edges = np.where(is_latest, numbers[:, None], -1)
        start_s[levels.nodes[i:j]] = latest
        last[levels.nodes[i:j]] = np.maximum.reduceat(edges, offset, axis=0)
    ends = start_s + duration_s
    found = np.zeros(duration_s.shape)
    cases: Ints = np.array(range(count), dtype=np.int64)
    node, share = ends.argmax(axis=0), np.ones(count)
    while cases.size:
        found[node, cases] = share
        edge = last[node, cases]
        cases, edge = cases[edge >= 0], edge[edge >= 0]
        node, share = levels.before[edge], levels.share[edge]
    return ends.max(axis=0, initial=0.0), found
