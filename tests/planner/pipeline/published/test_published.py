"""Published figures on published profiles; benchmarks/pipelines.py has all of them."""

from __future__ import annotations

import pytest

from planner.pipeline.published import (
    CONVENTIONS,
    PLANNERS,
    Host,
    Machine,
    Problem,
    Question,
    ask,
    flat,
    price,
    read_profile,
)
from planner.pipeline.published.aceso.cost import price_ops
from planner.pipeline.published.aceso.grid import grid_ops
from planner.pipeline.published.galvatron.cost import (
    Setting,
    Strategy,
    layer_s,
    other_s,
    pipeline_s,
)
from planner.pipeline.published.planner import Request
from planner.pipeline.published.planners.amp import candidates
from planner.pipeline.published.planners.equal import equal_layers, equal_layers_without_tensor
from planner.pipeline.published.readers import aceso, galvatron
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
    [(8, 8, 0.165856), (8, 64, 0.020201), (80, 64, 0.015650)],
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
    [(80, 8, (0.748, 1, 1, 1, 1)), (8, 128, (0.144, 1, 0.706, 0.722, 0.722))],
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


# Modelled seconds of Megatron's best grid point, by the released cost model.
@pytest.mark.parametrize(
    ("model", "devices", "wanted"),
    [
        ("gpt_1_3B", 4, 126.0),
        ("gpt_2_6B", 8, 111.0),
        ("gpt_6_7B", 16, 112.2),
        ("gpt_13B", 32, 119.1),
    ],
)
def test_aceso_cost_of_megatron(model: str, devices: int, wanted: float) -> None:
    database = aceso.read(DATA / "aceso_gpt.tar.gz", model=model)
    host = min(devices, 8)
    memory = 28000 * aceso.MB
    plan = grid_ops(
        database, devices=devices, devices_per_host=host, memory_bytes=memory, batch=1024
    )
    assert plan is not None
    cost = price_ops(database, plan, batch=1024, devices_per_host=host)
    assert cost.step_s == pytest.approx(wanted, abs=0.05)


@pytest.mark.slow
def test_aceso_is_beaten() -> None:
    """101.2 s for GPT 1.3B on 4 devices."""
    machine = Machine((Host(4, 28000 * aceso.MB, 5e9, 5e9),))
    found = ask(
        Question(
            path=DATA / "aceso_gpt.tar.gz", machine=machine, batch=1024, model="gpt_1_3B",
        )
    )  # fmt: skip
    assert found.step_s is not None
    assert found.step_s <= 101.2
    assert max(stage.peak_bytes for stage in found.stages) < 28000 * aceso.MB


def test_galvatron_cost_of_its_own_plan() -> None:
    """Its released configuration: 20 of 32 layers recomputed, all fully sharded; 1.0860 s."""
    profile = galvatron.read(DATA / "galvatron")
    setting = Setting(16, 1, 1)
    ways = [
        layer_s(profile, setting, Strategy(1, False, 8, "zero3", again)) for again in (True, False)
    ]
    rest = other_s(profile, setting, Strategy(2, True, 4, "zero3"))[0]
    computed = 20 * ways[0][1] + 12 * ways[1][1] + rest
    exchanged = 20 * ways[0][0] + 12 * ways[1][0]
    assert pipeline_s([computed], [exchanged], 1) == pytest.approx(1.0860, abs=1e-4)


@pytest.mark.slow
def test_galvatron_is_not_beaten_by_it() -> None:
    machine = flat(8, memory_bytes=36 * GIB, bandwidth_bytes_per_s=1e11)
    found = ask(Question(path=DATA / "galvatron", machine=machine, batch=16))
    assert found.step_s is not None
    assert found.step_s <= 1.0861
