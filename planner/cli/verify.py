"""`meshwright verify`."""

from __future__ import annotations

from typing import Annotated

import typer

import planner

from .answer import Answer, progress
from .page import page
from .parameters import AsJson, PlanPath
from .plan import TargetText
from .platforms import leave_accelerators
from .target import load_target

CompilerName = Annotated[
    str | None,
    typer.Option(
        "--compiler", metavar="NAME",
        help="host: XLA for CPU devices. gpu-aot: XLA for GPUs, without a GPU. gpu: the GPUs "
        "present. If not given, the last of these that can compile for the plan's machine.",
    ),
]  # fmt: skip
# Settings of a target that `Plan.bind` takes too.
BOUND = ("optimizer", "has_aux", "batch_axis")


def verify_command(
    target: TargetText, path: PlanPath, compiler: CompilerName = None, as_json: AsJson = False
) -> Answer:
    """Compile a plan and hold its collectives and memory against the prediction.

    Nothing is run. Exit status: 0 if they agree, 1 if not, 2 if it cannot be compiled.
    """
    found = planner.load(path)
    if compiler in ("host", "gpu-aot"):
        leave_accelerators()
    loaded = load_target(target)
    trained = loaded.settings.get("optimizer") is not None
    settings = {k: loaded.settings[k] for k in BOUND if trained and k in loaded.settings}
    with progress(as_json=as_json) as say:
        say("trace")
        bound = found.bind(loaded.fn, *loaded.args, **settings)
        say("compile")
        checked = planner.verify(bound, compiler=compiler)
    return Answer(checked.summary(), lambda _: page(str(checked)), 0 if checked.ok else 1)
