"""Memoised costs of edges: seconds of a reshard between the states of two nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel import reduction_of
from ir import Sharding, TensorType

from .records import MenuCache, States
from .reshard_seconds import Reshards


def reshards(
    cache: MenuCache, rows: States, columns: States, type_: TensorType, weight: float
) -> Reshards:
    """Seconds from every row's state to every column's, times `weight`; inf if there is no path.

    Equal arguments give one object; so do tensors that divide alike on the mesh.
    """
    key = ("edge", cache.reshard.form(type_.shape), type_.nbytes, id(rows), id(columns), weight)
    if key not in cache.edges:
        row_index, kind = _index(cache, rows, type_, None)
        column_index, _ = _index(cache, columns, type_, kind)
        matrix = cache.reshard.matrix(type_, kind)
        cache.edges[key] = Reshards(matrix, weight, row_index, column_index)
        cache.columns[("keep", id(rows))] = rows
        cache.columns[("keep", id(columns))] = columns
    return cache.edges[key]


def by_state(states: States) -> dict[Sharding, list[int]]:
    """Options of a node by the state that they have."""
    found = dict[Sharding, list[int]]()
    for k, state in enumerate(states):
        found.setdefault(state, []).append(k)
    return found


def same_state(cache: MenuCache, rows: States, columns: States) -> Reshards:
    """Those of two ends of a value that cannot be resharded: no way to another state."""
    key = "same state", rows, columns
    if key not in cache.edges:
        same = np.reshape([[a == b for b in columns] for a in rows], (len(rows), len(columns)))
        cache.edges[key] = Reshards.of(np.where(same, 0.0, np.inf))
    return cache.edges[key]


def read_or_copied(
    cache: MenuCache, rows: States, columns: States, type_: TensorType, weight: float
) -> Reshards:
    """Those of a region's operand: options that read the value as it is, then those with a copy."""
    move = reshards(cache, rows, columns, type_, weight)
    key = "read", move
    if key not in cache.edges:
        same = np.reshape([[a == b for b in columns] for a in rows], move.shape)
        as_is, copied = np.where(same, 0.0, np.inf), np.where(same, np.inf, move.table)
        cache.edges[key] = Reshards.of(np.hstack((as_is, copied)))
    return cache.edges[key]


def _index(
    cache: MenuCache, states: States, type_: TensorType, kind: str | None
) -> tuple[NDArray[np.intp], str]:
    """Indices of states among all states of the tensor; -1 for states it cannot have."""
    if kind is None:
        kinds = {reduction_of(state) for state in states} - {"sum"}
        kind = next(iter(sorted(kinds)), "sum")
    key = (id(states), cache.reshard.form(type_.shape), kind)
    if key not in cache.index:
        index = cache.reshard.space(type_.shape, kind).index
        found = np.array([index.get(s, -1) for s in states], dtype=np.intp)
        cache.index[key] = (found, kind)
        cache.columns[("keep", id(states))] = states
    return cache.index[key]
