"""Instances of the ASPLOS 2025 contest: cost, bound and time beside the best known.

    python -m benchmarks contest [--tenth | --both] [--only A,B] [--data DIR]

DIR holds files such as asplos-2025-iopddl-A.json.gz from github.com/google/iopddl (Apache-2.0); the
smallest one, B, is in benchmarks/data/iopddl. Every instance is solved by a process of its
own, at its own time limit, a tenth of it, or both. Wall time counts the solver alone, process CPU
time also imports and reading.

Source of the columns `best known` (lowest from any source, * proven) and `XLA` (the organisers' run
of its auto-sharding): the contest's published results, benchmarks/data/contest.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from planner.cli.solve import summary
from planner.solver.budget import THOROUGH
from planner.solver.iopddl import read_instance
from planner.solver.solve import SolveOptions, solve

FOLDER = Path(__file__).parent / "data"
CARRIED = FOLDER / "iopddl"
QUICK = ("B",)
HEAD = (
    "| instance | limit s | cost | bound | gap | wall s | cpu s | peak GB | cost / best known "
    "| XLA / best known | stop |"
)
RULE = "|---|---|---|---|---|---|---|---|---|---|---|"


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows.

    Args:
        quick: the carried instance only.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks contest")
    parser.add_argument("--tenth", action="store_true", help="a tenth of each time limit")
    parser.add_argument("--both", action="store_true", help="own time limits, then a tenth")
    parser.add_argument("--only", default="", help="letters of instances, such as A,B")
    parser.add_argument("--data", type=Path, default=CARRIED, help="folder of the instances")
    given, _ = parser.parse_known_args()
    only = set(QUICK if quick else filter(None, given.only.split(",")))
    print(f"{HEAD}\n{RULE}")
    rows: list[dict[str, Any]] = []
    with (FOLDER / "contest.csv").open(encoding="utf-8") as file:
        known = list(csv.DictReader(file))
    shares = (1, 10) if given.both else (10,) if given.tenth else (1,)
    for share, row in itertools.product(shares, known):
        path = given.data / f"asplos-2025-iopddl-{row['instance']}.json.gz"
        if path.is_file() and (not only or row["instance"] in only):
            rows.append(row | measured(path, float(row["limit_s"]) / share))
            print(line(rows[-1]), flush=True)
    return rows


def measured(path: Path, limit_s: float) -> dict[str, Any]:
    """Solves one instance in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.contest", "--one", str(path), str(limit_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]) | {"limit_s": limit_s}


def one(path: Path, limit_s: float) -> dict[str, Any]:
    """Solves one instance in this process."""
    read = read_instance(path)
    options = SolveOptions(time_limit_s=limit_s, budget=THOROUGH, tolerance=0.0)
    data = summary(read, solve(read.problem, options))
    used = resource.getrusage(resource.RUSAGE_SELF)
    feasible = bool(data["choice"]) and read.problem.is_feasible(data["choice"])
    assert feasible == data["feasible"]
    data |= {"cpu_s": used.ru_utime + used.ru_stime, "peak_gb": used.ru_maxrss / 1e6}
    del data["choice"]
    return data


def line(row: dict[str, Any]) -> str:
    best = int(row["best_known"])
    cost, bound = row["cost"], row["lower_bound"]
    star = "*" if row["proven"] == "yes" else ""
    cells = (
        row["instance"], f"{row['limit_s']:g}", "none" if cost is None else f"{cost:,}",
        "" if bound is None else f"{bound:,.0f}", "" if row["gap"] is None else f"{row['gap']:.2%}",
        f"{row['seconds']:.1f}", f"{row['cpu_s']:.1f}", f"{row['peak_gb']:.2f}",
        "" if cost is None else f"{cost / best:.6f}{star}", row["xla_ratio"], row["stop"],
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(Path(sys.argv[2]), float(sys.argv[3]))))
    else:
        main()
