"""Published figures on published profiles; benchmarks/pipelines.py has all of them."""

from __future__ import annotations

import pytest

from planner.pipeline.published import (
    CONVENTIONS,
    PLANNERS,
    Host,
    Machine,
    Problem,
    flat,
    price,
    read_profile,
)
from planner.pipeline.published.planner import Request
from planner.pipeline.published.planners.amp import candidates
from planner.pipeline.published.planners.equal import equal_layers, equal_layers_without_tensor
from planner.pipeline.published.search import search
from planner.pipeline.published.stage_space import Space

from .helpers import DATA

GIB = float(1 << 30)


def piper(memory: int, devices: int, batch: int) -> Problem:
    machine = flat(devices, memory_bytes=memory * GIB, bandwidth_bytes_per_s=25 * GIB)
    return Problem(read_profile(DATA / "piper_bert32a100.json.gz"), machine, batch, batch)


# Seconds per sample of the released program.
@pytest.mark.parametrize(
    ("memory", "devices", "wanted"),
    [
        (8, 8, 0.165856),
        pytest.param(8, 64, 0.020201, marks=pytest.mark.exhaustive),
        (80, 64, 0.015650),
    ],
)
def test_piper_runs(memory: int, devices: int, wanted: float) -> None:
    problem, convention = piper(memory, devices, 1920), CONVENTIONS["piper"]
    plan = PLANNERS["ours"].plan(Request(problem, convention))
    assert plan is not None
    assert plan.exact
    assert price(problem, plan, convention).seconds_per_sample == pytest.approx(wanted, abs=6e-7)


# Tarnawski et al., NeurIPS 2021, figure 1: no DP, no TP, no recomputation, equal without TP, equal.
@pytest.mark.parametrize(
    ("memory", "devices", "wanted"),
    [
        (80, 8, (0.748, 1, 1, 1, 1)),
        pytest.param(8, 128, (0.144, 1, 0.706, 0.722, 0.722), marks=pytest.mark.exhaustive),
    ],
)
def test_piper_figure_1(memory: int, devices: int, wanted: tuple[float, ...]) -> None:
    problem, convention = piper(memory, devices, 512), CONVENTIONS["piper"]
    request = Request(problem, convention)
    best = PLANNERS["ours"].plan(request)
    assert best is not None
    plans = [
        search(problem, convention, Space(data=False)),
        search(problem, convention, Space(tensor=False)),
        search(problem, convention, Space(recompute="none")),
        equal_layers_without_tensor(request),
        equal_layers(request),
    ]
    step = price(problem, best, convention).step_s
    for plan, ratio in zip(plans, wanted, strict=True):
        assert plan is not None
        assert step / price(problem, plan, convention).step_s == pytest.approx(ratio, abs=1e-3)


@pytest.mark.parametrize(("memory", "devices"), [(2, 8), (1, 32)])
def test_piper_does_not_fit(memory: int, devices: int) -> None:
    request = Request(piper(memory, devices, 512), CONVENTIONS["piper"])
    assert PLANNERS["ours"].plan(request) is None
    assert PLANNERS["piper"].plan(request) is None


def test_amp_ranks_the_unlike_cluster_as_measured() -> None:
    """Li et al., NeurIPS 2022: dp2 pp8 at 1.28 s, dp16 at 2.72 s."""
    fast = Host(4, 16e9, 170e9 / 8, 10e9 / 8, "P3")
    machine = Machine((fast, fast, fast, Host(4, 16e9, 50e9 / 8, 50e9 / 8, "G4")))
    problem = Problem(read_profile(DATA / "gpt2_P3_1.npy"), machine, 32, 32)
    ranked = candidates(Request(problem, CONVENTIONS["amp"], choose_microbatches=True))
    names = [
        (plan.stages[0].data_parallel, plan.stages[0].tensor_parallel, len(plan.stages))
        for _, plan in ranked
    ]
    steps = dict(zip(names, (step for step, _ in ranked), strict=True))
    assert names.index((2, 1, 8)) < 3
    assert steps[16, 1, 1] > 1.5 * steps[2, 1, 8]
