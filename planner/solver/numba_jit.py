# pyright: basic
"""Loops over arrays, compiled by Numba on first use and kept on disk between runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar, cast

import numba

Loop = Callable[..., Any]
F = TypeVar("F", bound=Loop)
# A loop, and the types of its arguments, as Numba names them.
Call = tuple[Loop, tuple[object, ...]]


@dataclass
class Interpreted:
    """Loops that Python interprets, and the calls of each, but for those of other loops."""

    loops: list[Loop] = field(default_factory=list[Loop])
    calls: dict[Call, None] = field(default_factory=dict[Call, None])
    busy: bool = False

    def noted(self, loop: Loop) -> Loop:
        """The loop, whose calls are noted."""

        def call(*values: object) -> object:
            if self.busy:
                return loop(*values)
            self.calls[loop, tuple([cast(Any, numba).typeof(value) for value in values])] = None
            self.busy = True
            try:
                return loop(*values)
            finally:
                self.busy = False

        self.loops.append(loop)
        return call

    def compile(self, calls: Iterable[Call]) -> None:
        """Compiles all loops, for some of the calls, into the cache on disk."""
        for loop in self.loops:
            loop.__globals__[loop.__name__] = _compiled(loop)  # others of its file may call it
        for loop, types in calls:
            loop.__globals__[loop.__name__].compile(types)


_interpreted: list[Interpreted] = []


def compiled(loop: F) -> F:
    """Compiles a function of arrays and numbers; other threads run meanwhile.

    Where neither the package nor the user's cache folder can be written, it is compiled anew by
    every process.
    """
    return cast(F, _interpreted[0].noted(loop) if _interpreted else _compiled(loop))


def interpret() -> Interpreted:
    """Has Python interpret the loops that are defined from now on."""
    _interpreted[:] = [Interpreted()]
    return _interpreted[0]


def _quick_cache() -> Any:
    """Numba's cache on disk, which loads machine code without what only a compilation needs.

    Numba registers everything that it can compile before it looks into its cache: half a second,
    and SciPy's linear algebra. Where the cache has nothing, its compiler does that itself. It does
    so by methods that are not public: None where this version has others.
    """
    try:
        base = import_module("numba.core.caching").FunctionCache
        runtime = import_module("numba.core.runtime.nrt").rtsys
        known = base._load_overload, base._guard_against_spurious_io_errors, runtime.initialize
    except (ImportError, AttributeError):
        return None
    load, guard, initialize = known

    class Quick(base):
        def load_overload(self, sig: object, target_context: Any) -> Any:
            initialize(target_context)  # which arrays that the loops make need
            with guard(self):
                return load(self, sig, target_context)

    return Quick


_Cache = _quick_cache()


def _compiled(loop: Loop) -> Any:
    njit = cast(Any, numba).njit
    try:
        found = njit(cache=True, nogil=True)(loop)
    except RuntimeError:  # Numba found no place for its cache
        return njit(nogil=True)(loop)
    if _Cache is not None:
        found._cache = _Cache(loop)
    return found
