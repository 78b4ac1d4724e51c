"""A plan in stages as one HTML file: stages, Gantt chart, memory over time, why not otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from ...common.units_text import bytes_text, seconds_text
from ...files.plan_file import Pipeline, PlanFile, StageRow
from ...files.plan_text import chosen_text, hosted_text
from ...files.program_plan import ProgramPlan
from ...pipeline.file_schedule import priced_of
from ...pipeline.schedule import PIPELINES
from ..analysed_plan import AnalysedPlan
from ..at_a_glance import Glance, glance_of_stages
from ..timeline import predicted
from .arguments import groups
from .experts_section import experts
from .markup import Child, Markup, bar, el, join, table
from .page import document
from .schedule_page import critical, devices, gantt, memory, others
from .sections import causes, costs, layer, lead, tensors, timeline


def pipeline_html(file: PlanFile, pipeline: Pipeline, programs: Sequence[AnalysedPlan]) -> str:
    """The report of a plan in stages.

    Args:
        file: the plan.
        pipeline: how its stages make a step.
        programs: the search space around each of `file.programs`.
    """
    priced = priced_of(file)
    simulated = priced.timeline
    limits = (pipeline.limit_bytes,) * len(file.groups)
    glance = glance_of_stages(file, pipeline, programs)
    parts = {
        "Warnings": _warnings(pipeline),
        "Stages": _stages(file, pipeline),
        "Gantt": gantt(simulated),
        "Memory": memory(simulated, limits),
        "Devices": devices(simulated, limits),
        "What decides": critical(simulated),
        **experts(glance, programs),
        "Inside the stages": join([_inside(file, m, plan) for m, plan in enumerate(programs)]),
        "Why not another schedule": others(priced, PIPELINES),
        "Baselines": _baselines(pipeline),
    }
    tiles = [
        ("Step time, simulated", seconds_text(pipeline.step_s), f"{len(file.stages)} stages"),
        ("Idle", f"{simulated.bubble:.2%}", "of the devices' time in a step"),
        ("Peak memory of a device", bytes_text(file.peak_bytes),
         f"{file.peak_bytes / pipeline.limit_bytes:.0%} of {bytes_text(pipeline.limit_bytes)}"),
        _gap(file, pipeline),
        ("Micro-batches", str(pipeline.microbatches), f"schedule: {pipeline.schedule}"),
    ]  # fmt: skip
    cluster = pipeline.cluster.get("name", "cluster")
    about = (
        f"Written by meshwright {file.planner}. One device of the chart is the sub-mesh of a stage;"
        " times are simulated from the stages' predicted costs."
    )
    speed, *more = glance.rates() or ["unknown"]
    tiles.append(("Speed", speed, ", ".join(more)))
    tiles.append(_step_consists_of(glance))
    if glance.other:
        tiles.append(("Against other plans", f"{glance.times_as_fast:.2f} times as fast",
                      f"as {glance.against()}"))  # fmt: skip
    title = f"Plan for {pipeline.name} on {cluster}"
    return document(title, [*tiles, *costs(glance)], parts, about, lead(glance))


def _gap(file: PlanFile, pipeline: Pipeline) -> tuple[str, str, str]:
    """The figure of the lower bound; which pipelines it is of, the first words of the page say."""
    if not pipeline.lower_bound_s:
        return "Gap to the lower bound", "unknown", "no bound is known"
    bound = f"{seconds_text(pipeline.lower_bound_s)} for the pipelines named above"
    return "Gap to the lower bound", f"{file.gap:.2%}", bound


def _step_consists_of(glance: Glance) -> tuple[str, str, str]:
    first, *others = glance.parts() or ["nothing"]
    return "The step consists of", first, ", ".join(others)


def _warnings(pipeline: Pipeline) -> Markup:
    if not pipeline.warnings:
        return el("p", "None.")
    return el("ul", *(el("li", line) for line in pipeline.warnings), class_="warnings")


def _stages(file: PlanFile, pipeline: Pipeline) -> Markup:
    rows: list[tuple[Child, ...]] = []
    stages = zip(file.stages, file.members, file.costs, strict=True)
    for s, (stage, program, cost) in enumerate(stages):
        start, end = stage.devices
        mesh = " x ".join(f"{a}={n}" for a, n in program.mesh)
        micro = cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s
        rows.append(
            (
                str(s), f"{stage.layers[0]} to {stage.layers[1]}", f"{start} to {end - 1}",
                mesh, _kept(stage, program), seconds_text(micro),
                seconds_text(cost.once_s),
                bar(stage.step_s / pipeline.step_s), bytes_text(stage.peak_bytes),
                bytes_text(cost.sent_bytes),
            )
        )  # fmt: skip
    head = (
        "stage", "slots", "devices", "mesh", "recomputation", "micro-batch", "once", "busy",
        "peak memory", "sends",
    )  # fmt: skip
    return table("Stages of the program", head, rows, numeric="     nnnnn")


def _kept(stage: StageRow, program: ProgramPlan) -> str:
    """What a stage computes again, and what of the rest waits on the host."""
    again = chosen_text(program) or stage.recompute
    return ", ".join(filter(None, (again, hosted_text(stage, program))))


def _span(names: Sequence[str]) -> str:
    """The first and the last of some names, and how many there are."""
    if len(names) < 2:
        return "".join(names) or "no parameters"
    return f"{names[0]} to {names[-1]}, {len(names)} parameters"


def _inside(file: PlanFile, member: int, analysed: AnalysedPlan) -> Markup:
    """The program that some stages run: arguments, repeated part, time line, causes."""
    stages = [s for s, stage in enumerate(file.stages) if stage.program == member]
    names = {
        f"params/{i}": f"params/{name}" for i, name in enumerate(file.stages[stages[0]].params)
    }
    step = predicted(analysed)
    numbers = ", ".join(map(str, stages))
    title = f"Stages {numbers}" if len(stages) > 1 else f"Stage {numbers}"
    mesh = " x ".join(f"{axis}={size}" for axis, size in analysed.program.mesh)
    return el(
        "details",
        el("summary", f"{title} on {mesh}: {_span(file.stages[stages[0]].params)}"),
        el("h3", f"{title}: tensors"), tensors(groups(analysed, names)),
        el("h3", f"{title}: repeated layer"), layer(analysed, step),
        el("h3", f"{title}: time line, all micro-batches one after another"),
        timeline(analysed, step),
        el("h3", f"{title}: time and bytes by cause"), causes(analysed, step),
    )  # fmt: skip


def _baselines(pipeline: Pipeline) -> Markup:
    single = el("p", f"A plan of one program {pipeline.no_single}.") if pipeline.no_single else None
    if not pipeline.baselines:
        return single or el("p", "None were priced.")
    ranked = sorted(pipeline.baselines.items(), key=lambda item: item[1].step_s)
    rows = [
        (name, seconds_text(b.step_s), bytes_text(b.peak_bytes), "yes" if b.fits else "no", b.mesh)
        for name, b in ranked
    ]
    head = ("plan", "step", "peak memory", "fits", "mesh or stages")
    found = table("Other plans, priced alike", head, list(rows), numeric=" nn")
    return join([single, found] if single else [found])
