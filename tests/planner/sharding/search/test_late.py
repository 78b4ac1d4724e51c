# pyright: basic
"""A search whose time is over before it has seen all meshes."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from costmodel import parse_cluster
from ir.trace import trace
from planner import Options, plan
from planner.common.request import Request
from planner.common.stop import Stop
from planner.sharding.problem.program import program_of
from planner.sharding.search.context import Candidate
from planner.sharding.search.mesh_refinement import finest
from planner.sharding.search.mesh_shapes import mesh_shapes
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search
from tests.planner.programs import mean_loss, struct

PARAMS = {"b1": struct(4096), "w1": struct(4096, 4096), "w2": struct(4096, 4096)}
BATCH = {"x": struct(64, 4096), "y": struct(64, 4096)}


def test_meshes_that_are_not_reached_have_their_quick_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best, glimpse = MeshSearch.best, MeshSearch.glimpse
    quick: list[float] = []
    fine = finest(mesh_shapes(parse_cluster("32xh100")))
    assert len(fine) == 2

    def timed_best(self: MeshSearch, *args: Any) -> tuple[list[Candidate], float]:
        found = best(self, *args)
        if self.mesh.sizes in fine:
            self.scope.deadline = 0.0
        return found

    def noted(self: MeshSearch) -> float:
        bound = glimpse(self)
        quick.extend([bound] if self.mesh.sizes in fine else [])
        return bound

    monkeypatch.setattr(MeshSearch, "best", timed_best)
    monkeypatch.setattr(MeshSearch, "glimpse", noted)
    late = plan(jax.grad(mean_loss), PARAMS, BATCH, cluster="32xh100", substitutions=False)
    assert len(quick) == 2
    assert late.stop is Stop.TIME_LIMIT
    assert late.program.lower_bound_s >= min(quick) > 0.0
    monkeypatch.undo()
    whole = plan(jax.grad(mean_loss), PARAMS, BATCH, cluster="32xh100", substitutions=False)
    assert late.program.lower_bound_s <= whole.step_s * (1 + 1e-9)


def test_nothing_more_is_searched_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    best, glimpse = MeshSearch.best, MeshSearch.glimpse
    after: list[float] = []

    def timed_best(self: MeshSearch, *args: Any) -> tuple[list[Candidate], float]:
        assert not self.scope.out_of_time
        found = best(self, *args)
        if found[0]:
            self.scope.deadline = 0.0
        return found

    def noted(self: MeshSearch) -> float:
        bound = glimpse(self)
        after.extend([bound] if self.scope.out_of_time else [])
        return bound

    monkeypatch.setattr(MeshSearch, "best", timed_best)
    monkeypatch.setattr(MeshSearch, "glimpse", noted)
    late = plan(jax.grad(mean_loss), PARAMS, BATCH, cluster="32xh100", substitutions=False)
    assert after == [0.0, 0.0]
    assert late.stop is Stop.TIME_LIMIT
    assert late.program.lower_bound_s <= late.step_s


def test_searches_of_one_call_share_its_time_limit() -> None:
    program = program_of(
        trace(jax.grad(mean_loss), PARAMS, BATCH).graph, (), frozenset(), Options()
    )
    request = Request(parse_cluster("8xh100"), Options(time_limit_s=50.0), start=100.0)
    assert Search(program, request).scope.deadline == 150.0
