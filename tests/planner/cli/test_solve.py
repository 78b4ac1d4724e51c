"""`meshwright solve`: answers, negative answers, files, and the time limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.solver.iopddl import read_instance
from tests.planner.cli.runner import Run
from tests.planner.solver.problems import large
from tests.planner.solver.test_iopddl import SMALL, form, written

KEYS = {
    "name", "feasible", "cost", "lower_bound", "gap", "stop", "seconds", "choice", "trace",
}  # fmt: skip


def test_a_published_instance_is_solved_to_the_known_optimum(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "solution.json"
    ran = run("solve", SMALL, "--json", "-o", out, "--time-limit", "60")
    data = ran.answer
    assert ran.status == 0
    assert set(data) == KEYS
    assert data["cost"] == data["lower_bound"] == 532_843  # best known, the contest's table
    read = read_instance(SMALL)
    assert read.cost(data["choice"]) == 532_843
    assert read.problem.is_feasible(data["choice"])
    assert json.loads(out.read_text()) == data
    assert sorted(p.name for p in tmp_path.iterdir()) == ["solution.json", "step.py"]


NODE: dict[str, Any] = {"intervals": [[3, 9]], "costs": [[7]], "usages": [[4]]}
NONE: dict[str, Any] = {"nodes": [], "costs": []}
ANSWERS: tuple[tuple[dict[str, Any], int | None, str], ...] = (
    (form(), 5, ""),
    (form(nodes=NODE, edges=NONE), 7, ""),
    (form(nodes={"intervals": [], "costs": [], "usages": []}, edges=NONE), 0, ""),
    (form(nodes=NODE, edges=NONE, usage_limit=3), None, "at moment 3 the 1 nodes"),
    (form(nodes=NODE | {"costs": [[10**18]]}, edges=NONE), None, "only forbidden"),
    (form(nodes=NODE | {"costs": [[]], "usages": [[]]}, edges=NONE), None, "no strategy"),
    (form(edges={"nodes": [[0, 1]], "costs": [[10**19] * 6]}), None, "forbidden by"),
)


@pytest.mark.parametrize(("content", "cost", "why"), ANSWERS, ids=range(len(ANSWERS)))
def test_small_cases(
    run: Run, tmp_path: Path, content: dict[str, Any], cost: int | None, why: str
) -> None:
    path = written(tmp_path, content)
    ran = run("solve", path, "--json")
    data = ran.answer
    assert (ran.status, data["feasible"]) == (int(cost is None), cost is not None)
    assert data["cost"] == data["lower_bound"] == cost
    if cost is None:
        assert why in data["conflict"]["text"]
        assert data["choice"] == []
        assert data["conflict"]["nodes"][:1] == [0]


def test_what_people_read(run: Run, tmp_path: Path) -> None:
    ran = run("solve", written(tmp_path, form()))
    assert ran.status == 0
    for word in ("two", "cost", "5, feasible", "lower bound", "gap", "proved optimal", "time"):
        assert word in ran.out
    ran = run("solve", written(tmp_path, form(nodes=NODE, edges=NONE, usage_limit=3)))
    assert ran.status == 1
    assert "at moment 3" in ran.out


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, "{")
    for words in ((path,), (path, "--time-limit", "0"), (path, "-o", tmp_path / "no/x.json")):
        ran = run("solve", *words, "--json")
        assert ran.status == 2
        assert set(ran.error) == {"kind", "message", "where", "remedy"}


def hard(tmp_path: Path) -> Path:
    """Too large to be solved in a few seconds."""
    problem = large(1)
    nodes = {
        "intervals": [list(span) for span in problem.intervals],
        "costs": [(1000 * c).astype(int).tolist() for c in problem.node_cost],
        "usages": [u.tolist() for u in problem.usage],
    }
    edges = {
        "nodes": [[e.u, e.v] for e in problem.edges],
        "costs": [(1000 * e.cost).astype(int).ravel().tolist() for e in problem.edges],
    }
    return written(tmp_path, form(nodes=nodes, edges=edges, usage_limit=problem.limit))


def test_the_time_limit_returns_the_best_so_far(run: Run, tmp_path: Path) -> None:
    ran = run("solve", hard(tmp_path), "--json", "--time-limit", "2")
    data = ran.answer
    assert ran.status == 0
    assert data["feasible"]
    assert "time limit" in data["stop"]
    assert data["lower_bound"] < data["cost"]
    assert data["cost"] == data["trace"][-1][1]
