"""Options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
PlanPath = Annotated[Path, typer.Argument(metavar="PLAN.JSON", help="A file that `plan -o` wrote.")]
