"""`meshwright rules list`, `verify`, `audit` and `generate`."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from substitutions import (
    CATALOGUE,
    VERDICTS,
    Row,
    RowVerdict,
    RuleError,
    Verdict,
    Worth,
    catalogue_of,
    generate,
    judge_all,
    judge_row,
    read_each,
)
from substitutions.generate import OP_SETS

from ..common.errors import PlanError
from ..common.write_files import write_files
from .answer import Answer, progress
from .parameters import AsJson
from .table import table

REJECTED = ("ill-formed", "false", "unknown")

RulesPath = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="FlexFlow's JSON, TASO's protobuf (.pb) or TENSAT's text."),
]


def list_command(as_json: AsJson = False) -> Answer:
    """List the rules of the catalogue, and what each is worth in floats and whole numbers.

    Letters: k, m are any degrees, a, b any two axes, s, t scalars; `;` separates outputs.
    """
    rows = [(family, row) for family, members in CATALOGUE.items() for row in members]
    data = {"rules": [_listed(family, row) for family, row in rows]}
    head = ("rule", "family", "worth", "from", "to")
    cells = [(row.name, family, str(row.worth or ""), row.left, row.right) for family, row in rows]
    return Answer(data, lambda width: table(head, cells, width))


def _listed(family: str, row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "family": family,
        "from": row.left,
        "to": row.right,
        "parallel": row.parallel,
        "any_axis": row.generic,
        "worth": _worth(row.worth),
    }


def verify_command(as_json: AsJson = False) -> Answer:
    """Prove every rule of the catalogue anew, for every rank, axis and degree it stands for.

    Exit status: 0 if all are proved, 1 if one is not.
    """
    rows = [row for members in CATALOGUE.values() for row in members]
    found: list[RowVerdict] = []
    with progress(as_json=as_json) as tell:
        for row in rows:
            tell(row.name)
            found.append(judge_row(row))
    counts = collections.Counter(item.verdict for item in found)
    data = {
        "rules": [
            {
                "name": item.name,
                "verdict": item.verdict,
                "conditions": list(item.conditions),
                "worth": _worth(item.worth()),
                "instances": len(item.rules),
                "seconds": item.seconds,
            }
            for item in found
        ],
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "seconds": sum(item.seconds for item in found),
    }
    rejected = any(item.verdict in REJECTED for item in found)
    return Answer(data, lambda width: _verified(found, data, width), 1 if rejected else 0)


def _worth(worth: Worth | None) -> dict[str, str | None] | None:
    return None if worth is None else worth.to_dict()


def _verified(found: Sequence[RowVerdict], data: dict[str, Any], width: int | None) -> Text:
    rows = [
        (
            item.name,
            item.verdict,
            str(item.worth() or ""),
            str(len(item.rules)),
            item.conditions[0] if item.conditions else "",
        )
        for item in found
    ]
    instances = sum(len(item.rules) for item in found)
    last = f"\n\n{len(found)} rules, {instances} instances; {data['seconds']:.1f} s"
    head = ("rule", "verdict", "worth", "instances", "condition of the first")
    return table(head, rows, width).append(Text(last))


SetName = Annotated[str, typer.Option("--set", help=f"Ops to build of: {', '.join(OP_SETS)}.")]
MostOps = Annotated[int, typer.Option("--ops", help="The most ops on a side, up to 4.")]
OutPath = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the rules to this JSON file.")
]


def generate_command(
    set_name: SetName = "plain",
    ops: MostOps = 2,
    out: OutPath = None,
    as_json: AsJson = False,
) -> Answer:
    """Find rules: all terms up to a size, those of equal value proved equal, implied ones dropped.

    With -o, decisions are kept in FILE.journal, and an interrupted search goes on from there.
    """
    if out is not None and (out.is_dir() or not out.name):
        raise PlanError(
            "is a folder", kind="rules", where=str(out), remedy="name a file to write the rules to"
        )
    journal = out.with_name(f"{out.name}.journal") if out else None
    try:
        with progress(as_json=as_json) as tell:
            found = generate(set_name, ops, journal, tell)
    except RuleError as error:
        raise PlanError(
            error.message, kind="rules", where=error.where, remedy=error.remedy
        ) from None
    data = dict(catalogue_of(set_name, ops, found))
    if out is not None:
        write_files([(out, (json.dumps(data, indent=1) + "\n").encode())], kind="rules")
    return Answer(data, lambda width: _generated(data, width))


def _generated(data: dict[str, Any], width: int | None) -> Text:
    rows = [
        (rule["from"], rule["to"], rule["verdict"], rule["condition"] or "")
        for rule in data["rules"]
    ]
    counts = ", ".join(f"{n} {what}" for what, n in data["counts"].items())
    last = Text(f"\n\n{len(rows)} rules; {counts}")
    return table(("from", "to", "verdict", "condition"), rows, width).append(last)


def audit_command(file: RulesPath, as_json: AsJson = False) -> Answer:
    """Say of every rule in a file whether it is proved, false or ill-formed, and why.

    A rule that breaks the form of rules is ill-formed; the others are judged all the same.

    Exit status: 0 if every rule holds (a side condition may be stated), 1 if one does not or is
    not decided, 2 if the file cannot be read.
    """
    try:
        rules = read_each(file)
    except RuleError as error:
        raise PlanError(
            error.message, kind="rules", where=error.where, remedy=error.remedy
        ) from None
    with progress(as_json=as_json) as tell:
        found = list(judge_all(rules, lambda done: tell(f"rule {done} of {len(rules)}")))
        for i, item in enumerate(found):
            tell(f"worth of rule {i + 1} of {len(found)}")
            item.worth()
    counts = collections.Counter(item.verdict for item in found)
    data = {
        "file": str(file),
        "rules": [_row(i, item) for i, item in enumerate(found)],
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "seconds": sum(item.seconds for item in found),
    }
    rejected = any(item.verdict in REJECTED for item in found)
    return Answer(data, lambda width: _page(found, data, width), 1 if rejected else 0)


def _row(index: int, item: Verdict) -> dict[str, Any]:
    return {
        "index": index,
        "name": item.name,
        "verdict": item.verdict,
        "worth": _worth(item.worth()),
        "condition": item.condition or None,
        "counterexample": item.counterexample,
        "reason": item.reason or None,
        "seconds": item.seconds,
    }


def _page(found: Sequence[Verdict], data: dict[str, Any], width: int | None) -> Text:
    rows = [
        (str(i), item.name, item.verdict, str(item.worth() or ""), _why(item))
        for i, item in enumerate(found)
    ]
    counts = ", ".join(f"{n} {verdict}" for verdict, n in data["counts"].items() if n)
    last = Text(f"\n\n{len(found)} rules: {counts}; {data['seconds']:.1f} s")
    return table(("rule", "name", "verdict", "worth", "condition or reason"), rows, width).append(
        last
    )


def _why(item: Verdict) -> str:
    example = item.counterexample
    if item.verdict == "false" and example is not None:
        shapes = ", ".join(f"{name} {shape}" for name, shape in example["shapes"].items())
        return f"{example['difference']} at shapes {shapes}"
    return item.condition or item.reason
