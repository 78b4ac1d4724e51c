"""Mesh shapes worth searching on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel import Cluster
from ir import Mesh

from ...common.mesh_setting import AXES

MOST_AXES = 3


def mesh_of(shape: tuple[int, ...], names: Sequence[str] = AXES) -> Mesh:
    """A mesh with the names of some axes, those of the planner if none are given."""
    return Mesh(tuple(zip(names, shape, strict=False)))


def mesh_shapes(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Shapes by number of axes; each axis stays inside an island of fast links or spans islands.

    Inside an island all devices see each other alike, so the order of its axes does not matter
    and one of each unordered factorisation is kept. The flat mesh comes first.
    """
    inner_size = min(cluster.island, cluster.num_devices)
    outer_size = cluster.num_devices // inner_size
    shapes: set[tuple[int, ...]] = {(cluster.num_devices,)}
    for outer in _outer(outer_size):
        for inner in _unordered(inner_size, MOST_AXES - len(outer)):
            shape = tuple(size for size in (*outer, *inner) if size > 1)
            if 1 <= len(shape) <= MOST_AXES:
                shapes.add(shape)
    return tuple(sorted(shapes, key=lambda s: (len(s), [-size for size in s])))


def _outer(size: int) -> list[tuple[int, ...]]:
    """Axes over islands: one, or two as even as possible (data over stages of islands)."""
    if size == 1:
        return [()]
    found: list[tuple[int, ...]] = [(size,)]
    divisors = [d for d in range(2, size) if size % d == 0]
    even = sorted(divisors, key=lambda d: (abs(d - size // d), d))[:1]
    found.extend((d, size // d) for d in even)
    return found


def _unordered(size: int, most: int, least: int = 2) -> list[tuple[int, ...]]:
    """Factorisations into at most `most` factors, smallest first."""
    if size == 1:
        return [()]
    if most <= 0:
        return []
    found: list[tuple[int, ...]] = [(size,)] if size >= least else []
    for d in range(least, int(size**0.5) + 1):
        if size % d == 0:
            found.extend((d, *rest) for rest in _unordered(size // d, most - 1, d))
    return found
