# pyright: basic
"""Contest instances, schedules of one's own, and shardings written by hand."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from planner.cli.solve import summary
from planner.files.plan_file import decoded
from planner.pipeline.schedule import build, price, read_own, write_schedule
from planner.result.by_hand import by_hand, read_shardings
from planner.result.plan import Plan
from planner.solver.budget import DEFAULT
from planner.solver.iopddl import read_instance
from planner.solver.solve import SolveOptions, solve

from ..damage import damaged
from ..kind import ACCEPTED, EQUAL, Files, Kind, expect
from ..values import as_json, changed
from .plans import NAME, saved_plans

INSTANCE = "i.json"
SMALL = 10_000  # entries of an instance that is solved
PRICED = 0.01
SOLVE = SolveOptions(time_limit_s=0.5, tolerance=0.0, budget=replace(DEFAULT, rounds=4))


@cache
def _instances() -> tuple[Files, ...]:
    found: list[Files] = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 5, 7).tolist()
        edges = [(u, v) for v in range(1, 7) for u in range(v) if rng.random() < 0.4]
        problem = {
            "name": f"small-{seed}",
            "nodes": {
                "intervals": [sorted(rng.integers(0, 20, 2).tolist()) for _ in sizes],
                "costs": [rng.integers(0, 100, n).tolist() for n in sizes],
                "usages": [rng.integers(0, 50, n).tolist() for n in sizes],
            },
            "edges": {
                "nodes": [list(edge) for edge in edges],
                "costs": [rng.integers(0, 50, sizes[u] * sizes[v]).tolist() for u, v in edges],
            },
            "usage_limit": 120,
        }
        text = json.dumps({"problem": problem}).encode()
        found.append({INSTANCE: gzip.compress(text, mtime=0) if seed == 2 else text})
    return tuple(found)


def _data(rng: Random, files: Files) -> tuple[str, Files]:
    (name,) = files
    packed = files[name].startswith(b"\x1f\x8b")
    text = gzip.decompress(files[name]) if packed else files[name]
    if packed and rng.random() < 0.3:
        how, data = damaged(rng, text)
    else:
        how, value = changed(rng, json.loads(text))
        data = as_json(rng, value)
    return f"data: {how}", {name: gzip.compress(data, 1) if packed else data}


def _use_instance(folder: Path, seed: Files, rng: Random) -> str:
    """A choice costs what is said, fits, and is not below the bound."""
    read = read_instance(folder / INSTANCE)
    problem = read.problem
    entries = sum(cost.size for cost in problem.node_cost) + sum(e.cost.size for e in problem.edges)
    if entries > SMALL:
        return ACCEPTED
    found = solve(problem, SOLVE)
    data = summary(read, found)
    json.dumps(data, allow_nan=False)
    if found.choice:
        expect(problem.is_feasible(found.choice), "a choice that does not fit")
        cost = problem.cost(found.choice)
        expect(found.cost == cost, f"a cost of {found.cost}, which is {cost}")
        expect(found.bound <= found.cost, f"a bound of {found.bound} above {found.cost}")
        exact = read.cost(found.choice)
        expect(math.isclose(float(exact), cost, rel_tol=1e-9, abs_tol=1e-9), "two costs")
    return ACCEPTED


# --- schedules ---------------------------------------------------------------------------------

SCHEDULE = "s.json"


@cache
def _schedules() -> tuple[Files, ...]:
    found: list[Files] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SCHEDULE
        for name in ("1f1b", "gpipe"):
            write_schedule(path, build(name, 3, 4))
            found.append({SCHEDULE: path.read_bytes()})
    raw = json.loads(found[0][SCHEDULE])
    raw["costs"] = {
        "forward_s": [1.0] * 3, "input_gradient_s": [1.0] * 3, "weight_gradient_s": [1.0] * 3,
    }  # fmt: skip
    return (*found, {SCHEDULE: json.dumps(raw).encode()})


def _use_schedule(folder: Path, seed: Files, rng: Random) -> str:
    found = read_own(folder / SCHEDULE)
    if found.costs and sum(len(table) for table in found.schedule.tables) < 200:
        priced = price(found)
        expect(math.isfinite(priced.timeline.step_s), "a step without an end")
        expect(priced.lower_bound_s <= priced.timeline.step_s * (1 + 1e-9), "below its bound")
    return ACCEPTED


# --- shardings ---------------------------------------------------------------------------------

SHARDINGS = "h.json"
BY_HAND = {
    "format": "meshwright-shardings", "version": 1, "mesh": [["data", 2], ["tensor", 4]],
    "arguments": {"params/w1": [None, "tensor"], "params/*": [], "x": [["data"], None]},
}  # fmt: skip


def _use_shardings(folder: Path, seed: Files, rng: Random) -> str:
    found = read_shardings(folder / SHARDINGS)
    if rng.random() < PRICED:
        plan = Plan(decoded(saved_plans()[0][NAME], "seed"))
        priced = by_hand(plan, found.arguments, mesh=dict(found.mesh))
        expect(math.isfinite(priced.step_s), "a step without an end")
    same = json.loads(seed[SHARDINGS])
    return EQUAL if found.arguments == same["arguments"] else ACCEPTED


def kinds(*, quick: bool) -> list[Kind]:
    shardings = {SHARDINGS: json.dumps(BY_HAND).encode()}
    return [
        Kind(
            "contest instance",
            _instances(),
            _use_instance,
            (_data,),
            2.0,
            ("solve", "{file}", "--time-limit", "1"),
        ),
        Kind("schedule", _schedules(), _use_schedule, (_data,), 1.0, ("simulate", "{file}")),
        Kind("shardings", (shardings,), _use_shardings, (_data,), 0.5),
    ]
