"""The state of a tensor on a mesh: which axes split each dimension, and partial results."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import IRError
from .mesh import Mesh
from .types import Shape, TensorType

REDUCTIONS = ("sum", "max", "min")


@dataclass(frozen=True, slots=True)
class Sharding:
    """`dims[i]` are the mesh axes that split dimension i, major first.

    `partial` lists (axis, reduction) in mesh order: along such an axis every device holds a
    full-shape term, and the value is the reduction of the terms.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        used = [axis for axes in self.dims for axis in axes] + [axis for axis, _ in self.partial]
        if len(set(used)) != len(used):
            raise IRError(f"a mesh axis is used twice in {self}")
        for axis, kind in self.partial:
            if kind not in REDUCTIONS:
                raise IRError(f"partial over '{axis}': '{kind}' is not one of {REDUCTIONS}")

    @property
    def is_replicated(self) -> bool:
        return not self.partial and not any(self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that split some dimension, dimension by dimension."""
        return tuple(axis for axes in self.dims for axis in axes)

    def without_partial(self) -> Sharding:
        return Sharding(self.dims)

    def stacked(self) -> Sharding:
        """Sharding of a stack of such values; the new first dimension is whole."""
        return Sharding(((), *self.dims), self.partial)

    def sliced(self) -> Sharding:
        """Sharding of a slice along the first dimension."""
        return Sharding(self.dims[1:], self.partial)

    def local_shape(self, shape: Shape, mesh: Mesh) -> Shape:
        """Shape of the shard on one device.

        Raises:
            IRError: if a dimension is not divisible.
        """
        if len(shape) != len(self.dims):
            raise IRError(f"{self} has {len(self.dims)} dimensions, the tensor {len(shape)}")
        return tuple(
            split(size, mesh.product(axes), axes)
            for size, axes in zip(shape, self.dims, strict=True)
        )

    def local_bytes(self, type_: TensorType, mesh: Mesh) -> int:
        """Bytes of the shard on one device, without checking divisibility."""
        return type_.nbytes // mesh.product(self.axes)

    def fits(self, shape: Shape, mesh: Mesh) -> bool:
        """Whether every dimension divides evenly."""
        return len(shape) == len(self.dims) and all(
            size % mesh.product(axes) == 0 for size, axes in zip(shape, self.dims, strict=True)
        )

    def __str__(self) -> str:
        dims = ",".join("*".join(axes) if axes else "-" for axes in self.dims)
        partial = "".join(f"+{kind}({axis})" for axis, kind in self.partial)
        return f"[{dims}]{partial}"


def split(size: int, ways: int, axes: tuple[str, ...]) -> int:
    """`size / ways`, or an error if that is not whole."""
    if size % ways:
        raise IRError(
            f"a dimension of size {size} does not divide {ways} ways over "
            f"{'*'.join(axes)}; pad it to {-(-size // ways) * ways} or leave it whole"
        )
    return size // ways


def replicated(rank: int) -> Sharding:
    return Sharding(((),) * rank)


_DIM = r"\s*(?:-|\w+(?:\*\w+)*)\s*"
_FORM = re.compile(rf"\[((?:{_DIM}(?:,{_DIM})*)?)\]((?:\+(?:sum|max|min)\(\w+\))*)")


def parse_sharding(text: str) -> Sharding:
    """Parses the text of `str(Sharding)`, such as `[x*y,-]+sum(z)`.

    Raises:
        IRError: if the text has another form.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise IRError(f"'{text}' is not a sharding; expected something like '[x,-]' or '[x*y,-]'")
    inner, tail = match.groups()
    dims = tuple(
        () if item.strip() == "-" else tuple(item.strip().split("*"))
        for item in (inner.split(",") if inner else [])
    )
    partial = tuple((axis, kind) for kind, axis in re.findall(r"\+(\w+)\((\w+)\)", tail))
    return Sharding(dims, partial)
