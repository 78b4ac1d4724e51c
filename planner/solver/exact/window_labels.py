"""The best choice of a small problem with windows of overlap, by elimination with labels.

The cost A(x) + sum_w max(0, E_w(x)), E_w being what window w has to hide less its work, is no sum
over options, so that a removed node leaves no table of best options (`bucket_elimination.py`).
It leaves, for each choice of its neighbours, labels (A, E_1, ..., E_k) of the choices of what was
removed so far. A label goes

    if another one replaces it whatever the rest is: A' - A + sum_w max(0, E'_w - E_w) <= 0,
    if A + sum_w m_w E_w plus the least that the rest costs at the multipliers m is no better than
    the cutoff, for one of several m.

That least is exact: elimination at m, from the leaves to the root and back. With the gap of
multipliers below a hundredth and the same few ways to fill a window in every layer, a cell keeps a
handful of labels: at most 19 in the programmes of a two-layer Llama, of 350 to 900 options.

Source: Aggarwal, Aneja and Nair, Minimal spanning tree subject to a side constraint, Computers and
Operations Research 9, 1982 (pruning by multipliers); Dechter, Bucket elimination, Artificial
Intelligence 113, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.stop import Stop
from ..arrays import Flat, Ints, ranges
from ..problem import Floats
from .bucket_elimination import order
from .ilp import Exact

# Cells of the table of one node and of all; labels of a node, and pairs of labels that are compared
# at once and in all. Problems with more are left to the 0/1 programme. Those of a two-layer Llama
# have at most 7,000 pairs.
MOST_ENTRIES, MOST_CELLS = 20_000, 400_000
MOST_LABELS, MOST_PAIRS, ALL_PAIRS = 100_000, 500_000, 5_000_000
# Of the cutoff, and of the largest sum: a bound that is above the cutoff by less is not.
ROUNDING, SUMMED = 1e-9, 1e-13
FEW = 64  # labels that are not compared before the last table is added


class _TooManyError(Exception):
    """More labels than the limits allow."""


@dataclass(slots=True)
class _Bucket:
    """A node, and the nodes that are its neighbours when it is removed.

    node: -1 of the root, whose children are what has no neighbours.
    scope: the neighbours.
    shape: options of these, then of the node: a cell for each joint choice.
    own: [cells, 1 + k], costs and excess of the node and of its edges with the neighbours.
    children: buckets whose labels are added, and their cell of each cell here.
    joint: [cells, m], the least at each multiplier of all that is removed up to here.
    least: [cells of the neighbours, m].
    rest: the same of all that is removed later.
    labels, begin: those of each choice of the neighbours, one after the other.
    option: of the node, for each label.
    made_of: the label of each child, for each label.
    """

    node: int
    scope: tuple[int, ...]
    shape: tuple[int, ...]
    own: Floats
    children: list[tuple[_Bucket, Ints]] = field(default_factory=list["tuple[_Bucket, Ints]"])
    joint: Floats = field(default_factory=lambda: np.zeros(0))
    least: Floats = field(default_factory=lambda: np.zeros(0))
    rest: Floats = field(default_factory=lambda: np.zeros(0))
    labels: Floats = field(default_factory=lambda: np.zeros(0))
    begin: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    option: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    made_of: list[Ints] = field(default_factory=list[Ints])


def best_of_labels(
    flat: Flat, excess: Sequence[Flat], cutoff: float, multipliers: Sequence[float]
) -> Exact | None:
    """The best choice below a cutoff; None if the problem has memory limits or is too wide.

    Args:
        flat: the problem.
        excess: for each window, hidden seconds less those of work as the cost of a problem with the
            same nodes, options and edges [s].
        cutoff: cost below which choices are wanted [s]; `INFEASIBLE` if there are none.
        multipliers: of the windows, at which the bound is high.
    """
    if len(flat.limit) or not flat.size or not np.isfinite(flat.constant):
        return None
    buckets = _buckets(flat, excess)
    if buckets is None:
        return None
    several = _several(multipliers)
    _bound(buckets, several)
    most = max(float(np.abs(b.joint[np.isfinite(b.joint)]).max(initial=0.0)) for b in buckets)
    labelling = _Labelling(several, cutoff + max(ROUNDING * abs(cutoff), SUMMED * most))
    try:
        for bucket in buckets:
            labelling.label(bucket)
    except _TooManyError:
        return None
    work = float(sum(b.own.size + b.labels.size for b in buckets) + labelling.pairs)
    root = buckets[-1]
    cost = root.labels[:, 0] + np.maximum(root.labels[:, 1:], 0.0).sum(axis=1)
    best = int(cost.argmin()) if len(cost) else -1
    if best < 0 or cost[best] >= cutoff:
        return Exact(None, cutoff, Stop.INFEASIBLE, work)
    return Exact(_read(root, best, flat.size), float(cost[best]), Stop.OPTIMAL, work)


def _several(multipliers: Sequence[float]) -> Floats:
    """[1 + k, m]: given multipliers, and those with one smaller or larger; 1 of the costs."""
    rows = [[1.0, *multipliers]]
    for w, each in enumerate(multipliers):
        for other in (each / 2, min(1.0, 1.5 * each + 0.05)):
            rows.append([1.0, *multipliers[:w], other, *multipliers[w + 1 :]])
    return np.array(rows).T


def _buckets(flat: Flat, excess: Sequence[Flat]) -> list[_Bucket] | None:
    """A bucket for each node, in the order of removal, and the root; None if they are too large."""
    sizes, count = flat.sizes.tolist(), flat.size
    joined: dict[int, set[int]] = {v: set() for v in range(count)}
    edges = [tuple(pair) for pair in flat.ends.tolist()]
    for u, v in edges:
        joined[u].add(v)
        joined[v].add(u)
    nodes = order(sizes, joined, MOST_ENTRIES)
    if len(nodes) < count:
        return None
    place = {v: n for n, v in enumerate(nodes)}
    mine: dict[int, list[int]] = {v: [] for v in nodes}
    for e, (u, v) in enumerate(edges):
        mine[u if place[u] < place[v] else v].append(e)
    problems, cells = (flat, *excess), 0
    found, of = list[_Bucket](), dict[int, list[_Bucket]]()
    for v in nodes:
        around = joined.pop(v)
        for w in around:
            joined[w] |= around
            joined[w] -= {v, w}
        scope = tuple(sorted(around))
        shape = (*(sizes[w] for w in scope), sizes[v])
        cells += math.prod(shape)
        if cells > MOST_CELLS:
            return None
        begin, end = int(flat.first[v]), int(flat.first[v + 1])
        own = np.zeros((*shape, len(problems)))
        own += np.stack([p.cost[begin:end] for p in problems], axis=-1)
        for e in mine[v]:
            own += _spread(problems, e, edges[e], v, scope, sizes)
        bucket = _Bucket(v, scope, shape, own.reshape(-1, len(problems)))
        bucket.children = [(c, _cells(c, bucket)) for c in of.pop(v, ())]
        found.append(bucket)
        of.setdefault(min(scope, key=place.__getitem__, default=-1), []).append(bucket)
    root = _Bucket(-1, (), (1,), np.array([[p.constant for p in problems]]))
    root.children = [(c, _cells(c, root)) for c in of.pop(-1)]
    return [*found, root]


def _spread(
    problems: Sequence[Flat], edge: int, ends: tuple[int, ...], node: int,
    scope: tuple[int, ...], sizes: Sequence[int],
) -> Floats:  # fmt: skip
    """Costs and excess of an edge over the cells of the node that is removed first."""
    u, v = ends
    wide = sizes[u] * sizes[v]
    tables = [p.pool[(at := int(p.table[edge])) : at + wide] for p in problems]
    table = np.stack(tables, axis=-1).reshape(sizes[u], sizes[v], len(problems))
    if node == u:
        table = table.swapaxes(0, 1)
    shape = [1] * len(scope)
    shape[scope.index(u + v - node)] = table.shape[0]
    return table.reshape(*shape, sizes[node], len(problems))


def _cells(child: _Bucket, parent: _Bucket) -> Ints:
    """The cell of a child's neighbours of each cell of its parent."""
    found, stride = np.zeros(parent.shape, dtype=np.int64), 1
    axes = (*parent.scope, parent.node)
    for w, size in reversed([*zip(child.scope, child.shape, strict=False)]):
        shape = [1] * len(axes)
        shape[axes.index(w)] = size
        found += (stride * np.arange(size)).reshape(shape)
        stride *= size
    return found.ravel()


