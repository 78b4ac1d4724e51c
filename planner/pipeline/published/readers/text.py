"""Reads the line format of PipeDream and DAPPLE.

    node1 -- name -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
        parameter_size=bytes
        node1 -- node2

A size may be a list `[a; b]`, which is summed. No recomputation was measured; the `full` variant is
derived: forward again, only inputs kept in flight, the activation itself held once.

Source: PipeDream, SOSP 2019, released profiles; DAPPLE, PPoPP 2021, released profiles.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..graph import Edge, Layer, LayerGraph, Variant, bad_profile, check_number, ordered

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
MS = 1e-3
# Float32 weights, gradients and two moments of Adam: 16 bytes a parameter of 4.
STATE_OVER_WEIGHTS = 4.0
_EDGE = re.compile(r"^\s+(\S+)\s+--\s+(\S+)\s*$")
_BATCH = re.compile(r"pbs-(\d+)")
_NAME = re.compile(r"pipedream|dapple")


def accepts(path: Path, text: str) -> bool:
    """Whether the first line is a node of this format."""
    return " -- " in text.partition("\n")[0] and "forward_compute_time=" in text


def read(path: Path, text: str, *, batch: int | None = None) -> LayerGraph:
    """A graph from the text.

    Args:
        path: names the graph; `pbs-N` in it is the profile's batch.
        text: the file.
        batch: samples in the profiled micro-batch; overrides the name; 1 where neither is known.

    Raises:
        PlanError: on anything that is not the format.
    """
    measured: dict[str, tuple[str, tuple[float, float, float, float]]] = {}
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path.name}:{number}"
        if not line.strip():
            continue
        if edge := _EDGE.match(line):
            pairs.append((edge[1], edge[2]))
            continue
        identifier, name, values = _node(where, line)
        if identifier in measured:
            raise bad_profile(where, f"layer '{identifier}' is described twice")
        measured[identifier] = (name, values)
    if len(set(pairs)) != len(pairs):
        twice = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise bad_profile(path.name, f"edge {' -- '.join(twice)} is given twice")
    if len(measured) > 1 and not pairs:
        raise bad_profile(path.name, "has no edges", "the end of the file may be missing")
    edges = {
        (a, b): Edge(0, 0, measured[a][1][2] if a in measured else 0.0) for a, b in pairs
    }  # fmt: skip
    inputs = dict.fromkeys(measured, 0.0)
    for (_, b), edge in edges.items():
        inputs[b] = inputs.get(b, 0.0) + edge.size_bytes
    layers = {
        identifier: _layer(name, values, inputs[identifier])
        for identifier, (name, values) in measured.items()
    }
    found = ordered(path.name, layers, edges)
    kind = _NAME.search(path.name)
    size = _BATCH.search(path.name)
    samples = batch or (int(size[1]) if size else 1)
    name = kind[0] if kind else "pipedream"
    return LayerGraph(path.name, name, samples, *found, shared=True)


def _node(where: str, line: str) -> tuple[str, str, tuple[float, float, float, float]]:
    parts = line.strip().split(" -- ")
    if len(parts) != 3:
        raise bad_profile(
            where,
            f"found {line.strip()[:80]!r}, expected `node -- name -- times` or an indented edge "
            "`node -- node`",
        )
    found = dict(_pair(where, item) for item in parts[2].split(", "))
    if tuple(found) != FIELDS:
        raise bad_profile(where, f"found fields {', '.join(found)}; expected {', '.join(FIELDS)}",
                          "the line may be cut off")  # fmt: skip
    forward, backward, activation, parameters = (found[name] for name in FIELDS)
    return parts[0], parts[1], (forward, backward, activation, parameters)


def _pair(where: str, item: str) -> tuple[str, float]:
    name, equals, value = item.strip().partition("=")
    terms = value.strip("[] ").split(";") if value.startswith("[") else [value]
    try:
        numbers = [float(term) for term in terms]
    except ValueError as error:
        found = f"{name} is {value!r}" if equals else f"found {item!r}"
        raise bad_profile(where, f"{found}, expected a number") from error
    return name, sum(check_number(where, name, number) for number in numbers)


def _layer(name: str, values: tuple[float, float, float, float], inputs: float) -> Layer:
    forward, backward, activation, parameters = values
    state = STATE_OVER_WEIGHTS * parameters
    kept = min(inputs, activation)
    plain = Variant("none", forward * MS, backward * MS, parameters, activation, state)
    again = Variant("full", forward * MS, (forward + backward) * MS, parameters, kept,
                    state + activation - kept)  # fmt: skip
    return Layer(name, ((1, (plain, again)),))
