"""A plan in stages as one HTML file: stages, Gantt chart, memory over time, why not otherwise."""

from __future__ import annotations

from ..pipefile import PipelineFile
from ..pipeview import priced_of
from ..show import bytes_text, seconds_text
from .markup import Child, Markup, bar, el, table
from .page import document
from .schedule_page import critical, devices, gantt, memory, others


def pipeline_html(file: PipelineFile) -> str:
    """The report of a plan in stages."""
    priced = priced_of(file)
    timeline = priced.timeline
    limits = (file.limit_bytes,) * len(file.sizes)
    parts = {
        "Warnings": _warnings(file),
        "Stages": _stages(file),
        "Gantt": gantt(timeline),
        "Memory": memory(timeline, limits),
        "Devices": devices(timeline, limits),
        "What decides": critical(timeline),
        "Why not another schedule": others(priced),
        "Baselines": _baselines(file),
    }
    tiles = [
        ("Step time, simulated", seconds_text(file.step_s), f"{len(file.sizes)} stages"),
        ("Idle", f"{timeline.bubble:.2%}", "of the devices' time in a step"),
        ("Peak memory of a device", bytes_text(max(file.peak_bytes)),
         f"{max(file.peak_bytes) / file.limit_bytes:.0%} of {bytes_text(file.limit_bytes)}"),
        ("Gap to the lower bound", f"{1 - file.lower_bound_s / file.step_s:.2%}",
         f"bound {seconds_text(file.lower_bound_s)}"),
        ("Micro-batches", str(file.microbatches), f"schedule: {file.schedule}"),
    ]  # fmt: skip
    cluster = file.cluster.get("name", "cluster")
    about = (
        f"Written by meshwright {file.planner}. One device of the chart is the sub-mesh of a stage;"
        " times are simulated from the stages' predicted costs."
    )
    return document(f"Plan for {file.name} on {cluster}", tiles, parts, about)


def _warnings(file: PipelineFile) -> Markup:
    if not file.warnings:
        return el("p", "None.")
    return el("ul", *(el("li", line) for line in file.warnings), class_="warnings")


def _stages(file: PipelineFile) -> Markup:
    rows: list[tuple[Child, ...]] = []
    start = 0
    for s, size in enumerate(file.sizes):
        mesh = " x ".join(f"{a}={n}" for a, n in file.plans[file.members[s]].mesh)
        cost = file.costs[s]
        micro = cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s
        rows.append(
            (
                str(s), f"{file.cuts[s]} to {file.cuts[s + 1]}", f"{start} to {start + size - 1}",
                mesh, file.recompute[s], seconds_text(micro), seconds_text(cost.once_s),
                bar(file.stage_s[s] / file.step_s), bytes_text(file.peak_bytes[s]),
                bytes_text(cost.sent_bytes),
            )
        )  # fmt: skip
        start += size
    head = (
        "stage", "slots", "devices", "mesh", "recomputation", "micro-batch", "once", "busy",
        "peak memory", "sends",
    )  # fmt: skip
    return table("Stages of the program", head, rows, numeric="     nnnnn")


def _baselines(file: PipelineFile) -> Markup:
    if not file.baselines:
        return el("p", "None were priced.")
    ranked = sorted(file.baselines.items(), key=lambda item: item[1].step_s)
    rows = [
        (name, seconds_text(b.step_s), bytes_text(b.peak_bytes), "yes" if b.fits else "no", b.mesh)
        for name, b in ranked
    ]
    head = ("plan", "step", "peak memory", "fits", "mesh")
    return table("Plans in one program, priced alike", head, list(rows), numeric=" nn")
