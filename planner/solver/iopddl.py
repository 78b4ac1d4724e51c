"""The contest form of the intra-op problem: JSON, read strictly, with costs summed exactly.

    {"problem": {"name": ..., "usage_limit": bytes,
                 "nodes": {"intervals": [[start, end], ...], "costs": [[...], ...],
                           "usages": [[...], ...]},
                 "edges": {"nodes": [[u, v], ...], "costs": [[...], ...]}}}

Node i uses `usages[i][k]` in [start, end); the costs of an edge are rows of u's options. Costs of
10^18 and more mean forbidden.

Source: Intra-Operator Parallelism for Distributed Deep Learning, ASPLOS/EuroSys 2025 contest,
github.com/google/iopddl.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..common.errors import PlanError
from ..common.write_files import write_files
from .problem import Edge, Floats, IntraProblem

FORBIDDEN = 10**18
MOST_BYTES = 4_000_000_000  # of an instance once unpacked
Number = int | float


class _Nodes(msgspec.Struct):
    intervals: list[tuple[int, int]]
    costs: list[list[Number]]
    usages: list[list[Number]]


class _Edges(msgspec.Struct):
    nodes: list[tuple[int, int]]
    costs: list[list[Number]]


class _Problem(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    usage_limit: Number | None = None
    name: str = ""


class _File(msgspec.Struct):
    problem: _Problem


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A problem with its name and its costs as written.

    times: moments of the problem as written; in the problem they are counted from 0.
    """

    name: str
    problem: IntraProblem
    times: tuple[int, ...]
    node_costs: list[list[Number]]
    edge_costs: list[list[Number]]

    def cost(self, choice: Sequence[int]) -> Number:
        """Objective of a choice: exact where the costs are whole numbers."""
        nodes = sum(costs[k] for costs, k in zip(self.node_costs, choice, strict=True))
        sizes = [len(costs) for costs in self.node_costs]
        return nodes + sum(
            costs[choice[e.u] * sizes[e.v] + choice[e.v]]
            for e, costs in zip(self.problem.edges, self.edge_costs, strict=True)
        )


def read_instance(path: Path) -> Instance:
    """Reads a file in contest form, packed with gzip or not.

    Raises:
        PlanError: says what in the file is not as it should be.
    """
    try:
        text = _unpacked(path)
        found = msgspec.json.decode(text, type=_File).problem
    except OSError as error:
        remedy = "name a file that can be read"
        raise _wrong(path, f"cannot be read: {error.strerror or error}", remedy) from error
    except (zlib.error, EOFError) as error:
        raise _wrong(path, f"is not sound gzip: {error}", "fetch the file again") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(path, f"is not in contest form: {error}", _FORM) from error
    try:
        return _checked(found, path)
    except OverflowError as error:
        raise _wrong(
            path, f"has a number that is too large: {error}", "give costs below 1e308"
        ) from error


_FORM = "write {'problem': {nodes, edges, usage_limit}}, see planner/solver/iopddl.py"


def _wrong(path: Path, message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="instance", where=str(path), remedy=remedy)


def _unpacked(path: Path) -> bytes:
    with open(path, "rb") as file:
        head = file.read(2)
        file.seek(0)
        if head != b"\x1f\x8b":
            return file.read(MOST_BYTES)
        with gzip.open(file) as unpacked:
            return unpacked.read(MOST_BYTES)


def _checked(found: _Problem, path: Path) -> Instance:
    nodes, edges = found.nodes, found.edges
    count = len(nodes.costs)
    for name, values in (("intervals", nodes.intervals), ("usages", nodes.usages)):
        if len(values) != count:
            message = f"has {count} nodes in `costs` and {len(values)} in `{name}`"
            raise _wrong(path, message, "give every node one entry in each")
    for v, (costs, usages) in enumerate(zip(nodes.costs, nodes.usages, strict=True)):
        if len(costs) != len(usages):
            message = f"node {v} has {len(costs)} costs and {len(usages)} usages"
            raise _wrong(path, message, "give every strategy a cost and a usage")
    if len(edges.nodes) != len(edges.costs):
        message = f"has {len(edges.nodes)} edges in `nodes` and {len(edges.costs)} in `costs`"
        raise _wrong(path, message, "give every edge one entry in each")
    for n, ((u, v), costs) in enumerate(zip(edges.nodes, edges.costs, strict=True)):
        if not (0 <= u < count and 0 <= v < count):
            message = f"edge {n} joins {u} and {v}; there are nodes 0 to {count - 1}"
            raise _wrong(path, message, "name nodes that exist")
        wide = len(nodes.costs[u]) * len(nodes.costs[v])
        if len(costs) != wide:
            message = f"edge {n} between {u} and {v} has {len(costs)} costs, expected {wide}"
            raise _wrong(path, message, "give one for each pair of strategies, row by row")
    return _instance(found, path)


def _instance(found: _Problem, path: Path) -> Instance:
    nodes, edges = found.nodes, found.edges
    costs, usages = _arrays(nodes.costs), _arrays(nodes.usages)
    for v, use in enumerate(usages):
        if len(use) and not use.min() >= 0:
            message = f"node {v} has a usage of {use.min():g}"
            raise _wrong(path, message, "usages are 0 or more")
    limit = float("inf") if found.usage_limit is None else float(found.usage_limit)
    if limit < 0:
        raise _wrong(path, f"has a usage limit of {limit:g}", "give 0 or more, or leave it out")
    tables = _arrays(edges.costs)
    times = tuple(sorted(set(chain.from_iterable(nodes.intervals))))
    problem = IntraProblem(
        tuple(_barred(c) for c in costs),
        tuple(
            Edge(u, v, _barred(t).reshape(len(costs[u]), len(costs[v])))
            for (u, v), t in zip(edges.nodes, tables, strict=True)
        ),
        tuple(usages), _intervals(nodes.intervals, times), limit,
    )  # fmt: skip
    name = found.name or path.name.removesuffix(".gz").removesuffix(".json")
    return Instance(name, problem, times, nodes.costs, edges.costs)


def _arrays(rows: list[list[Number]]) -> list[Floats]:
    """One array for each row; all are parts of one."""
    every = np.array(list(chain.from_iterable(rows)), dtype=np.float64)
    found: list[Floats] = []
    start = 0
    for row in rows:
        found.append(every[start : start + len(row)])
        start += len(row)
    return found


def _barred(costs: Floats) -> Floats:
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def _intervals(given: list[tuple[int, int]], times: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Lifetimes in numbers of times: any whole numbers may be times."""
    number = {t: n for n, t in enumerate(times)}
    return tuple((number[a], number[b]) if a < b else (0, 0) for a, b in given)


def write_solution(path: Path, data: dict[str, Any]) -> None:
    """Writes a solution, all of it or nothing.

    Raises:
        PlanError: if it cannot be written.
    """
    write_files([(path, (json.dumps(data) + "\n").encode())], kind="instance")
