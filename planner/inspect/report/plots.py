"""Plots: memory over time, and step time against memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...common.units_text import bytes_text, seconds_text
from ...files.program_plan import ProgramPlan
from .markup import Markup, el, join

WIDTH, HEIGHT = 1000.0, 180.0
MOST_TIMES = 2.0  # slower plans are left out of the plot of time against memory
FLAT = 0.02  # share of the limit: below it the area would be a line
FINEST = 1.0  # points nearer to each other than this are drawn as the higher one


def draw_memory(
    points: Sequence[tuple[float, float]], end_s: float, limit: float | None, arguments: float
) -> Markup:
    """Memory of a device over the step, with the limit unless that is far above."""
    peak = max((held for _, held in points), default=0.0)
    far = limit is not None and peak < FLAT * limit
    top = max(0.0 if far else limit or 0.0, peak) or 1.0
    across = WIDTH / end_s if end_s > 0 else 0.0
    path = [f"M0 {HEIGHT:g}"]
    height = HEIGHT
    for x, held in _thinned(points, across):
        y = HEIGHT * (1 - held / top)
        path.append(f"L{x:.1f} {height:.1f} L{x:.1f} {y:.1f}")
        height = y
    path.append(f"L{WIDTH:g} {height:.1f} L{WIDTH:g} {HEIGHT:g} Z")
    line = None
    if limit is not None and not far:
        at = max(HEIGHT * (1 - limit / top), 1.0)
        line = el("path", d=f"M0 {at:.1f} H{WIDTH:g}", class_="limit",
                  vector_effect="non-scaling-stroke")  # fmt: skip
    under = "no limit" if limit is None else f"a limit of {bytes_text(limit)}"
    said = f"memory peaks at {bytes_text(peak)} under {under}"
    drawn = el(
        "svg", el("path", d=" ".join(path), class_="area"),
        line, view_box=f"0 0 {WIDTH:g} {HEIGHT:g}", preserve_aspect_ratio="none", role="img",
        aria_label=said,
    )  # fmt: skip
    marks = (el("span", seconds_text(end_s * part / 4) if part else "0") for part in range(5))
    about = (
        f"The area is memory in use, {bytes_text(peak)} at its peak; what is always there holds "
        f"{bytes_text(arguments)}."
        + ("" if limit is None or far else f" The dashed line is the limit, {bytes_text(limit)}.")
        + (f" The limit, {bytes_text(limit)}, is far above." if limit and far else "")
    )
    return el(
        "figure", el("div", drawn, el("div", *marks, class_="axis"), class_="plot"),
        el("figcaption", about),
    )  # fmt: skip


def _thinned(points: Iterable[tuple[float, float]], across: float) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for second, held in points:
        x = second * across
        if found and x - found[-1][0] < FINEST:
            found[-1] = (found[-1][0], max(found[-1][1], held))
        else:
            found.append((x, held))
    return found


def draw_pareto(program: ProgramPlan) -> Markup | None:
    """Plots step time against memory: this plan, hand-written plans, other meshes."""
    this = ("this plan", program.step_s, program.peak_bytes)
    others = [(name, b.step_s, b.peak_bytes) for name, b in sorted(program.baselines.items())]
    others += [(f"mesh {c.mesh}", c.step_s, c.peak_bytes) for c in program.candidates]
    near = MOST_TIMES * max(program.step_s, 1e-30)
    far = sum(p[1] > near for p in others)
    others = [p for p in others if p[1:] != this[1:] and p[1] <= near]
    if not others:
        return None
    points = [this, *others]
    front = pareto(points)
    (x0, x1), (y0, y1) = _range([p[1] for p in points]), _range([p[2] for p in points])

    def at(point: tuple[str, float, float]) -> tuple[float, float]:
        return (
            72 + 314 * (point[1] - x0) / (x1 - x0),
            222 - 205 * (point[2] - y0) / (y1 - y0),
        )

    line = " ".join(
        f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(map(at, front))
    )
    shapes = [
        el("path", d="M72 8 V222 H392", class_="arc"),
        el("path", d=line, class_="front") if len(front) > 1 else None,
        *(_dot(at(p), p, "dot-other", 4.5) for p in others), _dot(at(this), this, "dot-plan", 6.5),
        *_labels([(p[0], at(p)) for p in points if not p[0].startswith("mesh ")]),
        el("text", f"step, from {seconds_text(x0)} to {seconds_text(x1)} →", x=72, y=242,
           class_="soft"),
        el("text", bytes_text(y1), x=66, y=18, text_anchor="end", class_="soft"),
        el("text", bytes_text(y0), x=66, y=222, text_anchor="end", class_="soft"),
    ]  # fmt: skip
    drawn = el(
        "svg", *shapes, view_box="0 0 400 250", role="img", style="width:100%;max-width:560px",
        aria_label="step time against peak memory; the table of baselines has the figures",
    )  # fmt: skip
    left_out = f"; {far} slower than {MOST_TIMES:g} times this plan are left out" if far else ""
    names = ", ".join(p[0] for p in front)
    about = (
        "Step time against peak memory, both axes cut to the range. The filled dot is this plan, "
        f"rings are other plans{left_out}. Not beaten in both by any plan here: {names}."
    )
    return join([el("h3", "Time against memory"), el("figure", drawn, el("figcaption", about))])


def _dot(
    place: tuple[float, float], point: tuple[str, float, float], look: str, r: float
) -> Markup:
    said = f"{point[0]}: {seconds_text(point[1])}, {bytes_text(point[2])}"
    return el("circle", el("title", said), cx=place[0], cy=place[1], r=r, class_=look)


def _labels(points: Sequence[tuple[str, tuple[float, float]]]) -> list[Markup]:
    """Names beside their dots where there is space; the table has the others."""
    taken = [(x - 7, y - 7, x + 7, y + 7) for _, (x, y) in points]
    found: list[Markup] = []
    for name, (x, y) in points:
        width = 7.0 * len(name)
        for left, low in ((x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, y - 10)):
            box = (left, low - 11, left + width, low + 3)
            inside = box[0] >= 74 and box[2] <= 400 and box[1] >= 0
            if inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                found.append(el("text", name, x=round(left, 1), y=round(low, 1), class_="soft"))
                break
    return found


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or max(high, 1e-9) * 0.08
    return max(0.0, low - room), high + room


def pareto(points: Iterable[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Points without another one of less time and memory, fastest first."""
    front: list[tuple[str, float, float]] = []
    for point in sorted(points, key=lambda p: (p[1], p[2])):
        if not front or point[2] < front[-1][2]:
            front.append(point)
    return front
