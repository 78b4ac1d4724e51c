# pyright: basic
"""Rule files of FlexFlow, TASO and TENSAT, and e-graphs."""

from __future__ import annotations

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from substitutions import Rule, judge, read_egraph, read_rules

from ..damage import damaged
from ..kind import ACCEPTED, EQUAL, Files, Kind, expect
from ..values import as_json, changed

DATA = Path(__file__).parents[3] / "tests" / "substitutions" / "data"
FEW = 6
JUDGED = 0.01  # share of the files that are read; a verdict may take seconds
EGRAPH = {
    "nodes": {
        "a": {"op": "f", "cost": 1.0, "eclass": "0", "children": ["b", "c"]},
        "b": {"op": "g", "cost": 2.5, "eclass": "1", "children": []},
        "c": {"op": "h", "cost": 0, "eclass": "2", "children": ["b"]},
        "d": {"op": "x", "cost": 3, "eclass": "0", "children": ["c"], "subsumed": False},
    },
    "root_eclasses": ["0"],
}


def _unpacked(name: str) -> bytes:
    return gzip.decompress((DATA / name).read_bytes())


@cache
def _seeds() -> tuple[Files, ...]:
    flexflow = json.loads(_unpacked("flexflow_graph_subst_3_v2.json.gz"))
    flexflow["rule"] = flexflow["rule"][:: len(flexflow["rule"]) // FEW]
    lines = _unpacked("converted.txt.gz").splitlines()
    return (
        {"rules.json": json.dumps(flexflow).encode()},
        {"rules.pb": _messages(_unpacked("taso_graph_subst.pb.gz"))},
        {"rules.txt": b"\n".join(lines[:: len(lines) // FEW])},
        {"rules.txt": _unpacked("multi_rules.txt.gz")},
    )


def _messages(data: bytes) -> bytes:
    """The first rules of a protobuf file."""
    at = 0
    for _ in range(FEW):
        at, size, shift = at + 1, 0, 0
        while data[at] & 128:
            size |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
        size |= data[at] << shift
        at += 1 + size
    return data[:at]


def _packed(rng: Random, files: Files) -> tuple[str, Files]:
    (name,) = files
    how, data = damaged(rng, gzip.compress(files[name], 1, mtime=0))
    return f"packed: {how}", {name: data}


def _data(rng: Random, files: Files) -> tuple[str, Files]:
    (name,) = files
    if not name.endswith(".json"):
        return _packed(rng, files)
    how, value = changed(rng, json.loads(files[name]))
    return f"data: {how}", {name: as_json(rng, value)}


def _use_rules(folder: Path, seed: Files, rng: Random) -> str:
    (name,) = seed
    found = read_rules(folder / name)
    expect(bool(found) or name.endswith(".json"), "no rules")
    for rule in found:
        expect(isinstance(rule, Rule), "no rule")
        rule.inputs()
    if found and rng.random() < JUDGED:
        judge(rng.choice(found))
    return EQUAL if found == _sound(name, seed[name]) else ACCEPTED


@cache
def _sound(name: str, data: bytes) -> tuple[Any, ...]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(data)
        return read_rules(Path(folder) / name)


def _use_egraph(folder: Path, seed: Files, rng: Random) -> str:
    (name,) = seed
    found = read_egraph(folder / name)
    for node in found.nodes:
        expect(0 <= node.owner < found.classes and node.cost >= 0, "a node of no class")
        expect(all(0 <= child < found.classes for child in node.children), "a child of no class")
    return ACCEPTED


def kinds(*, quick: bool) -> list[Kind]:
    egraph = {"e.json": json.dumps(EGRAPH).encode()}
    return [
        Kind("rules", _seeds(), _use_rules, (_data,), 4.0),
        Kind("e-graph", (egraph,), _use_egraph, (_data,), 0.5),
    ]
