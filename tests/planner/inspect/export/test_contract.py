"""What every export format holds to, on every kind of plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import PlanError, load
from planner.inspect.export import FORMATS
from tests.planner.inspect.export.plans import PLANS

PLAIN = [name for name, f in FORMATS.items() if not f.needs_function and name != "scaling"]


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", PLAIN)
def test_a_loaded_plan_exports_the_same_bytes_each_time(
    name: str, kind: str, tmp_path: Path
) -> None:
    if name == "jax" and kind in ("layered", "trained"):
        pytest.skip("its program is not the user's own: test_jax_module.py")
    PLANS[kind]().save(tmp_path / "plan.json")
    found = load(tmp_path / "plan.json")
    first = found.export(name, tmp_path / "a.out")
    again = PLANS[kind]().export(name, tmp_path / "b.out")
    assert first.files[0] == tmp_path / "a.out"
    assert [f.suffix for f in first.files] == [f.suffix for f in again.files]
    for a, b in zip(first.files, again.files, strict=True):
        assert a.read_bytes() == b.read_bytes()
        assert a.read_bytes().endswith(b"\n")
    assert first.notes == again.notes
    if name not in ("flexflow", "jax", "maxtext", "megatron-bridge", "nnx", "torchtitan"):
        json.loads((tmp_path / "a.out").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_documented(name: str) -> None:
    page = Path(__file__).parents[4] / "docs" / "exports.md"
    assert f"## {name}\n" in page.read_text(encoding="utf-8")
    assert FORMATS[name].about


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no format 'sharding'") as found:
        PLANS["constant"]().export("sharding", tmp_path / "x")
    assert "did you mean 'shardings'" in found.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_files_beside_never_replace_the_one_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="also writes"):
        PLANS["constant"]().export("shardings", tmp_path / "x.py")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_an_export_that_fails(tmp_path: Path) -> None:
    (tmp_path / "x.py").mkdir()
    with pytest.raises(PlanError, match="it is a folder"):
        PLANS["constant"]().export("shardings", tmp_path / "x.json")
    assert [p.name for p in tmp_path.iterdir()] == ["x.py"]


def test_a_format_that_runs_the_function_needs_it(tmp_path: Path) -> None:
    PLANS["constant"]().save(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="has no function yet"):
        load(tmp_path / "plan.json").export("stablehlo", tmp_path / "x.mlir")
    assert not (tmp_path / "x.mlir").exists()
