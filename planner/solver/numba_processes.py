"""Compiles the loops of the solver in several processes, where the cache on disk has none yet.

    python -m planner.solver.numba_processes K N

compiles the share K of N. It knows the types of the arguments from the small problem that every
process solves before the first, with the loops interpreted.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from .numba_jit import Call, interpret


def _warmup() -> ModuleType:
    return import_module(".numba_warmup", __package__)  # which defines the loops


@functools.cache
def begin() -> tuple[subprocess.Popen[bytes], ...]:
    """Starts a process for each processor, unless the loops are on disk."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not count or count < 2 or not sys.executable or not _warmup().is_cold():
        return ()
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return tuple(
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(k), str(count)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for k in range(count)
    )  # fmt: skip


def is_compiling() -> bool:
    """Whether processes compile the loops now; they are started where that is necessary."""
    return any(process.poll() is None for process in begin())


@functools.cache
def warm() -> None:
    """Runs every loop once in this process, before the clock starts.

    That loads what the others have compiled, for which it waits, and compiles the rest.
    """
    for process in begin():
        process.wait()
    _warmup().run()


def share(calls: Iterable[Call], number: int, count: int) -> list[Call]:
    """One of `count` shares of calls with about as much code in each."""
    shares, sizes = [list[Call]() for _ in range(count)], [0] * count
    for call in sorted(calls, key=lambda call: -len(call[0].__code__.co_code)):
        least = sizes.index(min(sizes))
        shares[least].append(call)
        sizes[least] += len(call[0].__code__.co_code)
    return shares[number]


def main(number: int, count: int) -> None:
    """Compiles one share."""
    interpreted = interpret()
    _warmup().run()
    interpreted.compile(share(interpreted.calls, number, count))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
