"""The mesh that a user asks for: sizes, names with sizes, or a mesh of JAX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

AXES = "xyzw"  # what the planner calls axes that have no names

Sizes = tuple[int, ...]
Named = tuple[tuple[str, int], ...]

_NAME = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)


def read_mesh(value: object) -> Sizes | Named:
    """The sizes of a mesh, with names if there are any; axes of size 1 are kept.

    Args:
        value: sizes, names with sizes as a mapping or as pairs, or a mesh of JAX.

    Raises:
        ValueError: says what is wrong with it.
    """
    if hasattr(value, "axis_names"):  # jax.sharding.Mesh or AbstractMesh; JAX is not loaded here
        value = cast("Any", value).shape
    items: object = tuple(cast("Mapping[Any, Any]", value).items()) if _is_map(value) else value
    found: Sequence[Any] = cast("Any", items) if _is_row(items) else ()
    pairs = [tuple(item) for item in found if _is_row(item)]
    if pairs and len(pairs) == len(found) and all(len(pair) == 2 for pair in pairs):
        names, sizes = zip(*pairs, strict=True)
    else:
        names, sizes = (), tuple(found)
    whole = [n for n in sizes if isinstance(n, int) and not isinstance(n, bool) and n >= 1]
    if not whole or len(whole) != len(sizes):
        raise ValueError(f"must be whole numbers from 1, or names with them, got {value!r}")
    for name in names:
        if not is_name(name):
            raise ValueError(f"the axis {name!r} must be named with letters, digits and '_'")
        if names.count(name) > 1:
            raise ValueError(f"the axis '{name}' occurs twice in {value!r}")
    return tuple(zip(names, whole, strict=True)) if names else tuple(whole)


def is_name(value: object) -> bool:
    """Whether an axis of a plan can be called so."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def sizes_of(mesh: Sizes | Named) -> Sizes:
    """Sizes of the axes of a plan; those of size 1 that have a name are left out."""
    sizes = tuple(axis if isinstance(axis, int) else axis[1] for axis in mesh)
    wide = tuple(n for n in sizes if n > 1) if names_of(mesh) else sizes
    return wide or sizes[:1]


def names_of(mesh: Sizes | Named) -> tuple[str, ...]:
    """All names of the axes; empty if they have none."""
    return tuple(axis[0] for axis in mesh if not isinstance(axis, int))


def wide_names(mesh: Sizes | Named | None) -> tuple[str, ...]:
    """What the axes of a plan are called, for the sizes of `sizes_of`."""
    named = tuple(axis for axis in mesh or () if not isinstance(axis, int))
    wide = tuple(name for name, n in named if n > 1)
    return wide or tuple(name for name, _ in named[:1]) or tuple(AXES)


def spec_text(spec: object) -> str:
    """A PartitionSpec or NamedSharding as the text of a pin; dimensions it leaves out are whole.

    Raises:
        ValueError: if it is neither of them, nor a text.
    """
    if isinstance(spec, str):
        return spec
    entries = getattr(spec, "spec", spec)
    if not hasattr(entries, "unreduced"):  # all PartitionSpecs say it; JAX is not loaded here
        raise ValueError(f"{spec!r} is neither a text nor a PartitionSpec nor a NamedSharding")
    if cast("Any", entries).unreduced:
        raise ValueError(f"{spec!r} asks for a sum that is not reduced")
    return f"[{','.join([*map(_entry, cast('Iterable[object]', entries)), '...'])}]"


def _entry(entry: object) -> str:
    if entry is None or entry == ():
        return "-"
    if isinstance(entry, str):
        return entry
    return "*".join(cast("tuple[str, ...]", entry)) if isinstance(entry, tuple) else "*"


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_row(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
