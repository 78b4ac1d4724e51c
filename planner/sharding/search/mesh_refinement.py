"""Meshes that differ by joining neighbouring axes.

A plan on a mesh with an axis x*y is also a plan on the finer mesh with axes x and y, at the same
price: it uses the two together. So the search on the finest meshes covers all meshes. It starts
from quick plans of the coarser ones, and a plan that always uses two axes together is re-expressed
on the coarsest mesh that can represent it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ir import Sharding

from ..problem.records import Built, NodeRef

Groups = tuple[tuple[str, ...], ...]  # for each axis of the coarse mesh, axes of the fine one


def joined(fine: Sequence[int], coarse: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """For each axis of a coarse shape the neighbouring axes of a fine one that it joins, or None.

    Axes are indices. The first solution is taken if there are several.
    """
    if not coarse:
        return () if not fine else None
    for count in range(1, len(fine) + 1):
        if math.prod(fine[:count]) == coarse[0]:
            rest = joined(fine[count:], coarse[1:])
            if rest is not None:
                moved = tuple(tuple(axis + count for axis in group) for group in rest)
                return (tuple(range(count)), *moved)
    return None


def coarser(shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The shapes with one or two axes that join neighbouring axes of a shape."""
    cuts = ((math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape)))
    found = dict.fromkeys(((math.prod(shape),), *cuts))
    return tuple(s for s in found if len(s) < len(shape))


def finest(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The shapes that no other shape refines."""
    return tuple(
        shape for shape in shapes
        if not any(len(other) > len(shape) and joined(other, shape) for other in shapes)
    )  # fmt: skip


def coarsened(
    fine: Built, choice: Sequence[int], coarse: Built, names: Sequence[str], groups: Groups
) -> tuple[int, ...] | None:
    """A choice re-expressed on a coarser mesh; None if it uses joined axes separately.

    Args:
        fine: the problem on the finer mesh.
        choice: one option of each of its nodes.
        coarse: the problem of the same program on the coarser mesh.
        names: axes of the coarser mesh.
        groups: for each of them, the axes of the finer mesh that it joins.
    """
    return _re_expressed(
        fine, choice, coarse, lambda roles: _roles(roles, groups),
        lambda state: _state(state, names, groups),
    )  # fmt: skip


def refined(
    coarse: Built, choice: Sequence[int], fine: Built, names: Sequence[str], groups: Groups
) -> tuple[int, ...] | None:
    """A choice re-expressed on a finer mesh; None if an option is missing there.

    Args:
        coarse: the problem on the coarser mesh.
        choice: one option of each of its nodes.
        fine: the problem of the same program on the finer mesh.
        names: axes of the coarser mesh.
        groups: for each of them, the axes of the finer mesh that it joins.
    """
    axes = dict(zip(names, groups, strict=True))

    def roles(mine: Sequence[str]) -> tuple[str, ...]:
        return tuple(r for r, group in zip(mine, groups, strict=True) for _ in group)

    return _re_expressed(coarse, choice, fine, roles, lambda state: _spread(state, axes))


def _re_expressed(
    here: Built, choice: Sequence[int], there: Built,
    roles: Callable[[Sequence[str]], tuple[str, ...] | None],
    state: Callable[[Sharding], Sharding | None],
) -> tuple[int, ...] | None:  # fmt: skip
    """A choice re-expressed on another mesh by maps of roles and of states."""
    found: list[int] = []
    for mine, theirs, k in zip(here.refs, there.refs, choice, strict=False):
        if mine.op >= 0:
            same = roles(mine.menu[k].roles)
            place = next((n for n, s in enumerate(theirs.menu) if s.roles == same), None)
        else:
            place = _among(mine, theirs, k, state(mine.states[k]))
        if place is None:
            return None
        found.append(place)
    return tuple(found)


def _spread(state: Sharding, axes: Mapping[str, tuple[str, ...]]) -> Sharding:
    dims = tuple(tuple(a for axis in held for a in axes[axis]) for held in state.dims)
    return Sharding(dims, tuple((a, kind) for axis, kind in state.partial for a in axes[axis]))


def _among(mine: NodeRef, theirs: NodeRef, k: int, state: Sharding | None) -> int | None:
    """Index of a state among the options of a value; k is its index on the other mesh."""
    options = theirs.states
    begin = 0
    if mine.value < 0:  # first those without a copy, then those with one
        half = len(options) // 2
        begin = half if k >= len(mine.states) // 2 else 0
        options = options[begin : begin + half]
    return next((begin + n for n, s in enumerate(options) if s == state), None)


def _roles(roles: Sequence[str], groups: Groups) -> tuple[str, ...] | None:
    left = list(roles)
    found: list[str] = []
    for group in groups:
        mine, left = left[: len(group)], left[len(group) :]
        if len(set(mine)) > 1:
            return None
        found.append(mine[0])
    return tuple(found)


def _state(state: Sharding, names: Sequence[str], groups: Groups) -> Sharding | None:
    dims = [_axes(axes, names, groups) for axes in state.dims]
    waiting = _axes(tuple(axis for axis, _ in state.partial), names, groups)
    if waiting is None or any(axes is None for axes in dims):
        return None
    kind = state.partial[0][1] if state.partial else "sum"
    whole = tuple(axes for axes in dims if axes is not None)
    return Sharding(whole, tuple((axis, kind) for axis in waiting))


def _axes(axes: tuple[str, ...], names: Sequence[str], groups: Groups) -> tuple[str, ...] | None:
    """Axes that are whole groups, one after the other, as the coarser axes."""
    found: list[str] = []
    while axes:
        at = next((n for n, group in enumerate(groups) if axes[: len(group)] == group), None)
        if at is None:
            return None
        found.append(names[at])
        axes = axes[len(groups[at]) :]
    return tuple(found)
