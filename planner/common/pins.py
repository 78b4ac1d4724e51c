"""Pins: wishes for the sharding of arguments, in the plan's mesh axes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection
from dataclasses import dataclass

from ir import Mesh, Sharding

from .errors import PlanError

REST = "..."  # all further dimensions are whole
_DIM = re.compile(r"^(-|\*|[1-9]\d*|[A-Za-z]\w*(\*[A-Za-z]\w*)*)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pin:
    """A wish for the sharding of all arguments whose name matches a pattern.

    dims: a wish for each dimension; the last may be `REST`.
    """

    pattern: str
    dims: tuple[str, ...]

    @staticmethod
    def parse(pattern: str, spec: str) -> Pin:
        """Reads a pin.

        Raises:
            PlanError: if the text is not of the form `[-,8,x*y]`.
        """
        text = spec.strip()
        inner = text[1:-1] if text.startswith("[") and text.endswith("]") else None
        dims = tuple(d.strip() for d in inner.split(",")) if inner else ()
        wishes = dims[:-1] if dims[-1:] == (REST,) else dims
        if inner is None or any(not _DIM.match(d) for d in wishes):
            raise PlanError(
                f"'{spec}' is not a sharding", kind="bad-pin", where=f"pin '{pattern}'",
                remedy="write one entry per dimension, such as '[-,8]', '[x,*]' or '[x*y,-]'",
            )  # fmt: skip
        return Pin(pattern, dims)

    def matches(self, name: str) -> bool:
        return is_called(name, self.pattern)

    def allows(self, state: Sharding, mesh: Mesh) -> bool:
        """Whether a state is what the pin asks for."""
        dims = self.of_rank(len(state.dims))
        return len(dims) == len(state.dims) and all(
            _fits(w, axes, mesh) for w, axes in zip(dims, state.dims, strict=True)
        )

    def of_rank(self, rank: int) -> tuple[str, ...]:
        """The wishes for an array of that rank, one for each dimension if there are as many."""
        if self.dims[-1:] != (REST,):
            return self.dims
        return (*self.dims[:-1], *["-"] * (rank - len(self.dims) + 1))

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it names."""
        return tuple(axis for dim in self.dims if dim[0].isalpha() for axis in dim.split("*"))

    def without(self, axes: Collection[str]) -> Pin:
        """The pin without some axes, over which nothing can be split."""
        kept = [
            "*".join(axis for axis in dim.split("*") if axis not in axes) or "-"
            if dim[0].isalpha() else dim
            for dim in self.dims
        ]  # fmt: skip
        return Pin(self.pattern, tuple(kept))

    def __str__(self) -> str:
        return f"[{','.join(self.dims)}]"


def is_called(name: str, pattern: str) -> bool:
    """Whether a name is the pattern itself or matches it as a shell pattern."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _fits(wish: str, axes: tuple[str, ...], mesh: Mesh) -> bool:
    if wish == "*":
        return True
    if wish == "-":
        return not axes
    if wish.isdigit():
        return mesh.product(axes) == int(wish)
    return axes == tuple(wish.split("*"))
