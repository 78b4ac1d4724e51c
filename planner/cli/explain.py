"""`meshwright explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import planner

from ..common.errors import PlanError
from . import wishes
from .answer import Answer, progress
from .compare import comparison_page
from .page import page
from .parameters import AsJson, PlanPath

TensorName = Annotated[
    str,
    typer.Argument(
        metavar="TENSOR",
        help="An argument's name or pattern (params/*/w1), an op (dot_general), or a source line "
        "(model.py:12); of a plan in stages STAGE or STAGE:TENSOR (1:params/w1). The whole plan if "
        "not given.",
        show_default=False,
    ),
]


Devices = Annotated[int | None, typer.Option(metavar="N", help="What if there were N devices?")]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What if the memory limit of a device were SIZE?")
]
Bandwidth = Annotated[
    float | None, typer.Option(metavar="TIMES", help="What if links were TIMES as fast?")
]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="PATTERN=SPEC", help="What if arguments had this sharding?"),
]
Schedules = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="What if stages ran under one of these schedules?"),
]


Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="PLAN.JSON", help="Write the plan of the what-if question."
    ),
]


def explain_command(
    path: PlanPath,
    tensor: TensorName = "",
    devices: Devices = None,
    memory: Memory = None,
    bandwidth: Bandwidth = None,
    pin: Pins = None,
    schedules: Schedules = None,
    output: Output = None,
    as_json: AsJson = False,
) -> Answer:
    """Explain the sharding of a tensor or op, or plan under other conditions.

    Shows the time and memory that each alternative adds, solved with that one choice fixed. With
    --devices, --memory, --bandwidth, --pin or --schedules the program, or each stage of a plan in
    stages, is planned again under that condition, and both plans are shown. Exit status: 0, 1 if
    nothing fits then, 2 if the plan cannot be read or has nothing of that name.
    """
    given: dict[str, Any] = {
        "devices": devices,
        "memory_bytes": None if memory is None else wishes.memory_bytes(memory),
        "bandwidth": bandwidth,
        "pins": wishes.pins(pin) if pin else None,
        "schedules": None if schedules is None else tuple(schedules.split(",")),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if output is not None:
        _check_output(output, given)
    found = planner.load(path)
    if given:
        return _what_if(found, tensor, given, output, as_json=as_json)
    if found.file.in_stages:
        text = found.explain(tensor)
        return Answer({"name": tensor, "text": text}, lambda _: page(text))
    with progress(as_json=as_json) as say:
        say(f"explain {tensor or 'the plan'}")
        reason = found.analysed.reason(tensor)
    text = str(reason)
    return Answer({"name": tensor, "text": text} | reason.summary(), lambda _: page(text))


def _check_output(output: Path, given: dict[str, Any]) -> None:
    if not given:
        raise PlanError(
            "there is no other plan to write", kind="usage", where="--output",
            remedy="say what would be different, for instance --devices 16",
        )  # fmt: skip
    wishes.check_writable(output)


def _what_if(
    found: planner.Plan, tensor: str, given: dict[str, Any], output: Path | None, *, as_json: bool
) -> Answer:
    """Compares the plan with that of the what-if question."""
    if tensor:
        raise PlanError(
            "a tensor is explained as the plan has it", kind="usage", where="meshwright explain",
            remedy=f"leave out '{tensor}', or the options that say what if",
        )  # fmt: skip
    with progress(as_json=as_json) as say:
        say("plan again")
        other = found.what_if(**given)
    if output is not None:
        other.save(output)
    both = planner.compare(found, other)
    return Answer(both.summary(), lambda width: comparison_page(both, ("plan", "what if"), width))
