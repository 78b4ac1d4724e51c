"""The sections of a report, each from a plan's figures to markup."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice

from costmodel import Cluster

from ...common.stop import Stop, stop_text
from ...common.units_text import bytes_text, seconds_text
from ...files.plan_file import StageRow
from ..analysed_plan import AnalysedPlan
from ..at_a_glance import Glance
from ..kept_values import KEPT, left_to_backward
from ..timeline import Predicted
from .arguments import Group
from .draw_layer import draw_block
from .draw_mesh import draw_mesh
from .lanes import draw_lanes, lanes_of_step
from .layer import repeated_block
from .markup import Markup, bar, el, join, table
from .plots import draw_memory, draw_pareto
from .runners import Runner

MOST_ROWS = 200
MOST_CAUSES = 15
MOST_LEFT = 20


def lead(glance: Glance) -> Markup:
    """What the plan is, then the questions of its reader with their answers."""
    answers = {
        "Is it good?": glance.how_good(),
        "What limits it?": glance.limited_by,
        "How sure is that?": glance.accuracy,
        "What next?": glance.what_next,
    }
    said = (
        el("p", el("strong", question), " ", _commands(_begun(text)), ".")
        for question, text in answers.items()
        if text
    )
    return join([el("p", f"{_begun(glance.what())}.", class_="lead"), *said])


def _begun(text: str) -> str:
    return text[:1].upper() + text[1:]


def _commands(text: str) -> Markup:
    """Text with commands between backquotes, whose words are not broken, as at `--`."""

    def command(part: str) -> Markup:
        first, *others = (el("span", word) for word in part.split(" "))
        return el("code", first, *(each for word in others for each in (" ", word)))

    parts = text.split("`")
    return join([command(part) if k % 2 else part for k, part in enumerate(parts)])


def costs(glance: Glance) -> list[tuple[str, str, str]]:
    """Price and energy of a step as a figure of the page, where prices are given."""
    first, *others = glance.costs() or [""]
    value, _, more = first.partition(" a step")
    rest = ", ".join(filter(None, (more.strip(" ()"), *others)))
    return [("Cost of a step", value, rest)] if first else []


def tiles(analysed: AnalysedPlan, glance: Glance) -> list[tuple[str, str, str]]:
    """The figures that matter most: name, value, more."""
    f = analysed.program
    gap = max(0.0, (f.step_s - f.lower_bound_s) / f.step_s) if f.step_s else 0.0
    share = f.peak_bytes / f.limit_bytes if f.limit_bytes else 0.0
    mesh = " x ".join(f"{axis}={size}" for axis, size in f.mesh)
    parts = f" in {f.microbatches} micro-batches" if f.microbatches > 1 else ""
    found = [
        ("Step time, predicted", seconds_text(f.step_s) + parts,
         f"{seconds_text(f.compute_s)} compute, {seconds_text(f.exposed_s)} exposed of "
         f"{seconds_text(f.communication_s)} communication"),
        ("Mesh", mesh, f"{glance.layout}; found by: {f.origin}"),
    ]  # fmt: skip
    if glance.other:
        found.append((
            "Against hand-written plans", f"{glance.times_as_fast:.2f} times as fast",
            f"as {glance.other}, the fastest that fits",
        ))  # fmt: skip
    speed, *rest = glance.rates() or ["unknown"]
    first, *others = glance.parts() or ["nothing"]
    return [
        *found,
        ("Gap to the lower bound", f"{gap:.2%}", stop_text(Stop[f.stop], f.warnings)),
        ("Speed", speed, ", ".join(rest)),
        *costs(glance),
        ("The step consists of", first, ", ".join(others)),
        ("Peak memory of a device", bytes_text(f.peak_bytes),
         f"{share:.0%} of {bytes_text(f.limit_bytes)}, {bytes_text(glance.memory_left)} left"),
        ("Collectives", f"{sum(c.count for c in f.collectives):.0f}",
         f"{bytes_text(sum(c.bytes for c in f.collectives))} sent by each device"),
    ]  # fmt: skip


def warnings(analysed: AnalysedPlan, step: Predicted) -> Markup:
    """The plan's warnings, and whether this version prices it as the file states."""
    lines = list(analysed.program.warnings)
    f, now = analysed.program, step.account
    if not (_near(now.step_s, f.step_s) and _near(now.peak_bytes, f.peak_bytes)):
        lines.append(
            f"this version of the cost model prices the plan at {seconds_text(now.step_s)} and "
            f"{bytes_text(now.peak_bytes)}, the file says {seconds_text(f.step_s)} and "
            f"{bytes_text(f.peak_bytes)}; pictures show the former, so plan again"
        )
    if not lines:
        return el("p", "None.")
    return el("ul", *(el("li", line) for line in lines), class_="warnings")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.01 * max(abs(a), abs(b))


