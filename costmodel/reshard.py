"""Changing the state of a tensor: the cheapest sequence of collectives, a shortest path.

States are the nodes of a graph, single collectives its edges:

    all-gather      drop the minor axes of one dimension
    slice           add an axis as the minor one of a dimension; free
    all-to-all      move the minor axis of one dimension to another one
    all-reduce      finish partial axes
    reduce-scatter  finish partial axes and split a dimension by them
    collective-permute    reorder the axes of one dimension
    mask            read a whole value as a partial sum: all but the first device put zero; free

so that a path is never dearer than gather-then-slice, which is one of the paths.

What puts its operand or result in another order takes that time too (`turning.py`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ir import IRError, Mesh, ReshardStep, Shape, Sharding, StepKind, TensorType
from profiles import CollectiveKind

from .cluster import Cluster
from .collectives import CollectiveModel, Group, group_for
from .turning import Turning, turned

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Shares = dict[
    tuple[CollectiveKind | None, tuple[str, ...]], tuple[Indices, Indices, Floats, Floats]
]
Dims = tuple[tuple[str, ...], ...]


FREE = ("slice", "mask")  # no communication
REDUCING = ("all-reduce", "mask", "reduce-scatter")


class _Move(NamedTuple):
    """A step without its ends: the collective, and the dimensions and partial axes after it."""

    kind: StepKind
    axes: tuple[str, ...]
    dim: int
    to_dim: int
    dims: Dims
    partial: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Space:
    """States of one kind of tensor and the moves between them, without prices."""

    states: tuple[Sharding, ...]
    index: dict[Sharding, int]
    # (collective, axes) -> from, to, and per byte of the tensor the bytes that it is measured by
    # and those put in another order
    moves: Shares
    leaving: dict[int, tuple[tuple[int, ReshardStep], ...]]  # from -> (to, step), filled on demand
    share: Floats  # of the tensor that a device holds in each state


_Spaces = dict[tuple[int, str], _Space]
_Matrices = dict[tuple[int, str, int], Floats]
_Forms = dict[Shape, int]
_Numbers = dict[tuple[tuple[bool, ...], ...], int]
_Prices = dict[tuple[CollectiveKind, tuple[str, ...], float, float], float]
_Paths = dict[tuple[TensorType, Sharding, Sharding], tuple[ReshardStep, ...]]


@dataclass
class ReshardModel:
    """Prices of all state changes on one mesh of one cluster, remembered per tensor type.

    room_bytes: no path passes a state that needs more on a device.
    """

    cluster: Cluster
    mesh: Mesh
    collectives: CollectiveModel
    room_bytes: float = float("inf")
    _groups: dict[tuple[str, ...], Group] = field(default_factory=dict[tuple[str, ...], Group])
    _spaces: _Spaces = field(default_factory=_Spaces)
    _matrices: _Matrices = field(default_factory=_Matrices)
    _prices: _Prices = field(default_factory=_Prices)
    _paths: _Paths = field(default_factory=_Paths)
    _forms: _Forms = field(default_factory=_Forms)
    _numbers: _Numbers = field(default_factory=_Numbers)

    def with_room(self, room_bytes: float) -> ReshardModel:
        """The model with another cap on transient buffers; tables independent of it are shared."""
        return replace(self, room_bytes=room_bytes, _matrices=_Matrices(), _paths=_Paths())

    def group(self, axes: tuple[str, ...]) -> Group:
        """The devices that a collective over these axes joins."""
        if axes not in self._groups:
            positions = tuple(sorted(self.mesh.names.index(axis) for axis in axes))
            self._groups[axes] = group_for(self.cluster, self.mesh.sizes, positions)
        return self._groups[axes]

    def space(self, shape: Shape, reduction: str = "sum") -> _Space:
        """All states a tensor of this shape can have on the way between two shardings."""
        key = (self.form(shape), reduction)
        if key not in self._spaces:
            self._spaces[key] = _build_space(
                shape, self.mesh, reduction, turns=self._turning.measured
            )
        return self._spaces[key]

    def form(self, shape: Shape) -> int:
        """Bits of a shape that matter on this mesh: which axes divide which dimension."""
        if shape not in self._forms:
            ways = sorted({self.mesh.product(c) for c in _subsets(self.mesh.names)})
            form = tuple(tuple(size > 0 and size % w == 0 for w in ways) for size in shape)
            if self._turning.measured:  # which dimensions have one element on each device
                form += tuple(tuple(size == w for w in (1, *ways)) for size in shape)
            self._forms[shape] = self._numbers.setdefault(form, len(self._numbers))
        return self._forms[shape]

    def matrix(self, type_: TensorType, reduction: str = "sum") -> Floats:
        """Seconds from every state to every state, in the order of `space(shape).states`."""
        key = (self.form(type_.shape), reduction, type_.nbytes)
        if key not in self._matrices:
            space = self.space(type_.shape, reduction)
            table = np.full((len(space.states),) * 2, np.inf)
            np.fill_diagonal(table, 0.0)
            for (kind, axes), (start, end, share, order) in space.moves.items():
                seconds = (
                    np.zeros(len(share))
                    if kind is None
                    else self.collectives.seconds(kind, self.group(axes), share * type_.nbytes)
                    + self._turning.seconds(order * type_.nbytes)
                )
                np.minimum.at(table, (start, end), seconds)
            large = space.share * type_.nbytes > self.room_bytes
            table[large], table[:, large] = np.inf, np.inf
            np.fill_diagonal(table, 0.0)
            self._matrices[key] = _shortest(table)
        return self._matrices[key]

    def step_s(self, step: ReshardStep, type_: TensorType) -> float:
        """Seconds of one step on a tensor of this type; slice and mask are free."""
        return self._price(step, type_)

    @cached_property
    def _turning(self) -> Turning:
        return Turning(self.cluster)

    def path(self, type_: TensorType, start: Sharding, end: Sharding) -> tuple[ReshardStep, ...]:
        """The cheapest steps from one state to another; fewest steps among equals.

        Raises:
            IRError: if there is no way, for instance into a partial state.
        """
        if start == end:
            return ()
        key = (type_, start, end)
        if key not in self._paths:
            self._paths[key] = self._search(type_, start, end)
        return self._paths[key]

    def _search(self, type_: TensorType, start: Sharding, end: Sharding) -> tuple[ReshardStep, ...]:
        space = self.space(type_.shape, reduction_of(start))
        if start not in space.index or end not in space.index:
            raise IRError(f"{type_} has no path from {start} to {end} on the mesh {self.mesh}")
        goal = space.index[end]
        # A* with the exact remaining distance: only states on a cheapest path are visited
        left = self.matrix(type_, reduction_of(start))[:, goal]
        order = itertools.count()
        heap: list[tuple[float, int, int, int, float, tuple[ReshardStep, ...]]] = [
            (left[space.index[start]], 0, next(order), space.index[start], 0.0, ())
        ]
        done: set[int] = set()
        while heap:
            _, count, _, here, seconds, steps = heapq.heappop(heap)
            if here == goal:
                return steps
            if here in done:
                continue
            done.add(here)
            for j, step in self._leaving(space, here, reduction_of(start)):
                if j not in done and np.isfinite(left[j]):
                    price = seconds + self._price(step, type_)
                    rank = round(price + left[j], 12)  # equal sums in another order are equal
                    heapq.heappush(heap, (rank, count + 1, next(order), j, price, (*steps, step)))
        raise IRError(f"{type_} cannot go from {start} to {end}")

    def steps(self, shape: Shape, reduction: str = "sum") -> Iterator[tuple[int, int, ReshardStep]]:
        """Every single step between states of a tensor: (from, to, step)."""
        space = self.space(shape, reduction)
        for here in range(len(space.states)):
            yield from ((here, j, step) for j, step in self._leaving(space, here, reduction))

    def _leaving(
        self, space: _Space, here: int, reduction: str
    ) -> tuple[tuple[int, ReshardStep], ...]:
        if here not in space.leaving:
            state = space.states[here]
            partial = tuple(axis for axis, _ in state.partial)
            found: list[tuple[int, ReshardStep]] = []
            for move in _moves(state.dims, partial, self.mesh.names, reduction):
                after = Sharding(move.dims, tuple((axis, reduction) for axis in move.partial))
                if after in space.index:
                    kind = reduction if move.kind in REDUCING else ""
                    step = ReshardStep(
                        move.kind, move.axes, move.dim, move.to_dim, kind, state, after
                    )
                    found.append((space.index[after], step))
            space.leaving[here] = tuple(found)
        return space.leaving[here]

    def _price(self, step: ReshardStep, type_: TensorType) -> float:
        kind = step.collective
        if kind is None:
            return 0.0
        ends = step.dim, step.to_dim, step.before.dims, step.after.dims
        order = turned(type_.shape, self.mesh, *ends) * type_.nbytes
        key = (kind, step.axes, _share(step, self.mesh) * type_.nbytes, order)
        if key not in self._prices:
            sent_s = float(self.collectives.seconds(kind, self.group(key[1]), key[2]))
            self._prices[key] = sent_s + float(self._turning.seconds(np.asarray(order)))
        return self._prices[key]


def reduction_of(state: Sharding) -> str:
    """The reduction that a state waits for; sum where it waits for none."""
    return state.partial[0][1] if state.partial else "sum"


def full_bytes(step: ReshardStep, type_: TensorType, mesh: Mesh) -> float:
    """Bytes by which a collective is measured: the whole tensor of its group.

    For an all-gather its output, for a reduce-scatter its input, else the local operand.
    """
    return _share(step, mesh) * type_.nbytes


def _share(step: ReshardStep, mesh: Mesh) -> float:
    before = 1.0 / mesh.product(step.before.axes)
    return before * mesh.product(step.axes) if step.kind == "all-gather" else before


def _subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(names) + 1):
        yield from itertools.combinations(names, count)


def sharded_dims(shape: Shape, mesh: Mesh, *, ordered: bool = True) -> Iterator[Dims]:
    """Every way to split the dimensions of a shape evenly over some of the axes of size 2 and up.

    Args:
        shape: sizes of the dimensions.
        mesh: the axes.
        ordered: keep the axes of one dimension in mesh order; otherwise in every order.
    """
    rank = len(shape)
    choices = [range(-1, rank) if size > 1 else (-1,) for size in mesh.sizes]
    for places in itertools.product(*choices):
        dims: list[tuple[str, ...]] = [()] * rank
        for axis, place in zip(mesh.names, places, strict=True):
            if place >= 0:
                dims[place] = (*dims[place], axis)
        if any(
            axes and (size == 0 or size % mesh.product(axes))
            for size, axes in zip(shape, dims, strict=True)
        ):
            continue
        if ordered:
            yield tuple(dims)
        else:
            yield from itertools.product(*(tuple(itertools.permutations(d)) for d in dims))


def _shortest(direct: Floats) -> Floats:
    """Lengths of the shortest paths, by those into each node until none becomes shorter.

    A node has few ways in, so that this is faster than the Floyd-Warshall algorithm.

    Args:
        direct: [n, n], lengths of edges, zero from a node to itself, inf where there is none.

    Source: Bellman, On a routing problem, Quarterly of Applied Mathematics 16, 1958.
    """
    into = direct.T.copy()  # [to, from], so far
    sources = [np.flatnonzero(np.isfinite(row)) for row in into]
    edges = [row[before, None] for row, before in zip(into, sources, strict=True)]
    # sets of nodes as the bits of a number
    watched = [sum(1 << int(other) for other in before) for before in sources]
    changed = (1 << len(into)) - 1
    while changed:
        ahead, changed = changed, 0
        for node, before in enumerate(sources):
            if watched[node] & (ahead | changed):
                paths = into[before]
                paths += edges[node]
                shorter = np.minimum.reduce(paths)
                if np.count_nonzero(shorter < into[node]):
                    changed |= 1 << node
                    into[node] = shorter
    return np.ascontiguousarray(into.T)


def _build_space(shape: Shape, mesh: Mesh, reduction: str, *, turns: bool) -> _Space:
    held: dict[tuple[Dims, tuple[str, ...]], int] = {}
    for dims in sharded_dims(shape, mesh, ordered=False):
        used = {axis for axes in dims for axis in axes}
        free = tuple(axis for axis in mesh.names if axis not in used)
        for partial in ((), *_subsets(free)):
            held[dims, partial] = len(held)
    states = tuple(
        Sharding(dims, tuple((axis, reduction) for axis in partial)) for dims, partial in held
    )
    share = [1.0 / math.prod(mesh.size(axis) for axes in dims for axis in axes) for dims, _ in held]
    rows: dict[
        tuple[CollectiveKind | None, tuple[str, ...]], list[tuple[int, int, float, float]]
    ] = {}
    for (dims, partial), i in held.items():
        for move in _moves(dims, partial, mesh.names, reduction):
            j = held.get((move.dims, move.partial))
            if j is not None:
                gathered = move.kind == "all-gather"
                sent = share[i] * (mesh.product(move.axes) if gathered else 1.0)
                order = 0.0
                if turns and move.kind not in FREE:
                    order = turned(shape, mesh, move.dim, move.to_dim, dims, move.dims)
                kind = None if move.kind == "slice" or move.kind == "mask" else move.kind
                rows.setdefault((kind, move.axes), []).append((i, j, sent, order))
    moves = {
        key: (
            np.array([r[0] for r in found], dtype=np.intp),
            np.array([r[1] for r in found], dtype=np.intp),
            np.array([r[2] for r in found]),
            np.array([r[3] for r in found]),
        )
        for key, found in rows.items()
    }
    index = {state: i for i, state in enumerate(states)}
    return _Space(states, index, moves, {}, np.array(share))


def _moves(
    dims: Dims, partial: tuple[str, ...], names: tuple[str, ...], reduction: str
) -> Iterator[_Move]:
    """Single moves out of a state, among them some into states that the tensor cannot have."""
    yield from _gathers(dims, partial)
    yield from _orders(dims, partial)
    used = {*partial, *(axis for axes in dims for axis in axes)}
    for axis in names:
        if axis in used:
            continue
        for d, axes in enumerate(dims):
            yield _Move("slice", (axis,), -1, d, _with(dims, d, (*axes, axis)), partial)
        if reduction == "sum":
            masked = tuple(name for name in names if name == axis or name in partial)
            yield _Move("mask", (axis,), -1, -1, dims, masked)
    yield from _reductions(dims, partial, reduction)


def _gathers(dims: Dims, partial: tuple[str, ...]) -> Iterator[_Move]:
    """Minor axes that leave a dimension, for nowhere or for another dimension."""
    for d, axes in enumerate(dims):
        for keep in range(len(axes)):
            lost = axes[keep:]
            gathered = _with(dims, d, axes[:keep])
            yield _Move("all-gather", lost, d, -1, gathered, partial)
            for e in range(len(dims)):
                if e != d:
                    moved = _with(gathered, e, (*dims[e], *lost))
                    yield _Move("all-to-all", lost, d, e, moved, partial)


def _orders(dims: Dims, partial: tuple[str, ...]) -> Iterator[_Move]:
    for d, axes in enumerate(dims):
        for order in itertools.permutations(axes):
            if order != axes:
                yield _Move("collective-permute", axes, d, d, _with(dims, d, order), partial)


def _reductions(dims: Dims, partial: tuple[str, ...], reduction: str) -> Iterator[_Move]:
    for axes in _subsets(partial):
        rest = tuple(axis for axis in partial if axis not in axes)
        yield _Move("all-reduce", axes, -1, -1, dims, rest)
        if reduction == "sum":
            for d, have in enumerate(dims):
                yield _Move("reduce-scatter", axes, -1, d, _with(dims, d, (*have, *axes)), rest)


def _with(dims: Dims, position: int, axes: tuple[str, ...]) -> Dims:
    return (*dims[:position], axes, *dims[position + 1 :])
