"""The solver's loops are compiled by several processes, for the types that it calls them with."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from planner.solver import numba_processes
from planner.solver.numba_processes import is_compiling, share, warm

CALLS = """
from planner.solver.numba_jit import interpret
interpreted = interpret()
from planner.solver.numba_warmup import run
run()
for loop, types in interpreted.calls:
    print(loop.__module__, loop.__name__, types, sep="|")
"""
HITS = """
from planner.solver import numba_jit
loops = []
compiled = numba_jit._compiled
numba_jit._compiled = lambda loop: loops.append(compiled(loop)) or loops[-1]
import planner.solver.numba_warmup  # which defines the loops
from planner.solver.numba_processes import begin, warm
print(len(begin()))
warm()
print(sum(sum(loop.stats.cache_misses.values()) for loop in loops))
"""
LOADS = """
import sys
from planner.solver.numba_processes import warm
warm()
print("numba.np.linalg" in sys.modules)
"""


def test_loops_on_disk_are_loaded_without_what_numba_compiles() -> None:
    warm()  # which puts them there
    run = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]


def test_interpreted_loops_are_called_with_the_types_of_compiled_ones() -> None:
    warm()
    run = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    calls = [line.split("|") for line in run.stdout.splitlines()]
    for module, name, types in calls:
        loop: Any = getattr(import_module(module), name)
        assert types in {str(signature) for signature in loop.signatures}, name
    assert len(calls) > 20


def test_compilation_is_over_once_the_loops_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that compiled them says so in its first plan only."""
    wait = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(wait, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    monkeypatch.setattr(numba_processes, "begin", lambda: (process,))
    assert is_compiling()
    process.communicate(b"")
    assert not is_compiling()


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_shares_hold_every_call_once(count: int) -> None:
    loops = [(test, (number,)) for number in range(7) for test in (share, numba_processes.main)]
    shares = [share(loops, number, count) for number in range(count)]
    assert sorted(map(str, loops)) == sorted(str(call) for each in shares for call in each)
    sizes = [sum(len(loop.__code__.co_code) for loop, _ in each) for each in shares]
    assert max(sizes) - min(sizes) <= max(len(loop.__code__.co_code) for loop, _ in loops)


@pytest.mark.exhaustive
def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", HITS]
    first = subprocess.run(run, capture_output=True, text=True, check=True, env=env).stdout.split()
    assert first[0] == "0" or first[1] == "1", first  # the loop that tells whether all are on disk
    assert subprocess.run(
        run, capture_output=True, text=True, check=True, env=env
    ).stdout.split() == ["0", "0"]