def machine(analysed: AnalysedPlan, stages: Sequence[StageRow]) -> Markup:
    """The mesh drawn, and the stages."""
    f, cluster = analysed.program, analysed.cluster
    axes = ", ".join(f"{axis} of {size}" for axis, size in f.mesh)
    across = (
        f"; {f.mesh[0][0]} runs down, {' and '.join(a for a, _ in f.mesh[1:])} across"
        if len(f.mesh) > 1
        else ""
    )
    about = (
        f"{cluster.num_devices} devices, {cluster.devices_per_host} on each host. Mesh axes, "
        f"outermost first: {axes}. Devices are numbered row by row{across}."
    )
    drawn = draw_mesh(analysed.decisions.mesh, cluster)
    rows = [
        (
            str(n), f"{s.layers[0]} to {s.layers[1]}", f"{s.devices[0]} to {s.devices[1] - 1}",
            " x ".join(f"{a}={size}" for a, size in f.mesh), seconds_text(s.step_s),
            bytes_text(s.peak_bytes), s.recompute,
        )
        for n, s in enumerate(stages)
    ]  # fmt: skip
    head = ("stage", "operations", "devices", "mesh", "step", "peak memory", "recomputation")
    return join(
        [
            el("p", about),
            el("figure", drawn, el("figcaption", _hosts(cluster)))
            if drawn is not None
            else el("p", "There are too many devices to draw.", class_="soft"),
            table("Stages of the program", head, list(rows), numeric="    nn"),
        ]
    )


def _hosts(cluster: Cluster) -> str:
    if cluster.num_hosts == 1:
        return "All devices are on one host."
    return f"Each shade is one host, {cluster.devices_per_host} devices in a row of numbers."


def tensors(found: tuple[Group, ...]) -> Markup:
    """Which argument is split how."""
    rows = [
        (
            el("code", g.name), el("code", g.sharding), g.local, bytes_text(g.local_bytes),
            str(g.count), el("code", g.type), g.role,
        )
        for g in found[:MOST_ROWS]
    ]  # fmt: skip
    head = ("argument", "sharding", "on one device", "bytes of a device", "count", "type", "role")
    rest = len(found) - MOST_ROWS
    about = (
        "A sharding has one entry for each dimension: the mesh axes that split it, or - where it "
        "is whole. Arguments that differ only in a number are one row."
    )
    return join(
        [
            el("p", about),
            table("Arguments and their shardings, largest first", head, list(rows),
                  numeric="   nn"),
            el("p", f"{rest} more rows are left out.", class_="soft") if rest > 0 else None,
        ]
    )  # fmt: skip


def layer(analysed: AnalysedPlan, step: Predicted) -> Markup:
    """The repeated part with its shardings and collectives."""
    block = repeated_block(analysed, step)
    if not block.rows:
        return el("p", "The program has no heavy operations to draw.")
    times = (
        f"This part runs {block.times} times in a step; it is drawn once."
        if block.times > 1
        else "Nothing repeats; the whole program is drawn."
    )
    more = f" {block.left_out} further operations are left out." if block.left_out else ""
    about = (
        f"{times}{more} Boxes hold the result with its sharding and what each mesh axis does; "
        "lines between boxes name collectives, also those that gather an argument before this "
        "part starts. Arcs at the left say who reads whom."
    )
    return join([el("p", about), el("figure", draw_block(block))])


def timeline(analysed: AnalysedPlan, step: Predicted) -> Markup:
    """The timeline, and memory over the same time."""
    about = (
        "One step as predicted, in program order; every device does the same. Operations run one "
        "after another, collectives beside them as far as that is predicted, and a loop is shown "
        "once with the time of all its rounds. Point at a bar to read what it is."
    )
    return join(
        [
            el("p", about), draw_lanes(lanes_of_step(step), step.end_s),
            el("h3", "Memory over time"),
            draw_memory(
                step.memory, step.end_s, analysed.program.limit_bytes,
                analysed.program.argument_bytes,
            ),
            left(analysed),
        ]
    )  # fmt: skip


def left(analysed: AnalysedPlan) -> Markup | None:
    """What the forward pass leaves to the backward pass; None if there is none."""
    found = left_to_backward(analysed)
    if not found:
        return None
    by_state = groupby(found, key=lambda one: one.state)
    shown = [one for _, its in by_state for one in islice(its, MOST_LEFT)]
    rows = [
        (
            one.state, el("code", one.op), el("code", one.source), bytes_text(one.nbytes),
            seconds_text(one.seconds) if one.seconds else "",
        )
        for one in shown
    ]  # fmt: skip
    kept = sum(one.nbytes for one in found if one.state == KEPT)
    rest = len(found) - len(shown)
    about = (
        f"When the forward pass ends, a device holds {bytes_text(kept)} of its results for the "
        "backward pass. Bytes of what is computed again are what keeping it would take; seconds "
        "are those of computing it again, or of its copies to the host and back."
        + (f" {rest} smaller ones are left out." if rest > 0 else "")
    )
    head = ("state", "operation", "line", "bytes of a device", "seconds")
    return join([el("p", about), table("Left to the backward pass", head, rows, numeric="   nn")])


