"""Quick answers load no numerical library; the table of commands says what their docstrings say."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from planner.cli.main import CACHE, COMMANDS, RULES

HEAVY = ("egglog", "highspy", "jaxlib", "networkx", "numba", "numpy", "optax", "pulp", "z3")
SCRIPT = """
import sys
from planner.cli.main import main
sys.argv = ["meshwright", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
sys.stderr.write("loaded:" + ",".join(sorted(sys.modules)))
"""
ENTRIES = {**COMMANDS, **{f"cache {k}": v for k, v in CACHE.items()},
           **{f"rules {k}": v for k, v in RULES.items()}}  # fmt: skip


def loaded(*words: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True
    )
    return set(run.stderr.rpartition("loaded:")[2].split(","))


@pytest.mark.parametrize(
    "words",
    [
        ("--help",), ("version",), ("clusters",), ("pln",), ("plan",), ("compare", "--help"),
        ("plan", "model.py:step", "--clustre", "8xh100"), ("cache", "--help"), ("rules", "--help"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_and_wrong_usage_load_no_numerical_library(words: tuple[str, ...]) -> None:
    found = loaded(*words)
    assert "planner.cli.main" in found
    assert not found.intersection(HEAVY)


def test_the_package_runs_as_the_program() -> None:
    command = [sys.executable, "-m", "meshwright", "version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("meshwright ")


@pytest.mark.parametrize("name", ["meshwright", "planner"])
def test_importing_the_packages_loads_no_numerical_library(name: str) -> None:
    script = f"import {name}, sys; print(','.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(run.stdout.strip().split(",")).intersection(HEAVY)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_summary_is_the_first_paragraph_of_the_docstring(name: str) -> None:
    entry = ENTRIES[name]
    module, function = entry.function.split(":")
    doc = getattr(import_module(f"planner.cli.{module}"), function).__doc__
    assert entry.summary == " ".join(doc.split("\n\n")[0].split())
