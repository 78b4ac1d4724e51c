"""Every command with wrong files and places: one line, status 2, nothing left behind."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer.main

from planner.cli.main import app
from tests.planner.cli.runner import Run

# `cut.json` is half a plan, `list.json` another kind of JSON, `bytes.json` no text at all.
LINES = """
plan step.py:sgd -c 8xh100 -o absent/plan.json
plan step.py:sgd -c 8xh100 -o folder
plan step.py:sgd -c absent.yaml
plan step.py:sgd -c list.json
plan absent.py:sgd -c 8xh100
plan step.py:sgd -c 8xh100 --sweep devices=2 -o folder
explain absent.json
explain cut.json params/w1
explain list.json
explain bytes.json
explain folder
explain PLAN --devices 4 -o absent/x.json
compare PLAN absent.json
compare PLAN list.json
compare cut.json PLAN
reshard PLAN cut.json
reshard bytes.json PLAN
verify step.py:sgd cut.json
verify absent.py:sgd PLAN
report cut.json -o r.html
report PLAN -o absent/r.html
report PLAN -o folder
report PLAN -o r.html --trace absent/t.json
export PLAN --to shardings -o absent/s.json
export list.json --to shardings -o s.json
simulate absent.json
simulate bytes.json
simulate list.json
solve absent.json
solve list.json
solve bytes.json
solve folder
pipeline list.json --devices 4 --memory 1GB --bandwidth 1GB --batch 8
pipeline absent.json --devices 4 --memory 1GB --bandwidth 1GB --batch 8
profile --devices 0
profile --quick --export absent/p.json
profile --merge absent.json
profile --merge list.json
rules audit absent.json
rules audit bytes.json
rules audit list.json
rules list extra
rules verify extra
rules generate --ops 0
clusters extra
cache info extra
cache clear extra
version extra
""".strip().splitlines()


def every_command() -> set[str]:
    """Names of all commands, those of groups with the group's name before them."""
    found: set[str] = set()
    for name, command in typer.main.get_group(app).commands.items():
        inside = getattr(command, "commands", None)
        found.update(f"{name} {sub}" for sub in inside) if inside else found.add(name)
    return found


def test_every_command_is_here() -> None:
    missing = [name for name in every_command() if not any(f"{x} ".startswith(f"{name} ")
               for x in LINES)]  # fmt: skip
    assert missing == []


def test_one_line_and_nothing_left_behind(run: Run, saved: Path) -> None:
    Path("folder").mkdir()
    Path("cut.json").write_bytes(saved.read_bytes()[:3000])
    Path("list.json").write_text("[]", encoding="utf-8")
    Path("bytes.json").write_bytes(b"\xff\xfe\x00")
    before = {path: path.read_bytes() for path in Path().rglob("*.json")}
    for line in LINES:
        words = [str(saved) if word == "PLAN" else word for word in shlex.split(line)]
        ran = run(*words)
        assert ran.status == 2, line
        assert ran.out == "", line
        assert len(ran.err.strip().splitlines()) == 1, line
        assert ran.err.startswith("error: "), line
        json = run(*words, "--json")
        assert json.status == 2, line
        assert json.error["message"], line
        assert {path: path.read_bytes() for path in Path().rglob("*.json")} == before, line
        assert not list(Path().rglob("r.html")), line


def test_help_has_examples(run: Run) -> None:
    for name in sorted(every_command()):
        ran = run(*name.split(), "--help")
        assert ran.status == 0
        assert f"meshwright {name}" in ran.out.partition("Examples:")[2], name
