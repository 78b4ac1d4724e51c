"""`meshwright explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..api import load
from ..why import Why
from .answer import Answer, progress
from .page import page
from .parameters import AsJson, PlanPath

TensorName = Annotated[
    str,
    typer.Argument(
        metavar="TENSOR",
        help="An argument's name or pattern (params/*/w1), an op (dot_general), or a source line "
        "(model.py:12). The whole plan if not given.",
        show_default=False,
    ),
]


def explain_command(path: PlanPath, tensor: TensorName = "", as_json: AsJson = False) -> Answer:
    """Say why a tensor or op is sharded as it is.

    Shows what each alternative would add in time and memory, solved with that one choice fixed.
    Exit status: 0, or 2 if the plan cannot be read or has nothing of that name.
    """
    found = load(path)
    why = Why(found.file, found.decisions, found.cluster, str(path))
    with progress(as_json=as_json) as say:
        say(f"explain {tensor or 'the plan'}")
        reason = why.reason(tensor)
    text = str(reason)
    return Answer({"name": tensor, "text": text} | reason.summary(), lambda _: page(text))
