"""`meshwright solve`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import solver
from ..common.stop import Stop
from . import wishes
from .answer import Answer, progress
from .parameters import AsJson
from .table import table

TIME_LIMIT_S = 60.0
ROWS = 12  # of what is shown of the search

InstancePath = Annotated[
    Path,
    typer.Argument(
        metavar="INSTANCE.JSON", help="A problem in contest form, packed with gzip or not."
    ),
]
TimeLimit = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time for solving; reading comes on top.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="SOLUTION.JSON", help="Write what --json prints."),
]


def solve_command(
    instance: InstancePath,
    time_limit: TimeLimit = TIME_LIMIT_S,
    output: Output = None,
    as_json: AsJson = False,
) -> Answer:
    """Solve an intra-op problem in the form of the ASPLOS 2025 contest.

    Finds one strategy per node, with the least sum of costs, that keeps the memory limit at every
    moment, and a proven bound. Ctrl-C ends the search with the best found so far. Exit status: 0 a
    solution was found, 1 there is none or none was found in time, 2 wrong use.
    """
    limit_s = wishes.time_limit_s(time_limit)
    if output is not None:
        wishes.check_writable(output)
    with progress(as_json=as_json) as say:
        say(f"reading {instance}")
        read = solver.iopddl.read_instance(instance)

        def watch(point: solver.problem.Point) -> None:
            say(f"{point[0]:.1f} s: cost {point[1]:.10g}, bound {point[2]:.10g}")

        options = solver.solve.SolveOptions(
            time_limit_s=limit_s, budget=solver.budget.THOROUGH, tolerance=0.0, interruptible=True
        )
        say("solving")
        found = solver.solve.solve(read.problem, options, watch=watch)
    data = summary(read, found)
    if output is not None:
        solver.iopddl.write_solution(output, data)
    written = f"\n\nwritten to {output}" if output is not None else ""
    return Answer(
        data, lambda width: _text(data, width).append(written), 0 if data["feasible"] else 1
    )


def summary(read: solver.iopddl.Instance, found: solver.problem.IntraSolution) -> dict[str, Any]:
    """What `--json` prints; costs that are whole numbers are exact."""
    feasible = bool(found.choice) or (not read.problem.size and found.stop is Stop.OPTIMAL)
    cost = read.cost(found.choice) if feasible else None
    bound: int | float | None = found.bound if math.isfinite(found.bound) else None
    if cost is not None and bound is not None:
        bound = cost if found.bound >= found.cost else min(bound, cost)
    gap = None
    if cost is not None and bound is not None:
        gap = (cost - bound) / abs(cost) if cost else 0.0
    data: dict[str, Any] = {
        "name": read.name, "feasible": feasible, "cost": cost, "lower_bound": bound, "gap": gap,
        "stop": found.stop.value, "seconds": found.seconds, "choice": list(found.choice),
        "trace": [[_known(x) for x in point] for point in found.trace],
    }  # fmt: skip
    if found.stop is Stop.INFEASIBLE:
        data["stop"] = "proved infeasible"
        why = solver.conflict(read.problem, read.times)
        data["conflict"] = {
            "text": why.text, "moment": why.moment, "nodes": list(why.nodes),
            "least": why.least_bytes, "limit": read.problem.limit,
        }  # fmt: skip
    return data


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(data: dict[str, Any], width: int | None) -> Text:
    lines = [Text(data["name"], style="bold")]
    if data["feasible"]:
        lines.append(Text(f"  cost        {_number(data['cost'])}, feasible"))
    else:
        lines.append(Text("  cost        none: no feasible solution", style="red"))
    if data["lower_bound"] is not None:
        lines.append(Text(f"  lower bound {_number(data['lower_bound'])}"))
    if data["gap"] is not None:
        lines.append(Text(f"  gap         {100 * data['gap']:.4g} %"))
    lines.append(Text(f"  stop        {data['stop']}, after {data['seconds']:.1f} s"))
    if "conflict" in data:
        lines.append(Text(f"  conflict    {data['conflict']['text']}", style="red"))
        named = ", ".join(map(str, data["conflict"]["nodes"]))
        lines += [Text(f"  nodes       {named}")] if named else []
    text = Text("\n").join(lines)
    if data["trace"]:
        text.append("\n\n").append(_history(data["trace"], width))
    return text


def _history(trace: list[list[float | None]], width: int | None) -> Text:
    """Some of the points at which the cost or the bound got better; the last one always."""
    step = max(1, math.ceil(len(trace) / ROWS))
    shown = trace[::-1][::step][::-1]
    rows = [
        (f"{seconds:.2f} s", "" if cost is None else _number(cost),
         "" if bound is None else _number(bound))
        for seconds, cost, bound in shown
    ]  # fmt: skip
    return table(("time", "cost", "bound"), rows, width)


def _number(value: float) -> str:
    whole = value == math.floor(value)
    return f"{int(value):,}" if whole else f"{value:,.10g}"