def causes(analysed: AnalysedPlan, step: Predicted) -> Markup:
    """Where time and bytes go."""
    f = analysed.program
    total = max(f.compute_s + f.communication_s, 1e-30)
    rows = [
        (
            f"{c.kind} for {c.cause}", "*".join(c.axes), f"{c.count:g}", bytes_text(c.bytes),
            seconds_text(c.seconds), bar(c.seconds / total, c.kind),
        )
        for c in f.collectives[:MOST_CAUSES]
    ]  # fmt: skip
    rest = f.collectives[MOST_CAUSES:]
    if rest:
        rows.append(
            (
                f"{len(rest)} more causes", "", f"{sum(c.count for c in rest):g}",
                bytes_text(sum(c.bytes for c in rest)), seconds_text(sum(c.seconds for c in rest)),
                bar(sum(c.seconds for c in rest) / total, "all-gather"),
            )
        )  # fmt: skip
    work: dict[str, list[float]] = {}
    for event in step.events:
        if event.lane == "compute":
            row = work.setdefault(event.cause, [0.0, 0.0])
            row[0] += event.seconds
            row[1] += event.count
    dearest = sorted(work.items(), key=lambda item: (-item[1][0], item[0]))
    shown = [
        (cause, f"{count:g}", seconds_text(seconds), bar(seconds / total))
        for cause, (seconds, count) in dearest[:MOST_CAUSES]
    ]
    left = dearest[MOST_CAUSES:]
    if left:
        seconds = sum(row[0] for _, row in left)
        runs = sum(row[1] for _, row in left)
        shown.append(
            (f"{len(left)} more", f"{runs:g}", seconds_text(seconds), bar(seconds / total))
        )
    head = ("collective and cause", "over", "runs", "bytes sent", "seconds", "share of the sum")
    return join(
        [
            table("Collectives of one device and step", head, list(rows), numeric="  nnn")
            if rows
            else el("p", "There are no collectives."),
            table("Compute of one device and step", ("operation", "runs", "seconds",
                  "share of the sum"), list(shown), numeric=" nn"),
        ]
    )  # fmt: skip


def baselines(analysed: AnalysedPlan) -> Markup:
    """Hand-written plans beside this one, and the front of time against memory."""
    f = analysed.program
    rows = sorted(f.baselines.items(), key=lambda item: (not item[1].fits, item[1].step_s))
    slowest = max([f.step_s, *(b.step_s for _, b in rows)])
    shown = [
        (
            "this plan", seconds_text(f.step_s), "1.00", bytes_text(f.peak_bytes),
            " x ".join(f"{a}={n}" for a, n in f.mesh), bar(f.step_s / slowest), "",
        )
    ]  # fmt: skip
    for name, b in rows:
        over = b.peak_bytes - f.limit_bytes
        verdict = (
            f"does not fit: {bytes_text(over)} over the limit"
            if not b.fits
            else f"{(b.step_s / f.step_s - 1):.1%} slower"
            if b.step_s > f.step_s * (1 + 1e-6)
            else "as fast"
        )
        shown.append(
            (
                name, seconds_text(b.step_s), f"{b.step_s / f.step_s:.2f}" if f.step_s else "",
                bytes_text(b.peak_bytes), b.mesh.replace(",", " x "), bar(b.step_s / slowest),
                verdict,
            )
        )  # fmt: skip
    head = ("plan", "step", "ratio", "peak memory", "mesh", "step, drawn", "why not")
    drawn = draw_pareto(f)
    return join(
        [
            table("Well-known layouts, priced by the same cost model", head, list(shown),
                  numeric=" nnn")
            if rows
            else el("p", "No baselines were priced."),
            drawn,
        ]
    )  # fmt: skip


def runners_up(found: tuple[Runner, ...]) -> Markup:
    """What else the largest arguments could have been."""
    if not found:
        return el("p", "No argument has another option.")
    rows = [
        (el("code", r.name), el("code", r.chosen), el("code", r.option), r.verdict) for r in found
    ]
    about = (
        "For the largest arguments, the nearest other sharding with everything else left as it "
        "is: the real extra cost is at most this. meshwright explain PLAN.JSON NAME solves the "
        "rest anew and gives it exactly."
    )
    head = ("argument", "chosen", "runner-up", "adds to the step, at most")
    return join([el("p", about), table("Runners-up", head, list(rows))])
