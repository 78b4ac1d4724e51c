"""The user's file and line behind each equation of a jaxpr."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .graph import Graph
from .jax_internals import frames_of, line_of


def _folders(*libraries: str) -> tuple[str, ...]:
    """Folders of these libraries, as far as they are installed."""
    specs = [importlib.util.find_spec(name) for name in libraries]
    places = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return tuple(place + os.sep for place in places)


# Libraries whose own lines, such as those of their decorators, tell a user nothing.
_LIBRARIES = (
    *_folders(
        "jax", "jaxlib", "optax", "flax", "equinox", "haiku", "chex", "jaxtyping", "beartype"
    ),
    contextlib.__file__,
    *("<@beartype", "<decorator-gen"),  # code that a decorator wrote
)
_ROOT = Path(__file__).parents[1]
_OWN = tuple(
    f"{_ROOT / name}{os.sep}"
    for name in ("costmodel", "ir", "meshwright", "planner", "profiles", "substitutions")
)


def line_inside(bodies: Sequence[Graph]) -> str:
    """The first source line in some bodies: that of a loop which a cut into stages has rebuilt."""
    lines = (node.source or line_inside(node.bodies) for body in bodies for node in body.nodes)
    return next(filter(None, lines), "")


# What a user's program calls of Meshwright, and so is passed over as a library is.
_CALLED = tuple(
    str(_ROOT / name)
    for name in (
        "ir/registered",
        "planner/api/parallelize.py",
        "planner/api/frameworks",
        "planner/api/register",
    )
)


class Sources:
    """Files and lines of the frames of one traced program, each looked up once.

    Every equation has a stack; the stacks share few frames.
    """

    def __init__(self) -> None:
        # (code, instruction) by the code's id, which holding the code keeps unique
        self._known: dict[tuple[int, int], tuple[str, Any]] = {}

    def of(self, eqn: Any) -> str:
        """The user's file and line that made an equation; empty if it is not known.

        Frames outside of the first one of the planner are those that called it, not the program.
        """
        for code, instruction in frames_of(eqn):
            if code.co_filename.startswith(_OWN) and not code.co_filename.startswith(_CALLED):
                return ""
            key = (id(code), instruction)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = _line(eqn, code, instruction), code
            if found[0]:
                return found[0]
        return ""


def _line(eqn: Any, code: Any, instruction: int) -> str:
    """File and line of a frame; empty for frames of libraries."""
    name = code.co_filename
    if name.startswith((*_LIBRARIES, *_CALLED)):
        return ""
    return f"{name.rpartition('/')[2]}:{line_of(eqn, code, instruction)}"
