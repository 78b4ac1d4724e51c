"""The user's file and line behind each equation of a jaxpr."""

from __future__ import annotations

from typing import Any

_LIBRARIES = ("/jax/", "/jaxlib/", "/optax/", "/flax/", "/equinox/")


class Sources:
    """Files and lines of the frames of one traced program, each looked up once.

    Equations have a stack each, but these are made of few frames.
    """

    def __init__(self) -> None:
        # (code, instruction) by the code's address, with the code, so that it stays its own
        self._known: dict[tuple[int, int], tuple[str, Any]] = {}

    def of(self, eqn: Any) -> str:
        """The user's file and line that made an equation; empty if it is not known."""
        traceback = getattr(eqn.source_info, "traceback", None)
        if traceback is None:
            return ""
        for code, instruction in zip(*traceback.raw_frames(), strict=True):
            key = (id(code), instruction)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = _line(traceback, code, instruction), code
            if found[0]:
                return found[0]
        return ""


def _line(traceback: Any, code: Any, instruction: int) -> str:
    """File and line of a frame; empty for frames of libraries."""
    name = code.co_filename
    if any(part in name for part in _LIBRARIES):
        return ""
    return f"{name.rpartition('/')[2]}:{traceback.code_addr2line(code, instruction)}"
