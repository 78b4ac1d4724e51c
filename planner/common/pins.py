"""Pins: wishes for the sharding of arguments, in the plan's mesh axes."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from ir import Mesh, Sharding

from .errors import PlanError

AXES = "xyzw"


_DIM = re.compile(r"^(-|\*|[1-9]\d*|[A-Za-z]\w*(\*[A-Za-z]\w*)*)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pin:
    """A wish for the sharding of all arguments whose name matches a pattern."""

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
        if inner is None or any(not _DIM.match(d) for d in dims):
            raise PlanError(
                f"'{spec}' is not a sharding", kind="bad-pin", where=f"pin '{pattern}'",
                remedy="write one entry per dimension, such as '[-,8]', '[x,*]' or '[x*y,-]'",
            )  # fmt: skip
        return Pin(pattern, dims)

    def matches(self, name: str) -> bool:
        return is_called(name, self.pattern)

    def allows(self, state: Sharding, mesh: Mesh) -> bool:
        """Whether a state is what the pin asks for."""
        return len(self.dims) == len(state.dims) and all(
            _fits(w, axes, mesh) for w, axes in zip(self.dims, state.dims, strict=True)
        )


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
