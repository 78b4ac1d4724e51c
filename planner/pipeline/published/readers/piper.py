"""Reads Piper's JSON: layers with configurations per tensor-parallel degree.

Source: Tarnawski et al., "Piper", NeurIPS 2021, released inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..graph import Edge, Layer, LayerGraph, Variant, bad_profile, check_number, ordered
from .strict import load_json, mapping, number_of, sequence, whole

KINDS = {"vanilla": "none", "activation recomp": "full"}
TOP = ("maxDevices", "maxMemoryPerDevice", "bandwidth", "mbsInBatch", "nodes", "edges")
CONFIGURATION = ("id", "timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB",
                 "syncTimeFw", "syncTimeBw")  # fmt: skip
# The format has one time for both directions; backward is taken as twice forward.
FORWARD_SHARE = 1 / 3

Sync = dict[tuple[str, str], dict[int, float]]


def accepts(path: Path, text: str) -> bool:
    """Whether it is JSON with Piper's node configurations."""
    return text.lstrip().startswith("{") and '"TMPCs"' in text


def read(path: Path, text: str, *, batch: int | None = None) -> LayerGraph:
    """A graph from the text; times are per sample whatever `batch` says.

    Raises:
        PlanError: on anything that is not the format.
    """
    where = path.name
    top = mapping(where, load_json(where, text), required=TOP)
    into: Sync = {}
    out: Sync = {}
    layers: dict[str, Layer] = {}
    for entry in sequence(f"{where}: nodes", top["nodes"]):
        node = mapping(f"{where}: nodes", entry, required=("id", "TMPCs"))
        identifier = str(whole(where, "id of a node", node["id"]))
        if identifier in layers:
            raise bad_profile(where, f"node {identifier} is described twice")
        layers[identifier] = _layer(f"{where}: node {identifier}", identifier, node, into, out)
    edges: dict[tuple[str, str], Edge] = {}
    for entry in sequence(f"{where}: edges", top["edges"]):
        edge = mapping(
            f"{where}: edges", entry, required=("sourceId", "destId", "communicationCost")
        )
        ends = tuple(str(whole(where, key, edge[key])) for key in ("sourceId", "destId"))
        pair = (ends[0], ends[1])
        if pair in edges:
            raise bad_profile(where, f"edge {' -> '.join(pair)} is given twice")
        size = check_number(where, "communicationCost", edge["communicationCost"])
        edges[pair] = Edge(0, 0, size, _sync(into, pair), _sync(out, pair))
    for what, sync in (("syncTimeFw", into), ("syncTimeBw", out)):
        for pair in sync.keys() - edges.keys():
            raise bad_profile(where, f"{what} names the edge {' -> '.join(pair)}, which is not in "
                              "'edges'")  # fmt: skip
    for name in ("maxDevices", "mbsInBatch"):  # of the machine and batch it was made for
        whole(where, name, top[name], least=1)
    for name in ("maxMemoryPerDevice", "bandwidth"):
        check_number(where, name, top[name])
    return LayerGraph(where, "piper", 1, *ordered(where, layers, edges))


def _sync(found: Sync, pair: tuple[str, str]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(found.get(pair, {}).items()))


def _layer(where: str, name: str, node: Mapping[str, Any], into: Sync, out: Sync) -> Layer:
    variants: list[tuple[int, tuple[Variant, ...]]] = []
    for key, entries in mapping(f"{where} TMPCs", node["TMPCs"]).items():
        degree = number_of(where, key, "tensor-parallel degree")
        found: list[Variant] = []
        for entry in sequence(where, entries):
            item = mapping(f"{where} degree {key}", entry, required=CONFIGURATION)
            found.append(_variant(where, item))
            _remember(where, degree, item["syncTimeFw"], into, name, enters=True)
            _remember(where, degree, item["syncTimeBw"], out, name, enters=False)
        variants.append((degree, tuple(found)))
    return Layer(str(node.get("name", name)), tuple(sorted(variants)))


def _variant(where: str, item: Mapping[str, Any]) -> Variant:
    if not isinstance(item["id"], str) or item["id"] not in KINDS:
        raise bad_profile(where, f"configuration '{item['id']}' is unknown; expected one of "
                          f"{', '.join(KINDS)}")  # fmt: skip
    seconds = check_number(where, "timePerSample", item["timePerSample"])
    rest = [check_number(where, key, item[key]) for key in CONFIGURATION[2:5]]
    forward = seconds * FORWARD_SHARE
    return Variant(KINDS[item["id"]], forward, seconds - forward, rest[0], rest[1], rest[2])


def _remember(
    where: str, degree: int, value: object, found: Sync, name: str, *, enters: bool
) -> None:
    for other, size in mapping(where, value).items():
        number = check_number(where, f"synchronisation with node {other}", size)
        known = found.setdefault((other, name) if enters else (name, other), {})
        if known.setdefault(degree, number) != number:
            raise bad_profile(
                where,
                f"synchronisation with node {other} differs between the configurations of degree "
                f"{degree}",
                "give both the same",
            )
