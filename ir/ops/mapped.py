"""The user's `shard_map`: each mesh axis that it maps over is a factor of what it splits.

The factor takes exactly the axis of its name, so that the op has one strategy, its own specs:

    in_specs P("data", "seq"), out_specs P("data")    (data= _a) (seq= _b) -> (data= _c) _d

The rest of each dimension is whole, and no two tensors share it. Axes that the `shard_map` leaves
to the compiler (`axis_names=` some of its mesh's) may split its parts (`ir/mapped_parts.py`), which
are plain factors; devices along others run the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import IRError
from ..factors import Dim, FactorSpec
from ..graph import Attr
from ..opdef import Attributes, OpDef, Types
from ..types import TensorType
from .build import WHOLE, no_flops

SHARD_MAP = "shard_map"
PARTS = "parts"  # attribute: of each operand and result, the part of every dimension; sizes
MAPPED = "mapped"  # kind of a factor that takes exactly the mesh axis of its name


# Collectives whose results have the shapes of their operands, and of others the attributes that
# name the dimensions they change.
PLAIN_COLLECTIVES = (
    "pcast", "pmax", "pmin", "ppermute", "psum", "psum_invariant", "pvary", "reduced_vary_cast",
    "vary_unreduced_cast",
)  # fmt: skip
COLLECTIVE_DIMS: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("all_gather_dimension",),
    "all_gather_invariant": ("all_gather_dimension",),
    "all_to_all": ("split_axis", "concat_axis"),
    "reduce_scatter": ("scatter_dimension",),
}


def part_name(part: int) -> str:
    """The factor of a part."""
    return f"_p{part}"


def mapped_axes(mesh: Attr) -> dict[str, int]:
    """Names and sizes of the axes of a `shard_map`'s mesh.

    Args:
        mesh: its attribute `mesh`, pairs of a name and a size.

    Raises:
        IRError: if the attribute is something else.
    """
    found: dict[str, int] = {}
    for axis in mesh if isinstance(mesh, tuple) else ():
        if not (isinstance(axis, tuple) and [*map(type, axis)] == [str, int]):
            raise IRError(f"expected names of axes with their sizes, got {mesh!r}")
        name, size = axis
        assert isinstance(name, str)
        assert isinstance(size, int)
        found[name] = size
    return found


def left_axes(auto: Attr) -> tuple[str, ...]:
    """The axes of a `shard_map`'s mesh that it leaves to the compiler, of its attribute `auto`."""
    return tuple(map(str, auto)) if isinstance(auto, tuple) else ()


def mapped_shape(shape: Sequence[int], spec: Attr, axes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one device's shard of an operand or result.

    Args:
        shape: of the whole array.
        spec: the axes that split each dimension.
        axes: from `mapped_axes`.
    """
    found = list(shape)
    for d, names in enumerate(_entries(spec)):
        for name in names:
            found[d] //= axes[name]
    return tuple(found)


def _entries(spec: Attr) -> tuple[tuple[str, ...], ...]:
    entries = spec if isinstance(spec, tuple) else ()
    return tuple(
        tuple(str(name) for name in entry) if isinstance(entry, tuple) else () for entry in entries
    )


def _factors(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    axes = mapped_axes(attrs["mesh"])
    left = left_axes(attrs["auto"])
    sizes = {name: size for name, size in axes.items() if size > 1 and name not in left}
    sides = ("in_specs", operands), ("out_specs", results)
    tensors: list[list[tuple[Dim, ...]]] = [[], []]
    kinds = dict.fromkeys(sizes, MAPPED)
    of_sides, part_sizes = _parts(attrs)
    for side, (key, types) in enumerate(sides):
        specs = attrs[key]
        if not isinstance(specs, tuple) or len(specs) != len(types):
            raise IRError(f"its {key} are {specs!r}, expected one for each of {len(types)}")
        for k, (type_, spec) in enumerate(zip(types, specs, strict=True)):
            parts = of_sides[side][k] if of_sides else ()
            own = {d: (part_name(p), part_sizes[p]) for d, p in enumerate(parts) if p >= 0}
            dims = _dims(type_, _entries(spec), sizes, kinds, f"_{'or'[side]}{k}d", own)
            tensors[side].append(dims)
    return FactorSpec(
        tuple(tensors[0]), tuple(tensors[1]), tuple(sizes.items()), tuple(sorted(kinds.items()))
    )


def _parts(attrs: Attributes) -> tuple[Any, Sequence[int]]:
    """The part of every dimension of the operands, then of the results, and the parts' sizes."""
    found: Any = attrs.get(PARTS)
    return (found[:2], found[2]) if found else ((), ())


def _dims(
    type_: TensorType, entries: Sequence[tuple[str, ...]], sizes: dict[str, int],
    kinds: dict[str, str], prefix: str, parts: Mapping[int, tuple[str, int]],
) -> tuple[Dim, ...]:  # fmt: skip
    """Factors of one tensor; parts, and those of what is left of dimensions, go to `sizes`."""
    found: list[Dim] = []
    padded = (*entries, *[()] * (type_.rank - len(entries)))
    for d, (size, names) in enumerate(zip(type_.shape, padded, strict=True)):
        split = [name for name in names if name in sizes]
        if d in parts:
            name, sizes[name] = parts[d]
            split.append(name)
        rest = size
        for name in split:
            if rest % sizes[name]:
                raise IRError(f"dimension {d} of {type_} does not divide over {', '.join(split)}")
            rest //= sizes[name]
        if rest > 1:
            sizes[f"{prefix}{d}"], kinds[f"{prefix}{d}"] = rest, WHOLE
            split.append(f"{prefix}{d}")
        found.append(tuple(split))
    return tuple(found)


RECORDS = (OpDef(SHARD_MAP, _factors, "collective", no_flops),)
