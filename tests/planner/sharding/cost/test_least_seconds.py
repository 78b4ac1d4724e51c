# pyright: basic
"""No pipeline is below the bound, and no program: small ones are tried in every way."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from jax import ShapeDtypeStruct as Shape

from costmodel import ComputeModel, parse_cluster
from ir.trace import trace
from planner import plan
from planner.common.options import Options
from planner.common.request import Request
from planner.common.stop import Stop
from planner.pipeline.divide.dynamic_programme import Division
from planner.pipeline.schedule import Turns
from planner.pipeline.search import PipelineSearch
from planner.sharding.cost.least_seconds import least_step_s
from planner.sharding.plan_traced import program_for
from planner.sharding.search.mesh_shapes import mesh_of, mesh_shapes
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search
from planner.training.training import Training
from tests.helpers_exhaustive import usual
from tests.planner.programs import CASES, slow_machine


def layered(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for w, v in params:
        x = x + jnp.tanh(x @ w) @ v
    return jnp.mean(jnp.square(x))


def search_of(layers: int, microbatches: int) -> PipelineSearch:
    params = [(Shape((16, 64), jnp.float32), Shape((64, 16), jnp.float32))] * layers
    batch = {"x": Shape((32, 16), jnp.float32)}
    training = Training(layered, (params, batch), optax.adam(1e-3), False, 0, "layered")
    options = Options(microbatches=microbatches, loss_reduction="mean", baselines=False)
    return PipelineSearch(training, Request(slow_machine(4), options))


@pytest.mark.parametrize("microbatches", usual([1, 4], [4]))
def test_every_division_of_a_small_program_is_above_the_bound(microbatches: int):
    search = search_of(2, microbatches)
    last = search.shares.count - 1
    steps: list[float] = []
    for p in (2, 3):
        for inner in itertools.combinations(range(1, last), p - 1):
            for sizes in itertools.product((1, 2), repeat=p):
                if sum(sizes) == 4:
                    kinds = ("none",) * p
                    one = Division((0, *inner, last), sizes, kinds, float("inf"), float("inf"))
                    found = search.trials.trial(microbatches, one)
                    assert found is not None
                    steps.append(found.ranked.step_s)
    for inner in itertools.combinations(range(1, last), 3):  # two stages in turn on each of two
        one = Division((0, *inner, last), (2,) * 4, ("none",) * 4, float("inf"), float("inf"),
                       Turns(2))  # fmt: skip
        found = search.trials.trial(microbatches, one) if microbatches % 2 == 0 else None
        steps += [found.ranked.step_s] if found else []
    assert len(steps) >= 4
    bound = search.lower_bound_s(min(steps))
    assert 0.0 < bound <= min(steps)
    assert bound > 0.2 * min(steps)


@pytest.mark.exhaustive
def test_the_bound_of_a_plan_is_that_of_its_search():
    search = search_of(2, 4)
    found = search.run(2)
    assert found is not None
    assert search.lower_bound_s(found.ranked.step_s) <= found.ranked.step_s


@pytest.mark.parametrize("name", usual(["4xh100", "6xh100", "slow"], ["6xh100"]))
def test_every_choice_of_every_program_is_above_the_floor(name: str):
    """Each operation at its least on each mesh, which no choice on it is below."""
    cluster = slow_machine(8) if name == "slow" else parse_cluster(name)
    close = 0
    for case in CASES.values():
        traced = trace(case.fn, *case.args)
        program = program_for(traced, Options(), cluster)
        floor = least_step_s(program.facts, ComputeModel(cluster), cluster.num_devices)
        search = Search(program, Request(cluster, Options()))
        for shape in mesh_shapes(cluster):
            built = MeshSearch(search.scope, mesh_of(shape)).builder.build()
            least = sum(float(cost.min()) for cost in built.work)
            assert floor <= least * (1 + 1e-9)
            close += 0 < least <= floor * (1 + 1e-9)
    assert close > 20  # the finest meshes have the best way of each operation


@pytest.mark.parametrize("cluster", ["4xh100", slow_machine(4)], ids=str)
def test_no_plan_that_is_proved_the_best_is_below_the_floor(cluster: Any):
    proved = 0
    for case in list(CASES.values())[::5]:
        best = plan(case.fn, *case.args, cluster=cluster, baselines=False, substitutions=False)
        program = program_for(trace(case.fn, *case.args), Options(), best.cluster)
        machine = best.cluster
        floor = least_step_s(program.facts, ComputeModel(machine), machine.num_devices)
        assert floor <= best.step_s * (1 + 1e-9)
        proved += best.stop is Stop.OPTIMAL
    assert proved


def test_a_plan_cut_short_has_a_bound():
    """The deadline passes before any but the first of the finest meshes."""

    def step(params: Any, x: Any) -> Any:
        return layered(params, {"x": x})

    args = (
        [(Shape((512, 2048), jnp.float32), Shape((2048, 512), jnp.float32))] * 2,
        Shape((4096, 512), jnp.float32),
    )
    given = {"cluster": "64xh100:8", "baselines": False, "substitutions": False}
    short, full = plan(step, *args, time_limit_s=1e-3, **given), plan(step, *args, **given)
    assert short.stop is Stop.TIME_LIMIT
    assert 0.2 * full.step_s < short.lower_bound_s <= full.step_s
    assert short.gap < 0.9
