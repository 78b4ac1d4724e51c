"""A sweep as one HTML file: what to use, pictures over devices, every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...common.units_text import bytes_text, dollars_text, seconds_text
from ..report.markup import Child, Markup, el, join, table
from ..report.page import document
from .advice import Advice, advice
from .draw import Chart, draw_chart, look
from .record import DEVICES, Line, Row, Sweep, lines_of

MOST_LINES = 12  # in a picture; the table has all


def _per_thousand(row: Row) -> float | None:
    return None if row.dollars is None else 1000 * row.dollars


TIME = Chart("Time of a step", lambda row: row.step_s, seconds_text, logarithmic=True, ideal=True)
DEVICE_TIME = Chart("Device time of a step", lambda row: row.device_seconds, seconds_text)
DOLLARS = Chart("Cost of 1,000 steps", _per_thousand, dollars_text)
MFU = Chart("MFU", lambda row: row.mfu, lambda share: f"{100 * share:.3g}%")

# Columns of the table: figure and text.
FIGURES: Mapping[str, tuple[Callable[[Row], float | None], Callable[[float], str]]] = {
    "step": (TIME.value, seconds_text),
    "memory": (lambda row: row.peak_bytes, bytes_text),
    "device time": (DEVICE_TIME.value, seconds_text),
    "1,000 steps": (_per_thousand, dollars_text),
    "MFU": (MFU.value, MFU.text),
    "examples/s": (lambda row: row.examples_per_s, "{:,.0f}".format),
    "tokens/s": (lambda row: row.tokens_per_s, "{:,.0f}".format),
}


def sweep_html(sweep: Sweep) -> str:
    """The page of a sweep."""
    lines, found = lines_of(sweep), advice(sweep)
    parts = {"Pictures": _pictures(sweep, lines), "All plans": _rows(sweep)}
    title = f"{sweep.target} on {sweep.cluster}, over {' and '.join(sweep.sweep)}"
    about = (
        f"Written by meshwright {sweep.planner}. Times are predictions of the cost model for one "
        "step; device time is devices times step, MFU matrix products, those computed again too, "
        "at the devices' peak rate as a share of the step."
    )
    return document(title, _tiles(sweep), parts, about, _lead(sweep, found))


def _lead(sweep: Sweep, found: tuple[Advice, ...]) -> Markup:
    sentences = [f"{each.sentence}." for each in found]
    if not sweep.complete:
        sentences.append("Interrupted: some combinations were not planned.")
    return el("div", *(el("p", text, class_="lead") for text in sentences))


def _tiles(sweep: Sweep) -> list[tuple[str, str, str]]:
    """The shortest step and the least device time of all rows."""
    fitting = [row for row in sweep.rows if row.fits]
    found = [("Combinations", str(len(sweep.rows)), f"{len(fitting)} of them fit")]
    for name, figure in (("Shortest step", TIME), ("Least device time of a step", DEVICE_TIME)):
        best = min(fitting, key=lambda row: figure.value(row) or 0.0, default=None)
        if best is not None:
            text = figure.text(figure.value(best) or 0.0)
            found.append((name, text, _swept(best)))
    return found


def _swept(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.swept.items())


def _pictures(sweep: Sweep, lines: tuple[Line, ...]) -> Markup:
    shown = lines[:MOST_LINES]
    priced = any(row.dollars is not None for row in sweep.rows)
    charts = [
        draw_chart(chart, shown, sweep.across)
        for chart in (TIME, DOLLARS if priced else DEVICE_TIME, MFU)
    ]
    if not any(charts):
        return el("p", "Nothing fits, so there is nothing to draw.")
    items = [
        el("li", el("span", class_=f"swatch {look(k)}", aria_hidden="true"), line.name)
        for k, line in enumerate(shown)
        if line.name
    ]
    said = ["Lines join rows that differ in nothing else."] if sweep.across == DEVICES else []
    said.append("A cross under the axis: no plan, most often because it does not fit.")
    said.append("Dotted: the step if every device worked at the speed of the first point's.")
    if len(lines) > len(shown):
        said.append(f"{len(lines) - len(shown)} more lines are in the table only.")
    return join([
        el("ul", *items, class_="legend") if items else None,
        el("div", *charts, class_="charts"), el("p", " ".join(said), class_="soft"),
    ])  # fmt: skip


def _rows(sweep: Sweep) -> Markup:
    names = list(sweep.sweep)
    found = [name for name in FIGURES if any(_figure(row, name) for row in sweep.rows)]
    rows: list[tuple[Child, ...]] = []
    for row in sweep.rows:
        values = [str(row.swept[name]) for name in names]
        last = _mesh(row) if row.fits else el("span", _why(row), class_="why")
        rows.append((*values, *(_figure(row, name) for name in found), last))
    sides = " " + "n" * (len(names) - 1 + len(found))
    head = (*names, *found, "plan")
    return table(f"Every combination of {' and '.join(names)}", head, rows, numeric=sides)


def _why(row: Row) -> str:
    return row.error.message if row.error else "does not fit"


def _figure(row: Row, name: str) -> str:
    """A figure of a row as text, empty where there is none."""
    value = FIGURES[name][0](row)
    return FIGURES[name][1](value) if value else ""


def _mesh(row: Row) -> str:
    mesh = " x ".join(f"{axis}={size}" for axis, size in (row.mesh or {}).items())
    stages = f"{row.stages} stages of " if row.stages and row.stages > 1 else ""
    parts = f", {row.microbatches} micro-batches" if (row.microbatches or 1) > 1 else ""
    return f"{stages}{mesh}{parts}"
