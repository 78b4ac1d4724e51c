# pyright: basic
"""Every plan that is made passes the checks that a loaded one has to pass."""

from __future__ import annotations

from pathlib import Path

import msgspec
import optax
import pytest

from planner import PlanError, load, plan
from planner.files.check import check_program
from planner.files.plan_file import one_stage
from planner.pipeline.check_plan import check_plan
from tests.helpers_exhaustive import usual
from tests.planner.programs import BATCH, CASES, PARAMS, mean_loss, slow_machine


@pytest.mark.parametrize("mesh", usual([(8,), (2, 4), (2, 2, 2)], [(2, 4)]))
@pytest.mark.parametrize("name", sorted(CASES))
def test_plan_of_any_program_is_sound(name: str, mesh: tuple[int, ...], tmp_path: Path) -> None:
    fn, args = CASES[name].fn, CASES[name].args
    p = plan(fn, *args, cluster=slow_machine(), mesh=mesh, baselines=False)
    p.save(tmp_path / "plan.json")
    q = load(tmp_path / "plan.json")
    assert q.bind(fn, *args).decisions == p.decisions


@pytest.mark.parametrize("microbatches", [1, 2])
def test_plan_of_a_training_step_is_sound(microbatches: int) -> None:
    p = plan(
        mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), microbatches=microbatches,
        cluster=slow_machine(),
    )  # fmt: skip
    check_program(p.program, "here")


def test_the_place_is_named() -> None:
    case = CASES["branch"]
    p = plan(case.fn, *case.args, cluster="8xhost", baselines=False)
    broken = msgspec.structs.replace(p.program, graph_digest="0" * 64)
    with pytest.raises(PlanError) as found:
        check_program(broken, "over/there.json")
    assert found.value.where == "over/there.json"
    assert found.value.kind == "plan-file"
    with pytest.raises(PlanError, match="digest"):
        check_plan(one_stage(broken, len(p.graph.nodes)), "here")
