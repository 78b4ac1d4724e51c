# pyright: basic
"""The lowered plan: equal from a choice and from its decisions, with the costs of the solver."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from costmodel import full_bytes
from ir import IRError, parse_plan, show_plan
from planner.emit import local_program
from planner.emit.jit import build_mesh
from planner.emit.local_op import partition_spec
from planner.sharding.lower import lower_decisions
from planner.training.step_call import step_for
from tests.planner.emit.models import MODELS
from tests.planner.emit.plans import model_of
from tests.planner.programs import BATCH, CASES, PARAMS, mean_loss
from tests.planner.spaces import Space, space

DRAWS = 4
Key = tuple[str | None, tuple[str, ...], float]  # kind, axes, bytes that it is measured by


def training() -> Space:
    call = step_for(
        mean_loss, (PARAMS, BATCH), optimizer=optax.adam(1e-3), microbatches=2,
        loss_reduction="auto",
    )  # fmt: skip
    return space(call.fn, *call.args, donate=(0, 1))


def spaces(name: str) -> Space:
    return training() if name == "training" else space(CASES[name].fn, *CASES[name].args)


@pytest.mark.parametrize("name", [*sorted(CASES), "training"])
def test_choice_and_its_decisions_are_one_plan(name: str) -> None:
    found, rng = spaces(name), np.random.default_rng(0)
    reshard, tied = found.builder.cache.reshard, found.builder.tied_in
    for _ in range(DRAWS):
        choice = found.draw(rng)
        if not np.isfinite(found.built.problem.cost(choice)):
            continue
        plan = found.decided(choice).plan
        assert lower_decisions(found.flat, plan.decisions, reshard, tied) == plan
        assert parse_plan(show_plan(plan)) == plan
        for moved in plan.reshards:
            states = [moved.change.before, *(step.after for step in moved.change.steps)]
            assert [step.before for step in moved.change.steps] == states[:-1]
            assert states[-1] == moved.change.after != moved.change.before


@pytest.mark.parametrize("name", [*sorted(CASES), "training"])
def test_its_steps_cost_what_the_solver_counts(name: str) -> None:
    found, rng = spaces(name), np.random.default_rng(1)
    reshard = found.builder.cache.reshard
    for _ in range(DRAWS):
        choice = found.draw(rng)
        cost = found.built.problem.cost(choice)
        if np.isfinite(cost):
            spent = sum(
                reshard.step_s(step, moved.change.type) * moved.weight
                for moved in found.decided(choice).plan.reshards
                for step in moved.change.steps
            )
            sums = found.account(choice)
            inside = sum(each.seconds for each in sums.inside)
            assert sums.communication_s == pytest.approx(spent + inside, rel=1e-9)
            # what ops exchange themselves and wait for is part of their own costs
            hidden = spent + sum(each.exposed_s for each in sums.inside) - sums.exposed_s
            assert hidden >= -1e-9 * spent
            assert found.built.compute_s(choice) + spent - hidden == pytest.approx(cost, rel=1e-9)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_its_collectives_are_those_that_are_written(name: str) -> None:
    function, args = MODELS[name]
    found, rng = space(function, *args), np.random.default_rng(2)
    drawn = (found.draw(rng) for _ in range(50))
    choice = next(c for c in drawn if np.isfinite(found.built.problem.cost(c)))
    plan, mesh = found.decided(choice).plan, found.mesh
    program = local_program(found.traced.program, plan)
    mapped = jax.shard_map(
        program, mesh=build_mesh(mesh), in_specs=tuple(map(partition_spec, plan.arguments)),
        out_specs=tuple(map(partition_spec, plan.results)), check_vma=False,
    )  # fmt: skip
    jax.eval_shape(mapped, *found.traced.program.consts, *found.traced.args_info)
    said, written = defaultdict[Key, float](float), defaultdict[Key, float](float)
    for moved in plan.reshards:
        for step in moved.change.steps:
            size = full_bytes(step, moved.change.type, mesh)
            said[step.collective, step.axes, size] += moved.weight
    for each in found.account(choice).inside:
        said[each.kind, each.axes, each.sent_bytes / each.count] += each.count
    for item in program.written:
        size = full_bytes(item.step, item.type, mesh)
        written[item.step.collective, item.step.axes, size] += item.count
    assert sent(said) == pytest.approx(sent(written))


def sent(counts: dict[Key, float]) -> dict[Key, float]:
    """Without steps that send nothing."""
    return {key: count for key, count in counts.items() if key[0] is not None}


def test_roles_of_another_program_are_refused() -> None:
    found = training()
    decisions = found.decided((0,) * found.built.problem.size).plan.decisions
    wrong = dict.fromkeys(decisions.ops, ("nothing",) * len(found.mesh.names))
    with pytest.raises(IRError, match="not legal"):
        lower_decisions(found.flat, replace(decisions, ops=wrong), model_of(found.mesh), {})
