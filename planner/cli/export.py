"""`meshwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import planner

from ..common.errors import PlanError
from ..inspect import export
from . import wishes
from .answer import Answer, progress
from .parameters import AsJson, PlanPath
from .platforms import leave_accelerators
from .target import load_target
from .verify import BOUND


def complete_format(incomplete: str) -> list[str]:
    """Formats for the shell to complete."""
    return [name for name in export.FORMATS if name.startswith(incomplete)]


FormatName = Annotated[
    str,
    typer.Option(
        "--to", metavar="FORMAT", autocompletion=complete_format,
        help="; ".join(f"{f.name}: {f.about}" for f in export.FORMATS.values()) + ".",
    ),
]  # fmt: skip
ExportPath = Annotated[
    Path, typer.Option("--output", "-o", metavar="PATH", help="The file to write.")
]
OptionalTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", show_default=False,
        help="FILE.py:NAME or PACKAGE.MODULE:NAME, for formats that need the function (stablehlo).",
    ),
]  # fmt: skip


def export_command(
    path: PlanPath,
    to: FormatName,
    output: ExportPath,
    target: OptionalTarget = "",
    as_json: AsJson = False,
) -> Answer:
    """Write a plan for another runtime.

    Says what the format cannot express. Exit status: 0, or 2 if the plan cannot be read or
    expressed, or the file not be written.
    """
    wanted = export.format_called(to)
    wishes.check_writable(output)
    if wanted.needs_function and not target:
        raise PlanError(
            f"the format '{to}' needs the function that was planned", kind="usage",
            where="meshwright export", remedy="name it after the options, as FILE.py:NAME",
        )  # fmt: skip
    found = planner.load(path)
    with progress(as_json=as_json) as say:
        if target:
            leave_accelerators()
            say("trace")
            loaded = load_target(target)
            trained = loaded.settings.get("optimizer") is not None
            settings = {k: loaded.settings[k] for k in BOUND if trained and k in loaded.settings}
            found = found.bind(loaded.fn, *loaded.args, **settings)
        say(f"export to {to}")
        written = found.export(to, output)
    data = {
        "format": to, "files": [str(each) for each in written.files], "notes": list(written.notes)
    }  # fmt: skip
    return Answer(data, lambda _: _page(written))


def _page(written: export.Written) -> Text:
    text = Text(f"written to {', '.join(map(str, written.files))}")
    for note in written.notes:
        text.append(f"\n  not expressed: {note}", style="yellow")
    return text
