"""One mesh in which the axes of two meshes over the same devices are products of axes."""

from __future__ import annotations

from dataclasses import dataclass

from ir import Mesh, Sharding


@dataclass(frozen=True)
class Refined:
    """A mesh, and for each axis of the two meshes its axes there, outermost first."""

    mesh: Mesh
    a: dict[str, tuple[str, ...]]
    b: dict[str, tuple[str, ...]]

    def first(self, state: Sharding) -> Sharding:
        """A state on the first mesh, on this one."""
        return _renamed(state, self.a)

    def second(self, state: Sharding) -> Sharding:
        """A state on the second mesh, on this one."""
        return _renamed(state, self.b)


def refined(a: Mesh, b: Mesh) -> Refined | None:
    """The coarsest common mesh; None if there is none, as for 2 x 3 and 3 x 2.

    The devices of a mesh are numbered row by row, so an axis ends where the product of the sizes
    up to it does. The common mesh ends at all of these, where each divides the next.
    """
    if a.num_devices != b.num_devices:
        return None
    ends = sorted({*_ends(a), *_ends(b)})
    sizes = [high // low for low, high in zip([1, *ends], ends, strict=False)]
    if any(high % low for low, high in zip([1, *ends], ends, strict=False)):
        return None
    names = _names(len(sizes))
    mesh = Mesh(tuple(zip(names, sizes, strict=True)))
    return Refined(mesh, _within(a, ends, names), _within(b, ends, names))


def _ends(mesh: Mesh) -> list[int]:
    found, product = list[int](), 1
    for size in mesh.sizes:
        product *= size
        if size > 1:
            found.append(product)
    return found or [1]


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"a{k}" for k in range(count))


def _within(mesh: Mesh, ends: list[int], names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """For each axis the new axes between its start and its end."""
    found: dict[str, tuple[str, ...]] = {}
    start = 1
    for axis, size in mesh.axes:
        inside = [
            name for name, end in zip(names, ends, strict=True) if start < end <= start * size
        ]
        found[axis] = tuple(inside)
        start *= size
    return found


def _renamed(state: Sharding, axes: dict[str, tuple[str, ...]]) -> Sharding:
    return Sharding(tuple(tuple(n for axis in dim for n in axes[axis]) for dim in state.dims))
