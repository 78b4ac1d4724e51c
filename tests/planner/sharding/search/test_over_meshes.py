"""The search over mesh shapes."""

from __future__ import annotations

import pytest

from ir.trace import trace
from planner import Options, PlanError
from planner.common.request import Request
from planner.sharding.problem.program import program_of
from planner.sharding.search.over_meshes import Search
from tests.planner.programs import CASES, slow_machine


def search(name: str, memory_bytes: int | None) -> Search:
    case, options = CASES[name], Options(memory_bytes=memory_bytes)
    traced = trace(case.fn, *case.args)
    program = program_of(traced.graph, (), frozenset(), options)
    return Search(program, Request(slow_machine(4), options))


@pytest.mark.parametrize("name", ["scanned", *[name for name in CASES if name != "scanned"][:2]])
def test_the_best_plan_alone_is_that_of_a_run(name: str) -> None:
    alone, found = search(name, None).best(), search(name, None).run()
    assert alone.mesh == found.best.mesh
    assert alone.solution.choice == found.best.solution.choice
    assert alone.account.step_s == found.best.account.step_s
    assert alone.account.peak_bytes == found.best.account.peak_bytes
    assert 0.0 < found.lower_bound_s <= alone.account.step_s


def test_what_does_not_fit_is_refused_alike() -> None:
    with pytest.raises(PlanError) as alone:
        search("scanned", 100).best()
    with pytest.raises(PlanError) as found:
        search("scanned", 100).run()
    assert str(alone.value) == str(found.value)
