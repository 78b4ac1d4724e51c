# pyright: basic
"""Extraction: all exact methods agree with brute force, and nothing beats its bound."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest

from substitutions import RuleError
from substitutions.extraction import EXTRACTORS, EGraph, ENode, Extraction, extract, read_egraph
from substitutions.extraction.decomposition import solve_by_decomposition
from substitutions.extraction.egraph import components, needed, total
from substitutions.extraction.ilp import Programme
from substitutions.extraction.landmarks import landmarks
from substitutions.extraction.simplify import simplify
from tests.helpers_exhaustive import usual
from tests.substitutions.extraction.graphs import random_egraph

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "egraphs"
CARRIED = ("resnet50_acyclic", "vgg", "vgg_acyclic")
SEEDS = 1200
HEURISTIC = ("greedy-tree", "greedy-dag")


def checked(graph: EGraph, found: Extraction | None) -> Extraction:
    """The extraction, which is one: every need is met, without a cycle, at the cost it names."""
    assert found is not None
    if found.stop == "none":
        assert math.isinf(found.cost)
        return found
    owners = [graph.nodes[i].owner for i in found.chosen]
    assert len(set(owners)) == len(owners)
    assert needed(graph, dict(zip(owners, found.chosen, strict=True))) == found.chosen
    assert found.cost == pytest.approx(total(graph, found.chosen))
    assert found.lower_bound <= found.cost * (1 + 1e-9)
    return found


@functools.cache
def best_of_all(seed: int) -> tuple[EGraph, Extraction]:
    """A random e-graph, and its cheapest program of all."""
    graph = random_egraph(seed)
    return graph, checked(graph, extract(graph, "brute-force", simplified=False))


@pytest.mark.parametrize("method", EXTRACTORS)
@pytest.mark.parametrize("simplified", usual([False, True], [True]))
def test_methods_agree_with_brute_force(method: str, simplified: bool) -> None:
    for seed in range(SEEDS):
        graph, best = best_of_all(seed)
        found = checked(graph, extract(graph, method, simplified=simplified))
        assert math.isinf(found.cost) == math.isinf(best.cost), seed
        if math.isinf(best.cost):
            continue
        assert found.lower_bound <= best.cost + 1e-9, seed
        if method in HEURISTIC:
            assert found.cost >= best.cost - 1e-9, seed
        else:
            assert found.optimal, seed
            assert found.cost == pytest.approx(best.cost, abs=1e-9), seed
            assert found.lower_bound == pytest.approx(best.cost, abs=1e-9), seed


@pytest.mark.exhaustive
def test_larger_ones_agree_among_each_other() -> None:
    for seed in range(SEEDS):
        graph = random_egraph(seed, 16)
        first = checked(graph, extract(graph, "ilp"))
        second = checked(graph, extract(graph, "decomposition"))
        assert first.cost == pytest.approx(second.cost, abs=1e-9) or first.stop == "none", seed


def test_greedy_counts_what_is_shared_once_where_it_can() -> None:
    """Two ways to the root: two dear children that share all, or one of middling cost."""
    shared, left, right, root, single = range(5)
    nodes = (
        ENode(shared, 6.0), ENode(left, 0.1, (shared,)), ENode(right, 0.1, (shared,)),
        ENode(single, 8.0), ENode(root, 0.0, (left, right)), ENode(root, 0.0, (single,)),
    )  # fmt: skip
    graph = EGraph(5, nodes, (root,))
    tree = checked(graph, extract(graph, "greedy-tree", simplified=False))
    dag = checked(graph, extract(graph, "greedy-dag", simplified=False))
    assert tree.cost == pytest.approx(8.0)
    assert dag.cost == pytest.approx(6.2)


def test_simplification_shrinks_and_keeps_what_is_possible() -> None:
    smaller = 0
    for seed in range(400):
        graph = random_egraph(seed, 12)
        small = simplify(graph)
        best = checked(graph, extract(graph, "decomposition", simplified=False))
        assert small.possible == (best.stop != "none"), seed
        if small.possible:
            smaller += len(small.graph.nodes) < len(graph.nodes)
            rest = checked(small.graph, solve_by_decomposition(small.graph))
            assert rest.cost + small.base_cost == pytest.approx(best.cost, abs=1e-9), seed
    assert smaller > 100


def test_landmarks_are_a_bound_and_their_sets_are_met() -> None:
    for seed in range(SEEDS):
        graph = random_egraph(seed)
        best = checked(graph, extract(graph, "brute-force", simplified=False))
        if best.stop == "none":
            continue
        bound, cuts = landmarks(graph)
        assert bound <= best.cost + 1e-9, seed
        for cut in cuts:
            assert set(cut.nodes) & set(best.chosen), seed


def test_components_are_the_cycles() -> None:
    graph = EGraph(
        4, (ENode(0, 1, (1,)), ENode(1, 1, (2,)), ENode(2, 1, (1, 3)), ENode(3, 1)), (0,)
    )
    part = components(graph)
    assert part[1] == part[2]
    assert len(set(part)) == 3


def test_what_is_too_wide_is_said_to_be() -> None:
    assert extract(random_egraph(2, 7), "decomposition", simplified=False) is not None
    wide = tuple(ENode(c, 1.0, tuple(d for d in range(c))) for c in range(20))
    assert solve_by_decomposition(EGraph(20, wide, (19,)), most_states=50) is None


@pytest.mark.parametrize("name", CARRIED)
def test_real_egraphs_are_solved_to_optimality(name: str) -> None:
    graph = read_egraph(FOLDER / f"{name}.json.gz")
    best = checked(graph, extract(graph, "ilp"))
    assert best.optimal
    for method in HEURISTIC:
        assert checked(graph, extract(graph, method)).cost >= best.cost * (1 - 1e-9)
    if name != "vgg":
        exact = checked(graph, extract(graph, "decomposition"))
        assert exact.cost == pytest.approx(best.cost)


def test_a_stopped_search_still_answers() -> None:
    graph = read_egraph(FOLDER / "vgg.json.gz")
    found = checked(graph, extract(graph, "ilp", limit_s=0.0))
    assert found.stop == "time limit"
    assert 0.0 <= found.lower_bound < found.cost


def test_the_same_graph_gives_the_same_answer() -> None:
    graph = read_egraph(FOLDER / "resnet50_acyclic.json.gz")
    for method in ("greedy-tree", "greedy-dag", "decomposition", "ilp"):
        assert extract(graph, method) == extract(graph, method)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(RuleError, match="no extractor 'magic'"):
        extract(random_egraph(1), "magic")


def test_the_programme_as_text() -> None:
    graph = EGraph(2, (ENode(0, 1.0, (1,)), ENode(0, 3.0), ENode(1, 1.0)), (0,))
    programme = Programme(graph, known=1000.0, branches=1)
    programme.forbid([[0, 1]])
    assert [line for line in str(programme.problem).splitlines() if line] == [
        "extraction:", "MINIMIZE", "1.0*x0 + 3.0*x1 + 1.0*x2 + 0.0", "SUBJECT TO",
        "_C1: x0 + x1 - y0 = 0", "_C2: x0 - y1 <= 0", "_C3: x2 - y1 = 0", "_C4: x0 <= 1",
        "VARIABLES", "x0 <= 1 Continuous", "x1 <= 1 Continuous", "x2 <= 1 Continuous",
        "y0 = 1 Continuous", "y1 <= 1 Continuous",
    ]  # fmt: skip
