"""Tables of reshards against shortest paths over single steps."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from costmodel import CollectiveModel, ReshardModel, parse_cluster
from ir import Mesh, TensorType


@pytest.mark.parametrize("reduction", ["sum", "max"])
@pytest.mark.parametrize(
    ("name", "sizes"), [("8xh100", (2, 2, 2)), ("16xh100", (2, 8)), ("8xa100-40gb", (8,))]
)
def test_tables_are_shortest_paths(name: str, sizes: tuple[int, ...], reduction: str) -> None:
    machine = parse_cluster(name)
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    model = ReshardModel(machine, mesh, CollectiveModel(machine))
    for shape in ((), (8,), (16, 12), (64, 8, 32)):
        type_ = TensorType(shape, "float32")
        graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
        graph.add_nodes_from(range(len(model.space(shape, reduction).states)))
        for here, there, step in model.steps(shape, reduction):
            graph.add_edge(here, there, weight=model.step_s(step, type_))
        table = np.full((len(graph),) * 2, np.inf)
        for here, lengths in nx.all_pairs_dijkstra_path_length(graph):
            table[here, list(lengths)] = list(lengths.values())
        np.testing.assert_allclose(model.matrix(type_, reduction), table, rtol=1e-12)
