"""The reader of e-graphs takes what the gym writes and nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from substitutions import RuleError
from substitutions.extraction import EGraph, read_egraph
from substitutions.extraction.read import egraph_of

GOOD: dict[str, Any] = {
    "nodes": {
        "a": {"op": "x", "cost": 1, "eclass": "1", "children": []},
        "b": {"op": "f", "cost": 0.5, "eclass": "2", "children": ["a", "a"]},
    },
    "root_eclasses": ["2"],
}


def changed(node: str, **values: Any) -> dict[str, Any]:
    return GOOD | {"nodes": GOOD["nodes"] | {node: GOOD["nodes"][node] | values}}


def test_reads_nodes_and_roots(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GOOD | {"comment": "kept out"}), "utf-8")
    graph = read_egraph(path)
    assert graph.classes == 2
    assert [node.children for node in graph.nodes] == [(), (0,)]
    packed = tmp_path / "g.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_egraph(packed) == graph


BAD: dict[str, Any] = {
    "a list": [],
    "no nodes": {"nodes": {}, "root_eclasses": ["2"]},
    "a stranger": GOOD | {"color": 1},
    "no root": GOOD | {"root_eclasses": []},
    "an unknown root": GOOD | {"root_eclasses": ["9"]},
    "a negative cost": changed("a", cost=-1),
    "a cost that is no number": changed("a", cost="1"),
    "a cost that is a truth": changed("a", cost=True),
    "a cost without end": changed("a", cost=1e308),
    "a child that is missing": changed("b", children=["z"]),
    "children in a text": changed("b", children="a"),
    "a class that is a number": changed("a", eclass=1),
    "a key too many": changed("a", extra=1),
}


@pytest.mark.parametrize("name", BAD)
def test_another_form_is_one_error(name: str) -> None:
    with pytest.raises(RuleError) as caught:
        egraph_of(BAD[name], "g.json")
    assert str(caught.value).startswith("g.json")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b'{"nodes": NaN}', b"\xff\xfe", b"\x1f\x8b\x08"]
)
def test_what_is_no_json_is_one_error(data: bytes, tmp_path: Path) -> None:
    for name in ("g.json", "g.json.gz"):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(RuleError, match=r"g\.json"):
            read_egraph(path)


def test_an_e_graph_is_checked_when_it_is_made() -> None:
    with pytest.raises(RuleError, match="no root"):
        EGraph(1, (), ())
