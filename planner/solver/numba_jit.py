"""Loops over arrays, compiled by Numba on first use and kept on disk between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(loop: F) -> F:
    """Compiles a function of arrays and numbers; other threads run meanwhile.

    Where neither the package nor the user's cache folder can be written, it is compiled anew by
    every process.
    """
    njit = cast(Any, numba).njit
    try:
        return njit(cache=True, nogil=True)(loop)
    except RuntimeError:  # Numba found no place for its cache
        return njit(nogil=True)(loop)
