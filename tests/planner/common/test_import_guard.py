from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GUARD = ROOT / "planner/common/import_guard.py"
NAMES = ("costmodel", "ir", "planner", "profiles", "substitutions")


def install(folder: Path) -> Path:
    """Five empty packages in `folder`, the real guard in `planner`."""
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    (folder / "planner" / "common").mkdir()
    (folder / "planner/common/__init__.py").write_text("")
    (folder / "planner/common/import_guard.py").write_text(GUARD.read_text())
    return folder


def guard(*path: Path, setup: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the guard in a fresh interpreter that searches `path` in this order."""
    program = (
        f"{setup}\nfrom planner.common.import_guard import check_not_shadowed\ncheck_not_shadowed()"
    )
    return subprocess.run(
        # Without `site`, an installed meshwright cannot stand in for what the test leaves out.
        [sys.executable, "-S", "-c", program],
        cwd=path[0],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_passes_when_nothing_shadows(tmp_path: Path) -> None:
    done = guard(install(tmp_path / "site"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in NAMES if name != "planner"])
def test_names_the_file_that_shadows(tmp_path: Path, name: str) -> None:
    site, mine = install(tmp_path / "site"), tmp_path / "mine"
    mine.mkdir()
    (mine / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')")
    done = guard(mine, site)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: meshwright: ")
    assert str(mine / f"{name}.py") in message
    assert "rename that file or folder, run from another folder" in message


def test_names_the_folder_that_shadows(tmp_path: Path) -> None:
    site, mine = install(tmp_path / "site"), tmp_path / "mine"
    (mine / "ir").mkdir(parents=True)
    (mine / "ir" / "__init__.py").write_text("")
    done = guard(mine, site)
    assert f"finds {mine / 'ir'}, not {site / 'ir'}" in done.stderr


def test_sees_a_module_that_is_loaded_already(tmp_path: Path) -> None:
    setup = "import sys, types\nsys.modules['ir'] = types.ModuleType('ir')"
    done = guard(install(tmp_path / "site"), setup=setup)
    assert "`import ir` finds" in done.stderr
    assert "ir in sys.modules" in done.stderr


def test_says_when_the_installation_is_incomplete(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    (site / "profiles" / "__init__.py").unlink()
    (site / "profiles").rmdir()
    done = guard(site)
    assert f"package `profiles` is missing from {site}" in done.stderr


def test_importing_planner_runs_the_guard(tmp_path: Path) -> None:
    (tmp_path / "ir.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import planner"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ImportError: meshwright: `import ir` finds {tmp_path / 'ir.py'}" in done.stderr
