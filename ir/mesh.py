"""Logical device meshes: named axes, the first outermost."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from .errors import IRError

_NAME = re.compile(r"\w+")  # the names that the text forms of meshes and shardings allow


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes as (name, size), outermost first; devices are numbered in row-major order."""

    axes: tuple[tuple[str, int], ...]
    names: tuple[str, ...] = field(init=False, compare=False, repr=False)
    _products: dict[tuple[str, ...], int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "_products", {(): 1})
        if len(set(names)) != len(names):
            raise IRError(f"mesh axes must have different names, got {names}")
        for name, size in self.axes:
            if not _NAME.fullmatch(name):
                raise IRError(f"mesh axis '{name}' must be named with letters, digits and '_'")
            if size < 1:
                raise IRError(f"mesh axis '{name}' must have a size of at least 1, got {size}")

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.axes)

    @property
    def num_devices(self) -> int:
        return math.prod(self.sizes)

    def size(self, name: str) -> int:
        """Size of the axis of that name.

        Raises:
            IRError: if there is none.
        """
        for axis, size in self.axes:
            if axis == name:
                return size
        raise IRError(f"the mesh has no axis '{name}'; it has {', '.join(self.names) or 'none'}")

    def product(self, names: tuple[str, ...]) -> int:
        """Product of the sizes of some axes; memoised, since searches need it often."""
        if names not in self._products:
            self._products[names] = math.prod(self.size(name) for name in names)
        return self._products[names]

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)
