"""A chart of lines over devices or another axis, with a place for what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..report.markup import Markup, el
from .record import Line, Point, Row

WIDTH, HEIGHT = 360.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 344.0, 14.0, 196.0
COLOURS = 6  # of lines, in the style sheet; the seventh is drawn like the first, dashed
MOST_LABELS = 8  # on the horizontal axis


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart shows of each row.

    title: also its accessible name.
    value: a positive figure of a row, or None.
    text: a figure with its unit.
    logarithmic: whether the vertical axis is; else it begins at 0.
    ideal: whether to draw what each line would be at the speed per device of its first point.
    """

    title: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    logarithmic: bool = False
    ideal: bool = False


def draw_chart(chart: Chart, lines: Sequence[Line], across: str) -> Markup | None:
    """The chart; None if no row has a figure."""
    known = [value for line in lines for p in line.fitting if (value := chart.value(p.row))]
    if not known:
        return None
    marks = _marks(min(known), max(known), logarithmic=chart.logarithmic)
    scale = _Scale(lines, marks, logarithmic=chart.logarithmic)
    shapes = [*_frame(scale, chart, across)]
    for number, line in enumerate(lines):
        shapes += _line(scale, chart, line, number)
        shapes += _crosses(scale, line, number, len(lines))
    drawn = el(
        "svg", *shapes, view_box=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", style="width:100%",
        aria_label=f"{chart.title} over {across}; the table has the figures",
    )  # fmt: skip
    return el("figure", el("h3", chart.title), drawn)


def look(number: int) -> str:
    """Class of a line's colour and dashes."""
    return f"line-{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


class _Scale:
    """Places of figures in the picture."""

    def __init__(self, lines: Sequence[Line], marks: Sequence[float], *, logarithmic: bool) -> None:
        self.labels = dict(sorted((p.x, p.label) for line in lines for p in line.points))
        self.marks, self.logarithmic = marks, logarithmic
        self.left, self.right = math.log(min(self.labels)), math.log(max(self.labels))

    def x(self, value: float) -> float:
        span = self.right - self.left
        share = (math.log(value) - self.left) / span if span else 0.5
        return LEFT + 10 + share * (RIGHT - LEFT - 20)

    def y(self, value: float) -> float:
        low, high = (self._height(mark) for mark in (self.marks[0], self.marks[-1]))
        return BOTTOM - (self._height(value) - low) / (high - low) * (BOTTOM - TOP)

    def _height(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


def _marks(low: float, high: float, *, logarithmic: bool) -> tuple[float, ...]:
    """Round figures that enclose a range: 1, 2, 5, 10, ... or multiples of one of them from 0."""
    if logarithmic:
        first = math.floor(math.log10(low))
        count = math.ceil(math.log10(high)) - first + 1
        steps = [n * 10.0 ** (first + k) for k in range(count + 1) for n in (1, 2, 5)]
        below = max(k for k, step in enumerate(steps) if step <= low * (1 + 1e-9))
        above = min(k for k, step in enumerate(steps) if step >= high * (1 - 1e-9))
        return tuple(steps[below : max(above, below + 1) + 1])
    power = 10.0 ** math.floor(math.log10(high))
    step = next(n * power / 10 for n in (2, 5, 10, 20, 50) if 5 * n * power / 10 >= high)
    return tuple(k * step for k in range(math.ceil(high / step - 1e-9) + 1))


def _frame(scale: _Scale, chart: Chart, across: str) -> list[Markup]:
    """Axes, their marks and names."""
    found: list[Markup] = []
    for mark in scale.marks:
        y = scale.y(mark)
        found.append(el("path", d=f"M{LEFT:g} {y:.1f} H{RIGHT:g}", class_="grid"))
        found.append(
            el("text", chart.text(mark) if mark else "0", x=LEFT - 6, y=y + 4, text_anchor="end",
               class_="soft")
        )  # fmt: skip
    every = math.ceil(len(scale.labels) / MOST_LABELS)
    for k, (value, label) in enumerate(scale.labels.items()):
        if k % every == 0:
            found.append(
                el("text", label, x=round(scale.x(value), 1), y=BOTTOM + 30, text_anchor="middle",
                   class_="soft")
            )  # fmt: skip
    middle = (LEFT + RIGHT) / 2
    found.append(el("text", across, x=middle, y=HEIGHT - 4, text_anchor="middle", class_="soft"))
    return found


def _line(scale: _Scale, chart: Chart, line: Line, number: int) -> list[Markup]:
    points = [(p, value) for p in line.fitting if (value := chart.value(p.row))]
    found: list[Markup] = []
    if chart.ideal and len(points) > 1:
        found.append(_ideal(scale, line, points))
    path = " ".join(
        f"{'L' if k else 'M'}{scale.x(p.x):.1f} {scale.y(value):.1f}"
        for k, (p, value) in enumerate(points)
    )
    if len(points) > 1:
        found.append(el("path", d=path, class_=f"line {look(number)}"))
    for p, value in points:
        said = f"{line.name or chart.title}, {p.label}: {chart.text(value)}"
        found.append(
            el("circle", el("title", said), cx=round(scale.x(p.x), 1),
               cy=round(scale.y(value), 1), r=3.5, class_=f"dot {look(number)}")
        )  # fmt: skip
    return found


def _crosses(scale: _Scale, line: Line, number: int, lines: int) -> list[Markup]:
    """A cross under the axis for each combination without a plan, those of lines side by side."""
    apart = min(8.0, 32.0 / lines)
    found: list[Markup] = []
    for p in line.points:
        if p.row.fits:
            continue
        why = p.row.error.message if p.row.error else "does not fit"
        x = scale.x(p.x) + (number - (lines - 1) / 2) * apart
        cross = f"M{x - 3:.1f} {BOTTOM + 6:g} l6 6 m-6 0 l6 -6"
        said = el("title", f"{line.name or 'this plan'}, {p.label}: {why}")
        found.append(el("path", said, d=cross, class_=f"line {look(number % COLOURS)}"))
    return found


def _ideal(scale: _Scale, line: Line, points: Sequence[tuple[Point, float]]) -> Markup:
    """A dotted line: the step at the speed per device of the first point."""
    (first, value), (last, _) = points[0], points[-1]
    end = value if line.grows else value * first.x / last.x
    low = scale.marks[0]
    x = last.x if end >= low or line.grows else first.x * value / low
    path = f"M{scale.x(first.x):.1f} {scale.y(value):.1f} "
    path += f"L{scale.x(x):.1f} {scale.y(max(end, low)):.1f}"
    return el("path", d=path, class_="ideal")
