"""Options that differ in the order of interchangeable mesh axes only."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ir import Sharding, Strategy

from ...solver.arrays import Ints
from .records import MenuCache, NodeRef


class AxisClasses:
    """Classes of options on one mesh: those that split alike by as many axes of each kind.

    Axes are of one kind if they have one size and join devices alike, such as all axes within a
    host.

    Args:
        cache: menus of the mesh, and the classes of their options.
    """

    def __init__(self, cache: MenuCache) -> None:
        reshard, self._known = cache.reshard, cache.classes
        numbers: dict[tuple[int, ...], int] = {}
        self.kind: dict[str, int] = {}
        self._kinds: dict[tuple[str, ...], Hashable] = {}  # of some axes, in order
        for name in reshard.mesh.names:
            group = reshard.group((name,))
            alike = group.size, group.per_host, group.hosts, group.concurrent_per_host
            self.kind[name] = numbers.setdefault(alike, len(numbers))
        self.some = len(numbers) < len(self.kind)  # whether axes are interchangeable

    def of(self, ref: NodeRef) -> Ints:
        """The class of every option of a node; one object for equal options."""
        key = id(ref.menu), id(ref.states)
        if key not in self._known:
            numbers: dict[Hashable, int] = {}
            if ref.menu:
                forms = [self._roles(strategy) for strategy in ref.menu]
            else:
                # a region's operand: the same states again, with a copy
                again = len(ref.states) // 2 if ref.op < 0 and ref.value < 0 else len(ref.states)
                forms = [(self._state(s), k >= again) for k, s in enumerate(ref.states)]
            each = [numbers.setdefault(form, len(numbers)) for form in forms]
            self._known[key] = np.array(each, dtype=np.int64), ref
        return self._known[key][0]

    def _roles(self, strategy: Strategy) -> Hashable:
        return tuple(sorted(zip(self.kind.values(), strategy.roles, strict=True)))

    def _state(self, state: Sharding) -> Hashable:
        waits = sorted((self.kind[axis], kind) for axis, kind in state.partial)
        return tuple(map(self._counted, state.dims)), tuple(waits)

    def _counted(self, axes: tuple[str, ...]) -> Hashable:
        found = self._kinds.get(axes)
        if found is None:
            found = self._kinds[axes] = tuple(sorted(self.kind[axis] for axis in axes))
        return found
