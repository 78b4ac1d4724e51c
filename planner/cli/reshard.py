"""`meshwright reshard`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import planner

from ..common.errors import PlanError
from ..common.units_text import bytes_text
from .answer import Answer
from .parameters import AsJson
from .table import table

OldPath = Annotated[
    Path, typer.Argument(metavar="OLD.JSON", help="The plan under which the arrays lie.")
]
NewPath = Annotated[
    Path, typer.Argument(metavar="NEW.JSON", help="The plan under which they are wanted.")
]
LostText = Annotated[
    str | None,
    typer.Option(
        "--lost", metavar="DEVICES",
        help="Devices of the old plan that are gone, such as 3 or 8-15,40.",
    ),
]  # fmt: skip
_RANGE = re.compile(r"\d{1,6}(-\d{1,6})?")


def reshard_command(
    old: OldPath, new: NewPath, lost: LostText = None, as_json: AsJson = False
) -> Answer:
    """Show which arrays move where when training goes on under another plan.

    Parameters and optimizer state are looked at, not the batch. Exit status: 0 if both plans keep
    the same arrays and some device that is left holds every part of them, 1 if not, 2 if a plan
    cannot be read.
    """
    gone = () if lost is None else _devices(lost)
    found = planner.moves(planner.load(old), planner.load(new), lost_devices=gone)
    whole = not (found.lost_bytes or found.only_before or found.only_after)
    return Answer(found.summary(), lambda width: _page(found, width), 0 if whole else 1)


def _devices(text: str) -> tuple[int, ...]:
    """Numbers of `8-15,40`."""
    found: list[int] = []
    for part in text.split(","):
        if not _RANGE.fullmatch(part.strip()):
            raise PlanError(
                f"'{text}' is no list of devices", kind="bad-option", where="--lost",
                remedy="write numbers and ranges, such as 8-15,40",
            )  # fmt: skip
        first, _, last = part.strip().partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def _page(found: planner.Moves, width: int | None) -> Text:
    moving = [row for row in found.arrays if row.total_bytes]
    parts = [
        Text(
            f"{len(moving)} of {len(found.arrays)} arrays move, from {found.devices[0]} to "
            f"{found.devices[1]} devices: {bytes_text(found.total_bytes)} in all, at most "
            f"{bytes_text(found.received_bytes)} to one device",
            style="bold",
        )
    ]
    if found.lost_bytes:
        parts.append(
            Text(
                f"{bytes_text(found.lost_bytes)} are on no device that is left: restore them from "
                "a checkpoint", style="red",
            )
        )  # fmt: skip
    for names, where in ((found.only_before, "old"), (found.only_after, "new")):
        if names:
            parts.append(Text(f"only in the {where} plan: {', '.join(names)}", style="red"))
    if moving:
        copied = any(not row.collectives for row in moving)
        rows = [
            (row.name, row.before, row.after, bytes_text(row.nbytes),
             bytes_text(row.received_bytes), bytes_text(row.lost_bytes) if row.lost_bytes else "",
             ", ".join(row.collectives) or "copies")
            for row in moving
        ]  # fmt: skip
        head = ("array", "old", "new", "size", "to one device", "lost", "by")
        if not found.lost_bytes:
            rows = [(*row[:5], row[6]) for row in rows]
            head = (*head[:5], head[6])
        parts.append(table(head, rows, width))
        if copied:
            parts.append(Text("copies: the meshes have no common parts, or sizes do not divide"))
    return Text("\n\n").join(parts)
