"""Every planner under every convention: in memory, repeatable, never better than ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.pipeline.published import (
    CONVENTIONS,
    PLANNERS,
    Host,
    Machine,
    Problem,
    price,
    read_profile,
)
from planner.pipeline.published.coarsen import coarsened
from planner.pipeline.published.downset_lattice import lattice
from planner.pipeline.published.planner import Request
from tests.helpers_exhaustive import usual

from .helpers import DATA, random_graph, random_problem


def problems() -> dict[str, Problem]:
    two = Machine((Host(2, 25.0, 20.0, 4.0),) * 2)
    graph = random_graph(5, layers=6)
    vgg = coarsened(read_profile(DATA / "dapple_vgg-19-pbs-32.txt.gz"), most_layers=8, most_sets=9)
    host = Host(2, 4e9, 1e10, 1e9)
    return {
        "flat": random_problem(2, layers=6, devices=6),
        "hosts": Problem({"": graph}, two, 8, 4),
        "vgg": Problem(vgg[0], Machine((host, host)), 128, 4),
    }


PROBLEMS = problems()


@pytest.mark.parametrize("convention", sorted(CONVENTIONS))
@pytest.mark.parametrize("problem", usual(sorted(PROBLEMS), ("flat", "hosts")))
def test_ours_is_never_worse(problem: str, convention: str) -> None:
    given, formula = PROBLEMS[problem], CONVENTIONS[convention]
    for choose in (False, True):
        request = Request(given, formula, choose and not formula.by_replicas)
        best = PLANNERS["ours"].plan(request)
        for name, planner in PLANNERS.items():
            plan = planner.plan(request)
            if plan is None:
                continue
            found = price(given, plan, formula)
            if not found.fits:
                assert name != "ours"
                continue
            assert best is not None
            ours = price(given, best, formula)
            assert ours.fits
            assert ours.step_s <= found.step_s * (1 + 1e-9), name


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_plans_fit_their_own_convention_and_repeat(name: str) -> None:
    planner = PLANNERS[name]
    request = Request(PROBLEMS["vgg"], CONVENTIONS[planner.convention])
    plan = planner.plan(request)
    assert plan is not None
    assert price(request.problem, plan, request.convention).fits
    assert planner.plan(request) == plan


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_nothing_fits_in_no_memory(name: str) -> None:
    given = PROBLEMS["flat"]
    host = replace(given.machine.hosts[0], memory_bytes=1e-6)
    tiny = replace(given, machine=Machine((host,)))
    assert PLANNERS[name].plan(Request(tiny, CONVENTIONS[PLANNERS[name].convention])) is None


@pytest.mark.parametrize("name", ["dapple_gnmt-16-pbs-64.txt.gz", "pipedream_resnet50.txt.gz"])
def test_merged_graphs_keep_their_totals(name: str) -> None:
    whole = read_profile(DATA / name)
    small, groups = coarsened(whole, most_layers=30, most_sets=120)
    assert sorted(v for group in groups for v in group) == list(range(len(whole[""].layers)))
    assert len(lattice(small[""]).member) <= 120
    for field in ("forward_s", "backward_s", "parameter_bytes", "flight_bytes", "fixed_bytes"):
        totals = [
            sum(getattr(layer.at(1)[0], field) for layer in graph.layers)
            for graph in (whole[""], small[""])
        ]
        assert totals[0] == pytest.approx(totals[1])
    # Every suffix set of the merged graph is one of the whole graph.
    place = {v: g for g, group in enumerate(groups) for v in group}
    for edge in whole[""].edges:
        assert place[edge.source] <= place[edge.target]


def test_stages_keep_to_their_limit() -> None:
    request = Request(PROBLEMS["flat"], CONVENTIONS["flush"], stages=2)
    plan = PLANNERS["ours"].plan(request)
    assert plan is None or len(plan.stages) <= 2
