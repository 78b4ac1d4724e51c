"""The contest form: read strictly, forbidden and huge costs, exact sums, clear refusals."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.common.errors import PlanError
from planner.solver.iopddl import read_instance

SMALL = Path(__file__).parents[3] / "benchmarks/data/iopddl/asplos-2025-iopddl-B.json.gz"


def form(**changes: Any) -> dict[str, Any]:
    """A sound instance of two nodes; changes replace keys of the problem."""
    problem: dict[str, Any] = {
        "name": "two",
        "usage_limit": 10,
        "nodes": {
            "intervals": [[5, 9], [7, 10**15]],
            "costs": [[1, 2], [3, 10**18, 4]],
            "usages": [[6, 1], [6, 0, 5]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 7, 0, 0, 2 * 10**18]]},
    }
    return {"problem": problem | changes}


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_small_instance(tmp_path: Path) -> None:
    read = read_instance(written(tmp_path, form()))
    problem = read.problem
    assert (read.name, problem.size, problem.limit) == ("two", 2, 10.0)
    assert problem.node_cost[1].tolist() == [3.0, math.inf, 4.0]
    assert problem.edges[0].cost.tolist() == [[0.0, 0.0, 7.0], [0.0, 0.0, math.inf]]
    assert [(read.times[a], read.times[b]) for a, b in problem.intervals] == [(5, 9), (7, 10**15)]
    assert not problem.is_feasible((0, 0))  # 12 in use from 7 on
    assert problem.is_feasible((0, 2)) is False  # 11
    assert problem.is_feasible((1, 0))
    assert read.cost((1, 0)) == problem.cost((1, 0)) == 5


def test_packed_or_not(tmp_path: Path) -> None:
    packed = tmp_path / "instance.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(form()).encode()))
    assert read_instance(packed).cost((0, 2)) == 12


def test_whole_numbers_are_summed_exactly(tmp_path: Path) -> None:
    large = 2**53 + 1  # no floating-point number
    content = form(
        nodes={"intervals": [[0, 1]] * 3, "costs": [[large], [large], [1]], "usages": [[1]] * 3},
        edges={"nodes": [], "costs": []},
    )
    assert read_instance(written(tmp_path, content)).cost((0, 0, 0)) == 2 * large + 1


def test_a_published_instance() -> None:
    read = read_instance(SMALL)
    assert read.problem.size == 816
    assert read.problem.limit == 14_392_528


NODES = form()["problem"]["nodes"]
BAD: tuple[tuple[Any, str], ...] = (
    ("", "contest form"),
    ("[1, 2]", "contest form"),
    ('{"problem": {}}', "nodes"),
    ("{" * 100_000, "contest form"),
    (form(nodes=NODES | {"intervals": [[0, 1]]}), "intervals"),
    (form(nodes=NODES | {"usages": [[1, 1], [1, 1]]}), "node 1"),
    (form(nodes=NODES | {"usages": [[1, -1], [1, 1, 1]]}), "node 0"),
    (form(nodes=NODES | {"costs": [[1, "x"], [1, 1, 1]]}), "contest form"),
    (form(edges={"nodes": [[0, 2]], "costs": [[0] * 6]}), "edge 0"),
    (form(edges={"nodes": [[0, 1]], "costs": [[0] * 5]}), "expected 6"),
    (form(edges={"nodes": [[0, 1]], "costs": []}), "edges"),
    (form(usage_limit=-1), "limit"),
)


@pytest.mark.parametrize(("content", "says"), BAD, ids=range(len(BAD)))
def test_what_is_malformed_is_refused(tmp_path: Path, content: Any, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(PlanError, match=says) as raised:
        read_instance(path)
    assert raised.value.kind == "instance"
    assert raised.value.where == str(path)
    assert raised.value.remedy


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    torn = tmp_path / "torn.json.gz"
    torn.write_bytes(gzip.compress(json.dumps(form()).encode())[:60])
    for path in (tmp_path, tmp_path / "none.json", torn):
        with pytest.raises(PlanError, match=r"read|gzip"):
            read_instance(path)
