# pyright: basic
"""Training scripts for one device, and the same scripts planned: few lines differ, results agree.

Each script stands twice under `examples/frameworks`: as its author wrote it, and planned.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import subprocess
import sys
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import planner
from planner.api.parallelize import Parallelized

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "frameworks"
KINDS = ("one_device", "planned")
PAGE = (ROOT / "docs" / "how-to" / "frameworks.md").read_text(encoding="utf-8")

# Name of each script, the library it needs, and its main function.
SCRIPTS = {
    "train_nnx": ("flax", "train"),
    "train_linen": ("flax", "train"),
    "train_equinox": ("equinox", "train"),
    "train_haiku": ("haiku", "train"),
    "decode": ("jax", "decode"),
    "lora": ("jax", "train"),
    "accumulate": ("jax", "train"),
}
# Planned with rewrites and hand-written plans, which the other scripts are quicker without: what
# they compute does not hang on these.
AS_WRITTEN = "lora"
QUICK = {"baselines": False, "substitutions": False, "recompute": "written"}
# Runs a planned script in a process of its own, planned as quickly.
QUICKLY = f"""
import functools, runpy, sys
import planner
import planner.api.parallelize as of_functions
of_functions.plan_function = functools.partial(planner.plan, mesh=(2, 2), **{QUICK})
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def difference(name: str) -> list[str]:
    """Lines that go, and lines that come, where a planned script differs; blank ones aside."""
    texts = ((FOLDER / kind / f"{name}.py").read_text(encoding="utf-8") for kind in KINDS)
    before, after = ([line for line in text.splitlines() if line] for text in texts)
    found = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in list(found)[2:] if not line.startswith("@@")]


def new_lines(name: str) -> int:
    """Lines of a planned script that are new or changed."""
    return sum(line.startswith("+") for line in difference(name))


def main(kind: str, name: str, *args: Any) -> tuple[Any, Any]:
    """What a script returns: figures of each step, and the state at the end."""
    module = importlib.import_module(f"examples.frameworks.{kind}.{name}")
    return getattr(module, SCRIPTS[name][1])(*args)


@cache
def alone(name: str) -> tuple[Any, Any]:
    """What a script returns on one device; two tests read it."""
    return main("one_device", name)


def plans(name: str) -> list[Any]:
    """The plans that the functions of a planned script ran with last."""
    module = importlib.import_module(f"examples.frameworks.planned.{name}")
    return [value.plan for value in vars(module).values() if isinstance(value, Parallelized)]


def raw(x: Any) -> np.ndarray:
    typed = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if typed else x, np.float64)


def assert_same(found: Any, expected: Any) -> None:
    """The same figures, and states that differ by a thousandth of their size."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    mine, theirs = jax.tree.leaves(found[1]), jax.tree.leaves(expected[1])
    for a, b in zip(map(raw, mine), map(raw, theirs), strict=True):
        assert a.shape == b.shape
        assert np.sqrt(np.mean((a - b) ** 2)) <= 1e-3 * np.sqrt(np.mean(b**2)) + 1e-7


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_planned_script_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != AS_WRITTEN:
        quick = partial(planner.plan, mesh=(2, 4), **QUICK)
        monkeypatch.setattr("planner.api.parallelize.plan_function", quick)
    library, _ = SCRIPTS[name]
    pytest.importorskip(library, reason=f"needs {library}; `make .venv` installs it")
    assert_same(main("planned", name), alone(name))
    for plan in plans(name):
        assert plan.mesh.num_devices == 8
        assert any(map(any, (s.spec for s in jax.tree.leaves(plan.shardings))))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_shows_and_counts_the_lines_that_differ(name: str) -> None:
    section = next(part for part in PAGE.split("\n## ") if f"`planned/{name}.py`:" in part)
    (shown,) = re.findall(r"^```diff\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert shown.splitlines() == difference(name)
    (row,) = (line for line in PAGE.splitlines() if line.startswith("|") and f"/{name}.py" in line)
    assert row.split("|")[-2].strip() == str(new_lines(name))


def test_the_readme_says_how_many_lines_differ() -> None:
    counts = [new_lines(name) for name in SCRIPTS]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"run with {min(counts)} to {max(counts)} changed lines" in text


def test_every_script_is_tested() -> None:
    for kind in KINDS:
        assert {path.stem for path in (FOLDER / kind).glob("*.py")} == {*SCRIPTS}


@pytest.mark.exhaustive
def test_training_goes_on_with_another_number_of_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps on eight devices, two more on four; five without a break on one."""
    quick = partial(planner.plan, mesh=(2, 4), **QUICK)
    monkeypatch.setattr("planner.api.parallelize.plan_function", quick)
    pytest.importorskip("orbax.checkpoint", reason="needs Orbax; `make .venv` installs it")
    folder = tmp_path / "state"
    losses, _ = main("planned", "train_linen", 3, folder)
    flags = re.sub(r"(device_count)=8", r"\1=4", os.environ["XLA_FLAGS"])
    done = subprocess.run(
        [sys.executable, "-c", QUICKLY, FOLDER / "planned" / "train_linen.py", "5", folder],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    losses += [float(x) for x in re.findall(r"\d+\.\d+", done.stdout)]
    expected, _ = alone("train_linen")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert all(a != b for a, b in pairwise(losses))
