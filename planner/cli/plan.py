"""`meshwright plan`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import planner
import profiles

from ..common.errors import PlanError
from ..common.interruption import ADVICE
from ..common.options import Options
from . import wishes
from .answer import Answer, progress
from .failure import INTERRUPTED
from .notes import notes
from .page import page
from .parameters import AsJson
from .planned import planned
from .platforms import choose_platform
from .sweep.run import sweep
from .target import load_target


def complete_cluster(incomplete: str) -> list[str]:
    """Names for the shell to complete."""
    count = "".join(re.findall(r"^\d+x", incomplete))
    device = incomplete.removeprefix(count)
    return [f"{count}{name}" for name in profiles.profile_aliases() if name.startswith(device)]


TargetText = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py:NAME or PACKAGE.MODULE:NAME. NAME is called without arguments and returns "
        "(fn, args) or (fn, args, kwargs_for_plan).",
    ),
]
ClusterText = Annotated[
    str,
    typer.Option(
        "--cluster", "-c", metavar="NAME", autocompletion=complete_cluster,
        help="The machine: COUNTxDEVICE[:PER_HOST] such as 8xh100 or 64xv100-16gb:8, host for "
        "the devices present, or a YAML or JSON file. See `meshwright clusters`.",
    ),
]  # fmt: skip
OutputPath = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="PLAN.JSON", help="Write the plan to this file."),
]
MemoryText = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of a device to use, such as 70GB or 64GiB."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Time for solving; tracing comes on top. Default: 60."),
]
PinTexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN=SPEC",
        help="Sharding of the arguments whose name matches, one entry per dimension: - whole, "
        "* anything, a number of parts, or mesh axes (x, x*y). May be repeated.",
    ),
]
ForbidTexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN=DIM", help="Dimension of arguments to leave whole. May be repeated."
    ),
]
MeshText = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        help="Shape of the mesh, such as 2x4, or data=2,tensor=4 with names of its axes; searched "
        "if not given.",
    ),
]
ShardingsText = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What becomes of shardings that the program is written with: pin (the default), or "
        "warn.",
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Parts of a batch, for targets with optimizer=; chosen if not given."
    ),
]
PipelineText = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Stages, for targets with optimizer=: a number; off for one program; "
        "auto (the default) for a pipeline where it is faster.",
    ),
]
ScheduleNames = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...", help="Schedules of a pipeline to choose from, such as 1f1b,zb-h1."
    ),
]
NoBaselines = Annotated[
    bool, typer.Option("--no-baselines", help="Do not price the hand-written plans.")
]
NoSubstitutions = Annotated[
    bool,
    typer.Option("--no-substitutions", help="Do not rewrite the program."),
]
NoPadding = Annotated[
    bool,
    typer.Option("--no-padding", help="Do not pad dimensions whose sizes do not divide."),
]
NoSequenceOrder = Annotated[
    bool,
    typer.Option("--no-sequence-order", help="Keep no sequence in zigzag between layers."),
]
NoSortInBlocks = Annotated[
    bool,
    typer.Option("--no-sort-in-blocks", help="Sort rows of experts all together."),
]
SubstitutionsText = Annotated[
    str | None,
    typer.Option(
        "--substitutions", metavar="WORTH",
        help="Rewrite only by rules that are worth so much in floats: exact, reassociated, "
        "bounded (the default) or unbounded.",
    ),
]  # fmt: skip
RecomputeText = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What a backward pass computes again: auto (the default), search, written, none, "
        "selective or full.",
    ),
]
OffloadText = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What may be kept in the host's memory: auto (the default: what the program sends "
        "there, and where memory is short what compute hides the copies of) or never.",
    ),
]
AttentionText = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What runs attention that is written out in 16-bit numbers: auto (the default: the "
        "kernel of the devices where that pays), kernel or written.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Neither look the plan up in the plan store nor keep it there."
    ),
]

ProgressLines = Annotated[
    bool,
    typer.Option(
        "--progress",
        help="Say on standard error what is searched and the best step so far, also where that is "
        "no terminal.",
    ),
]
SweepTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", metavar="NAME=VALUES,...",
        help="Plan for each combination, such as devices=8..512,batch=64,128: 8..512 doubles, and "
        "batch=4/device grows with the devices. devices replaces the cluster's; others are keyword "
        "arguments of TARGET's function.",
    ),
]  # fmt: skip
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", help="Processes of a sweep; one per core if absent."),
]
SweepReport = Annotated[
    Path | None,
    typer.Option("--report", metavar="SWEEP.HTML", help="Write a sweep as a page with pictures: "
                 "time, cost and MFU over devices."),
]  # fmt: skip
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Sweep on a Ray cluster that runs: auto, or "
                 "HOST:PORT."),
]  # fmt: skip


def plan_command(
    target: TargetText,
    cluster: ClusterText,
    output: OutputPath = None,
    memory: MemoryText = None,
    time_limit: TimeLimit = None,
    pin: PinTexts = None,
    forbid: ForbidTexts = None,
    mesh: MeshText = None,
    shardings: ShardingsText = None,
    microbatches: Microbatches = None,
    pipeline: PipelineText = None,
    schedules: ScheduleNames = None,
    recompute: RecomputeText = None,
    offload: OffloadText = None,
    attention: AttentionText = None,
    no_baselines: NoBaselines = False,
    substitutions: SubstitutionsText = None,
    no_substitutions: NoSubstitutions = False,
    no_padding: NoPadding = False,
    no_sequence_order: NoSequenceOrder = False,
    no_sort_in_blocks: NoSortInBlocks = False,
    no_cache: NoCache = False,
    sweep_texts: SweepTexts = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    report: SweepReport = None,
    progress_lines: ProgressLines = False,
    as_json: AsJson = False,
) -> Answer:
    """Find the fastest sharding that fits in memory.

    With --sweep, for each combination of some values: a table of step time, memory, cost and MFU,
    and how many devices are worth it. No GPU is needed to plan for one. Ctrl-C ends the search
    with the best plan found so far.
    Exit status: 0 a plan was found, 1 nothing fits, 2 wrong use, 130 interrupted.
    """
    given: dict[str, Any] = {
        "memory_bytes": None if memory is None else wishes.memory_bytes(memory),
        "time_limit_s": None if time_limit is None else wishes.time_limit_s(time_limit),
        "pins": wishes.pins(pin) if pin else None,
        "forbidden": wishes.forbidden(forbid) if forbid else None,
        "mesh": None if mesh is None else wishes.mesh_shape(mesh),
        "shardings": shardings,
        "microbatches": microbatches,
        "pipeline": None if pipeline is None else wishes.stages(pipeline),
        "schedules": None if schedules is None else tuple(schedules.split(",")),
        "recompute": recompute,
        "offload": offload,
        "attention": attention,
        "baselines": False if no_baselines else None,
        "substitutions": wishes.substitutions(substitutions, off=no_substitutions),
        "padding": False if no_padding else None,
        "sequence_order": False if no_sequence_order else None,
        "sort_in_blocks": False if no_sort_in_blocks else None,
        "cache": False if no_cache else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    Options(**given)
    choose_platform(cluster)
    for path in filter(None, (output, report)):
        wishes.check_writable(path)
    if sweep_texts:
        return sweep(
            target, cluster, given, sweep_texts, jobs=jobs, ray=ray, output=output,
            report=report, as_json=as_json,
        )  # fmt: skip
    _only_with_sweep(jobs=jobs, ray=ray, report=report)
    with notes(), progress(as_json=as_json, wanted=progress_lines) as say:
        found, status = _planned(target, cluster, given, say)
    if output is not None:
        found.save(output)
    written = f"\n  written to {output}" if output is not None else ""
    return Answer(found.summary(), lambda _: page(f"{found}{written}"), status)


def _planned(
    target: str, cluster: str, given: dict[str, Any], say: Callable[[str], None]
) -> tuple[planner.Plan, int]:
    """The plan and the exit status; after Ctrl-C the best plan found by then."""
    try:
        return planned(target, load_target(target), cluster, given, say), 0
    except planner.Interrupted as stopped:
        sys.stderr.write(f"interrupted: {ADVICE}\n")
        return stopped.plan, INTERRUPTED


def _only_with_sweep(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise PlanError(
                "is used only with --sweep", kind="bad-option", where=f"--{name}",
                remedy="leave it out, or say what to sweep",
            )  # fmt: skip
