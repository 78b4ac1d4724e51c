"""Reads e-graphs in the form of the extraction gym: `nodes {id: {op, cost, eclass, children}}`."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, cast

from ..errors import RuleError
from .egraph import EGraph, ENode

MOST_BYTES = 256 * 2**20
MOST_NODES = 1_000_000
_TOP = {"nodes", "root_eclasses", "comment", "class_data"}
_NODE = {"op", "cost", "eclass", "children"}


def read_egraph(path: Path) -> EGraph:
    """The e-graph of a `.json` or `.json.gz` file.

    Raises:
        RuleError: if the file is not of this form.
    """
    where = str(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RuleError(f"cannot be read: {error}", where=where) from None
    if len(text) > MOST_BYTES:
        raise RuleError(f"more than {MOST_BYTES} bytes", where=where)
    try:
        found: Any = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RuleError(f"is no JSON: {error}", where=where) from None
    return egraph_of(found, where)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def egraph_of(data: Any, where: str) -> EGraph:
    """The e-graph of parsed JSON.

    Raises:
        RuleError: if it has another form.
    """
    top = _object(data, where)
    if unknown := sorted(top.keys() - _TOP):
        raise RuleError(f"unknown key '{unknown[0]}'", where=where)
    nodes = _object(top.get("nodes"), f"{where}: nodes")
    if not 1 <= len(nodes) <= MOST_NODES:
        raise RuleError(f"{len(nodes)} nodes, expected 1 to {MOST_NODES}", where=where)
    owner: dict[str, str] = {}
    for name, value in nodes.items():
        node = _object(value, f"{where}: node {name}")
        if node.keys() - {"subsumed"} != _NODE:
            raise RuleError(
                f"keys {sorted(node)}, expected {sorted(_NODE)}", where=f"{where}: node {name}"
            )
        if not isinstance(node["eclass"], str) or not isinstance(node["op"], str):
            raise RuleError("op and eclass must be texts", where=f"{where}: node {name}")
        owner[name] = node["eclass"]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(owner.values()))}
    made = tuple(
        _node(name, node, owner, numbers, f"{where}: node {name}")
        for name, node in nodes.items()
        if node.get("subsumed", False) is not True
    )
    roots = top.get("root_eclasses")
    if not isinstance(roots, list) or not roots:
        raise RuleError("root_eclasses must be a list of classes", where=where)
    for root in cast("list[Any]", roots):
        if not isinstance(root, str) or root not in numbers:
            raise RuleError(f"root {root!r} is no class", where=where)
    asked = dict.fromkeys(numbers[root] for root in cast("list[str]", roots))
    return EGraph(len(numbers), made, tuple(asked))


def _node(
    name: str, node: dict[str, Any], owner: dict[str, str], numbers: dict[str, int], where: str
) -> ENode:
    cost, children = node["cost"], node["children"]
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e300:
        raise RuleError(f"cost {cost!r}, expected a number from 0", where=where)
    if not isinstance(children, list):
        raise RuleError("children must be a list of nodes", where=where)
    for child in cast("list[Any]", children):
        if not isinstance(child, str) or child not in owner:
            raise RuleError(f"child {child!r} is no node", where=where)
    below = dict.fromkeys(numbers[owner[child]] for child in cast("list[str]", children))
    return ENode(numbers[owner[name]], float(cost), tuple(sorted(below)), name)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RuleError("expected an object", where=where)
    return cast("dict[str, Any]", value)