def _bound(buckets: Sequence[_Bucket], several: Floats) -> None:
    """The least of what is removed earlier and later, at each multiplier."""
    count = several.shape[1]
    for bucket in buckets:
        bucket.joint = bucket.own @ several
        for child, cells in bucket.children:
            bucket.joint += child.least[cells]
        bucket.least = bucket.joint.reshape(-1, bucket.shape[-1], count).min(axis=1)
    buckets[-1].rest = np.zeros((1, count))
    for bucket in reversed(buckets):
        total = bucket.joint + np.repeat(bucket.rest, bucket.shape[-1], axis=0)
        table = total.reshape(*bucket.shape, count)
        axes = (*bucket.scope, bucket.node)
        for child, _ in bucket.children:
            away = tuple(n for n, w in enumerate(axes) if w not in child.scope)
            left = [w for w in axes if w in child.scope]
            least = table.min(axis=away)
            turned = least.transpose(*[left.index(w) for w in child.scope], len(left))
            found = turned.reshape(child.least.shape)
            known = np.isfinite(found) & np.isfinite(child.least)
            child.rest = np.where(known, found - np.where(known, child.least, 0.0), np.inf)


@dataclass(slots=True)
class _Labelling:
    """Labels of one bucket after another, below a limit [s]; pairs: those compared so far."""

    several: Floats
    limit: float
    pairs: int = 0

    def label(self, bucket: _Bucket) -> None:
        """The labels of a bucket, once its children have theirs."""
        size = bucket.shape[-1]
        rest = np.repeat(bucket.rest, size, axis=0)
        rests = [rest]
        for child, cells in reversed(bucket.children):
            rests.append(rest := rest + child.least[cells])
        at = np.flatnonzero(np.isfinite(bucket.own[:, 0]))
        labels, made_of = bucket.own[at], list[Ints]()

        def keep(held: np.ndarray) -> None:
            nonlocal at, labels, made_of
            at, labels, made_of = at[held], labels[held], [each[held] for each in made_of]

        keep(self._cheap(labels, rests.pop()[at]))
        for child, cells in bucket.children:
            counts = np.diff(child.begin)[cells[at]]
            if int(counts.sum()) > MOST_LABELS:
                raise _TooManyError
            added = ranges(child.begin[cells[at]], counts)
            made_of = [*(np.repeat(each, counts) for each in made_of), added]
            labels = np.repeat(labels, counts, axis=0) + child.labels[added]
            at = np.repeat(at, counts)
            keep(self._cheap(labels, rests.pop()[at]))
            if len(at) > FEW:
                keep(self._undominated(labels, at))
        keep(self._undominated(labels, at // size))
        keep(np.argsort(at // size, kind="stable"))
        bucket.labels, bucket.option, bucket.made_of = labels, at % size, made_of
        counts = np.bincount(at // size, minlength=len(bucket.rest))
        bucket.begin = np.concatenate(([0], np.cumsum(counts)))

    def _cheap(self, labels: Floats, rest: Floats) -> np.ndarray:
        """Mask of the labels that may be part of a choice below the limit."""
        return (labels @ self.several + rest).max(axis=1) < self.limit

    def _undominated(self, labels: Floats, group: Ints) -> np.ndarray:
        """Mask of the labels that no other one of their group replaces; of equal ones the first."""
        held = np.ones(len(group), dtype=np.bool_)
        by = np.lexsort((labels[:, 0], group))
        ends = np.searchsorted(group[by], group[by], side="right")
        after = ends - np.arange(len(by)) - 1  # of each label in its group
        pairs = int(after.sum())
        self.pairs += pairs
        if pairs > MOST_PAIRS or self.pairs > ALL_PAIRS:
            raise _TooManyError
        first = np.repeat(by, after)
        second = by[ranges(np.arange(len(by)) + 1, after)]
        change = labels[first] - labels[second]
        replaces = change[:, 0] + np.maximum(change[:, 1:], 0.0).sum(axis=1) <= 0.0
        held[second[replaces]] = False
        return held


def _read(root: _Bucket, label: int, count: int) -> Ints:
    """The choice of a label of the root."""
    choice = np.zeros(count, dtype=np.int64)
    left = [(root, label)]
    while left:
        bucket, n = left.pop()
        if bucket.node >= 0:
            choice[bucket.node] = bucket.option[n]
        parts = zip(bucket.children, bucket.made_of, strict=True)
        left.extend((child, int(which[n])) for (child, _), which in parts)
    return choice
