"""`meshwright compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import planner

from .. import result
from ..common.units_text import bytes_text, seconds_text
from .answer import Answer, progress
from .formats import has_format
from .parameters import AsJson
from .table import table

FirstPath = Annotated[Path, typer.Argument(metavar="A.JSON", help="A plan.")]
SecondPath = Annotated[
    Path, typer.Argument(metavar="B.JSON", help="Another plan, or shardings, to compare with it.")
]


def compare_command(a: FirstPath, b: SecondPath, as_json: AsJson = False) -> Answer:
    """Show two plans of one program, or a plan and hand-written shardings, side by side.

    B.JSON may have shardings instead of a plan; they are then priced for A's program and cluster.

    Exit status: 0 if both are plans of one program, 1 if not, 2 if one cannot be read.
    """
    if has_format(b, result.by_hand.FORMAT):
        first = planner.load(a)
        wanted = result.by_hand.read_shardings(b)
        with progress(as_json=as_json) as say:
            say("price the shardings")
            second = planner.by_hand(first, wanted.arguments, mesh=dict(wanted.mesh))
    else:
        first, second = planner.load(a), planner.load(b)
    found = planner.compare(first, second)
    names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
    return Answer(
        found.summary(),
        lambda width: comparison_page(found, names, width),
        0 if found.same_program else 1,
    )


def comparison_page(found: planner.Comparison, names: tuple[str, str], width: int | None) -> Text:
    """Two plans side by side.

    Args:
        found: the comparison.
        names: of the plans.
        width: of the terminal.
    """
    head = ("", *names, "b / a")
    parts = [Text(found.verdict(names), style="bold")]
    parts.append(table(head, _rows(found), width))
    if found.collectives:
        rows = [
            (row.kind, _total(row.a), _total(row.b), _ratio(row.a.seconds, row.b.seconds))
            for row in found.collectives
        ]
        parts.append(table(("collectives", *head[1:]), rows, width))
    if found.changes:
        rows = [
            (f"{row.kind} for {row.cause}", _spent(row.a_s), _spent(row.b_s),
             _signed(row.added_s))
            for row in found.changes
        ]  # fmt: skip
        parts.append(table(("what makes the difference", *names, "b - a"), rows, width))
    if found.arguments:
        head = ("arguments sharded differently", *names)
        parts.append(table(head, _alike(found.arguments), width))
    else:
        parts.append(Text("all arguments that both have are sharded alike"))
    if not found.same_program:
        parts.append(Text(f"plans of different programs: {found.difference}", style="red"))
    elif found.difference:
        parts.append(Text(found.difference, style="yellow"))
    return Text("\n\n").join(parts)


def _alike(rows: Sequence[result.compare.ArgumentRow]) -> list[tuple[str, str, str]]:
    """Rows that differ in one part of their names only, merged to one with `*` there."""
    kept: list[tuple[str, str, str]] = []
    at: dict[tuple[str, str, int, tuple[str, ...]], int] = {}
    for row in rows:
        parts = row.name.split("/")
        keys = [(row.a, row.b, k, (*parts[:k], *parts[k + 1 :])) for k in range(1, len(parts) - 1)]
        known = next((key for key in keys if key in at), None)
        if known is None:
            for key in keys:
                at[key] = len(kept)
            kept.append((row.name, row.a, row.b))
            continue
        held = kept[at[known]][0].split("/")
        held[known[2]] = "*"
        kept[at[known]] = ("/".join(held), row.a, row.b)
    return kept


def _spent(seconds: float) -> str:
    return seconds_text(seconds) if seconds else "none"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _rows(found: planner.Comparison) -> list[tuple[str, str, str, str]]:
    a, b = found.a, found.b

    def row(
        label: str, left: str, right: str, pair: tuple[float, float] | None = None
    ) -> tuple[str, str, str, str]:
        return label, left, right, _ratio(*pair) if pair else ""

    def seconds(label: str, left: float, right: float) -> tuple[str, str, str, str]:
        return row(label, seconds_text(left), seconds_text(right), (left, right))

    return [
        row("program", a.name, b.name),
        row("cluster", a.cluster, b.cluster),
        row("mesh", _mesh(a), _mesh(b)),
        row("found by", a.origin, b.origin),
        row("micro-batches", str(a.microbatches), str(b.microbatches)),
        seconds("step", a.step_s, b.step_s),
        seconds("compute", a.compute_s, b.compute_s),
        seconds("communication", a.communication_s, b.communication_s),
        seconds("exposed communication", a.exposed_s, b.exposed_s),
        row("memory", bytes_text(a.peak_bytes), bytes_text(b.peak_bytes),
            (a.peak_bytes, b.peak_bytes)),
        row("memory limit", bytes_text(a.limit_bytes), bytes_text(b.limit_bytes)),
        seconds("lower bound", a.lower_bound_s, b.lower_bound_s),
        row("gap", f"{a.gap:.2%}", f"{b.gap:.2%}"),
    ]  # fmt: skip


def _mesh(side: result.compare.ComparedPlan) -> str:
    return " x ".join(f"{axis}={size}" for axis, size in side.mesh.items()) or "one device"


def _total(total: result.compare.Total) -> str:
    if not total.count:
        return "none"
    return f"{total.count:.0f} x, {bytes_text(total.bytes)}, {seconds_text(total.seconds)}"


def _ratio(a: float, b: float) -> str:
    return f"{b / a:.2f}" if a > 0 else ""
