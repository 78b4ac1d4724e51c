"""The searches against every plan of small problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from planner.pipeline.published import CONVENTIONS, Host, LayerGraph, Machine, Problem, price
from planner.pipeline.published.label_search import pareto, search_labels
from planner.pipeline.published.search import search
from planner.pipeline.published.stage_space import Space
from planner.pipeline.published.stage_tables import Tables
from planner.pipeline.published.threshold_search import search_threshold

from .helpers import brute_force, random_graph, random_problem

SEEDS = range(8)


def cost(problem: Problem, name: str) -> float:
    plan = search(problem, CONVENTIONS[name], Space())
    if plan is None:
        return float("inf")
    found = price(problem, plan, CONVENTIONS[name])
    assert found.fits
    assert plan.exact
    return found.step_s


@pytest.mark.parametrize("name", sorted(CONVENTIONS))
@pytest.mark.parametrize("seed", SEEDS)
def test_best_of_all_plans(name: str, seed: int) -> None:
    problem = random_problem(seed, layers=3, devices=4)
    samples = replace(problem, microbatches=problem.batch // 2)
    if name == "dapple":  # its formula may fall as a stage gets slower, see its file
        samples = _plain(samples)
    assert cost(samples, name) == pytest.approx(brute_force(samples, name), rel=1e-9)


@pytest.mark.parametrize("name", ["piper", "dapple", "flush"])
@pytest.mark.parametrize("seed", [0, 3])
def test_best_of_all_plans_of_branches(name: str, seed: int) -> None:
    problem = _plain(random_problem(seed, layers=5, devices=3, degrees=(1,)))
    assert cost(problem, name) == pytest.approx(brute_force(problem, name), rel=1e-9)


@pytest.mark.parametrize("name", ["pipedream", "flush"])
@pytest.mark.parametrize("seed", [1, 3])
def test_tensors_with_several_readers_are_sent_once(name: str, seed: int) -> None:
    problem = _plain(random_problem(seed, layers=5, devices=3, degrees=(1,)))
    shared = replace(problem, graphs={"": replace(problem.graph, shared=True)})
    assert cost(shared, name) == pytest.approx(brute_force(shared, name), rel=1e-9)


@pytest.mark.parametrize("name", ["piper", "pipedream"])
@pytest.mark.parametrize("seed", SEEDS)
def test_both_searches_agree(name: str, seed: int) -> None:
    problem = random_problem(seed, layers=6, devices=8)
    convention = CONVENTIONS[name]
    tables = Tables(problem, convention, (1, 2), "exact")
    plans = [find(tables, problem.machine, Space()) for find in (search_threshold, search_labels)]
    steps = [price(problem, plan, convention).step_s if plan else np.inf for plan in plans]
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)


@pytest.mark.parametrize("name", ["alpa", "amp", "flush"])
@pytest.mark.parametrize("seed", range(4))
def test_unlike_devices(name: str, seed: int) -> None:
    fast = random_graph(seed, layers=3, degrees=(1,))
    slow = slower(fast, np.random.default_rng(seed).uniform(1.2, 3.0, size=3))
    hosts = (Host(2, 40.0, 10.0, 2.0, "fast"), Host(1, 9.0, 5.0, 3.0, "slow"))
    problem = Problem({"fast": fast, "slow": slow}, Machine(hosts), 12, 3)
    orders = list(problem.machine.orders())
    plan = search(problem, CONVENTIONS[name], Space("none"), machines=orders)
    found = price(problem, plan, CONVENTIONS[name]).step_s if plan else np.inf
    # Recomputation is off on both sides.
    wanted = brute_force(_plain(problem), name, orders)
    assert found == pytest.approx(wanted, rel=1e-9)


def slower(graph: LayerGraph, factors: npt.NDArray[np.float64]) -> LayerGraph:
    """The same layers on a slower device, not all by the same factor."""
    layers = tuple(
        replace(
            layer,
            variants=tuple(
                (
                    t,
                    tuple(
                        replace(v, forward_s=x * v.forward_s, backward_s=x * v.backward_s)
                        for v in found
                    ),
                )
                for t, found in layer.variants
            ),
        )
        for layer, x in zip(graph.layers, factors.tolist(), strict=True)
    )
    return replace(graph, layers=layers)


def _plain(problem: Problem) -> Problem:
    """Without the variants that recompute, by making them equal to the plain ones."""
    graphs = {}
    for kind, graph in problem.graphs.items():
        layers = tuple(
            replace(
                layer,
                variants=tuple(
                    (t, tuple(replace(found[0], recompute=v.recompute) for v in found))
                    for t, found in layer.variants
                ),
            )
            for layer in graph.layers
        )
        graphs[kind] = replace(graph, layers=layers)
    return replace(problem, graphs=graphs)


def test_pareto_takes_the_least_of_rows_that_are_equal_where_it_counts() -> None:
    rows = np.random.default_rng(1).integers(0, 4, size=(200, 3)).astype(float)
    kept = rows[pareto(rows, 2)]
    both = rows[pareto(rows[:, :2])][:, :2]
    assert {tuple(row) for row in kept[:, :2]} == {tuple(row) for row in both}
    assert len(kept) == len(both)
    for row in kept:
        same = rows[(rows[:, :2] == row[:2]).all(axis=1)]
        assert row[2] == same[:, 2].min()


def test_pareto_keeps_what_nothing_beats() -> None:
    rows = np.random.default_rng(0).integers(0, 6, size=(300, 3)).astype(float)
    kept = rows[pareto(rows)]
    for row in rows:
        assert (kept <= row).all(axis=1).any()
    for i, row in enumerate(kept):
        others = np.delete(kept, i, axis=0)
        assert not (others <= row).all(axis=1).any()
