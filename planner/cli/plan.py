"""`meshwright plan`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ir import TraceError
from profiles import profile_aliases

from ..api import plan
from ..errors import PlanError
from ..options import Options
from ..plan import Plan
from . import wishes
from .answer import Answer, progress
from .notes import notes
from .page import page
from .parameters import AsJson
from .platforms import choose_platform
from .target import Target, load_target


def complete_cluster(incomplete: str) -> list[str]:
    """Names for the shell to complete."""
    count = "".join(re.findall(r"^\d+x", incomplete))
    device = incomplete.removeprefix(count)
    return [f"{count}{name}" for name in profile_aliases() if name.startswith(device)]


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
    typer.Option(metavar="SHAPE", help="Shape of the mesh, such as 2x4; searched if not given."),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Parts of a batch, for targets with optimizer=; chosen if not given."
    ),
]
NoBaselines = Annotated[
    bool, typer.Option("--no-baselines", help="Do not price the hand-written plans.")
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Neither look the plan up in the plan store nor keep it there."
    ),
]


def plan_command(
    target: TargetText,
    cluster: ClusterText,
    output: OutputPath = None,
    memory: MemoryText = None,
    time_limit: TimeLimit = None,
    pin: PinTexts = None,
    forbid: ForbidTexts = None,
    mesh: MeshText = None,
    microbatches: Microbatches = None,
    no_baselines: NoBaselines = False,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> Answer:
    """Find the fastest sharding that fits in memory.

    No GPU is needed to plan for one. Exit status: 0 a plan was found, 1 nothing fits, 2 wrong use.
    """
    given: dict[str, Any] = {
        "memory_bytes": None if memory is None else wishes.memory_bytes(memory),
        "time_limit_s": None if time_limit is None else wishes.time_limit_s(time_limit),
        "pins": wishes.pins(pin) if pin else None,
        "forbidden": wishes.forbidden(forbid) if forbid else None,
        "mesh": None if mesh is None else wishes.mesh_shape(mesh),
        "microbatches": microbatches,
        "baselines": False if no_baselines else None,
        "cache": False if no_cache else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    Options(**given)
    choose_platform(cluster)
    if output is not None:
        wishes.check_writable(output)
    found = _plan(target, load_target(target), cluster, given, as_json=as_json)
    if output is not None:
        found.save(output)
    written = f"\n  written to {output}" if output is not None else ""
    return Answer(found.summary(), lambda _: page(f"{found}{written}"))


def _plan(text: str, target: Target, cluster: str, given: dict[str, Any], *, as_json: bool) -> Plan:
    settings: dict[str, Any] = {"cache": True} | wishes.merged(target.settings, given)
    if "microbatches" in given and settings.get("optimizer") is None:
        raise PlanError(
            "needs a target with optimizer= in its settings: the planner cuts only steps that it "
            "owns", kind="bad-option", where="--microbatches",
            remedy="return (loss_fn, (params, batch), {'optimizer': ...}), or leave it out",
        )  # fmt: skip
    try:
        with notes(), progress(as_json=as_json) as say:
            return plan(target.fn, *target.args, cluster=cluster, progress=say, **settings)
    except TraceError as error:
        raise PlanError(str(error), kind="trace", where=text) from error
