# pyright: basic
"""What to try next: each branch of the advice, with figures that follow from the plan."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from msgspec import structs

from planner import Options, Plan, plan
from planner.cli.main import COMMANDS
from planner.common.stop import ASKED
from planner.common.units_text import bytes_text, seconds_text
from planner.files.plan_file import Pipeline, PlanFile, StageRow
from planner.inspect.at_a_glance import at_a_glance
from planner.inspect.what_next import Use, next_of_program, next_of_stages

WIDTH = 256


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        x = batch
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


@pytest.fixture(scope="module")
def found() -> Plan:
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 2
    batch = jax.ShapeDtypeStruct((64, WIDTH), jnp.float32)
    options = Options(baseline="fsdp", mesh=(8,))
    return plan(step, params, batch, cluster="8xh100", options=options)


def said(found: Plan, **changes: Any) -> str:
    held = {"peak_bytes": found.program.limit_bytes - 8e9}  # no room for much more
    program = structs.replace(found.program, **held | changes)
    limits = at_a_glance(found.analysed).limits
    first = next(part for part in limits if " over " in part[0])
    return next_of_program(
        program,
        8,
        first=first,
        layout="fully sharded data parallel",
        use=Use(0.01, 0.01),
    )


def test_communication_is_named_with_the_step_without_it(found: Plan) -> None:
    glance = at_a_glance(found.analysed)
    what, share = next(part for part in glance.limits if " over " in part[0])
    assert found.program.exposed_s > 0.2 * found.step_s  # else this tests another branch
    text = said(found)
    assert glance.what_next.startswith(f"{what} is {share:.0%} of the step")
    assert f"takes {seconds_text(found.step_s - share * found.step_s)}" in text
    exposed = sum(c.exposed_s for c in found.program.collectives if what.startswith(c.kind))
    assert share * found.step_s <= exposed * (1 + 1e-9)
    assert "a larger batch helps" in text
    left = found.program.limit_bytes - found.peak_bytes
    assert f"{bytes_text(left)} of memory are left for it" in glance.what_next
    assert "memory are left" not in text  # little is
    program = found.program
    assert "faster links" in next_of_program(
        program, 8, first=(what, share), layout="tensor parallel", use=Use(0.01, 0.01)
    )


def test_compute_is_named_with_its_rate(found: Plan) -> None:
    alone = {"exposed_s": 0.0, "compute_s": found.step_s}
    text = said(found, **alone)
    assert "1% of the devices' peak" in text
    assert "devices=8,16" in text
    full = structs.replace(found.program, **alone, peak_bytes=0.9 * found.program.limit_bytes)
    busy = next_of_program(full, 8, first=("compute", 1.0), layout="", use=Use(0.4, 0.6))
    assert "60% of the devices' peak, so more devices help" in busy


def test_steps_of_launches_and_of_recomputation_are_told_apart(found: Plan) -> None:
    alone = structs.replace(found.program, exposed_s=0.0, compute_s=found.step_s)

    def about(program: Any, use: Use) -> str:
        return next_of_program(program, 8, first=("compute", 1.0), layout="", use=use)

    launches = about(alone, Use(0.001, 0.001, launches=0.8))
    assert "starting kernels is 80% of the step" in launches
    assert "devices=8,16" not in launches
    again = about(alone, Use(0.3, 0.4))
    assert "33% of the flops of products again" in again
    assert "--recompute search`" in again
    assert "again" not in about(alone, Use(0.3, 0.3))
    chosen = structs.replace(alone, recomputed=())  # by the planner already
    full = structs.replace(alone, peak_bytes=0.9 * alone.limit_bytes)
    assert all("again" not in about(program, Use(0.3, 0.4)) for program in (chosen, full))


def test_a_search_that_was_cut_short_and_full_memory_come_first(found: Plan) -> None:
    assert "--time-limit" in said(found, stop="TIME_LIMIT")
    full = next_of_program(
        structs.replace(found.program, peak_bytes=found.program.limit_bytes), 8,
        first=("compute", 1.0), layout="", use=Use(0.0, 0.0),
    )  # fmt: skip
    assert "memory is nearly full" in full
    assert f"--memory {2 * found.program.limit_bytes / 1e9:.2f}GB" in full


def staged(busy: tuple[float, ...], bubble: float, asked: str = "") -> tuple[PlanFile, Pipeline]:
    pipeline = Pipeline(
        name="f", cluster={}, step_s=1.0, lower_bound_s=0.4, bubble=bubble, limit_bytes=1.0,
        microbatches=4, schedule="1f1b", chunks=1, loss_reduction="mean", baselines={},
        warnings=(ASKED + asked,) if asked else (),
    )  # fmt: skip
    rows = tuple(StageRow((s, s + 1), (s, s + 1), t, 1.0, "none") for s, t in enumerate(busy))
    return PlanFile("meshwright-plan", 6, "0", "0", rows, (), pipeline), pipeline


def test_stages_that_wait_are_uneven_or_few_micro_batches() -> None:
    uneven = next_of_stages(*staged((0.9, 0.1, 0.1, 0.1), 0.7), full=False)
    assert "the busiest works 900 ms and the mean 300 ms" in uneven
    assert "spread evenly, without any waiting, it takes 300 ms" in uneven
    even = next_of_stages(*staged((0.7, 0.7), 0.3), full=False)
    assert "it takes 700 ms" in even
    assert "a larger batch" in even
    for text in (uneven, even):  # the bound is of all numbers of stages and micro-batches
        assert "other pipelines are at most 60% faster" in text
        assert "--pipeline" not in text
        assert "--microbatches" not in text
    good = next_of_stages(*staged((0.9, 0.95), 0.08), full=False)
    assert "other pipelines are at most 60% faster" in good
    assert "devices=2,4" in good
    late = structs.replace(staged((0.7, 0.7), 0.3)[1], stop="TIME_LIMIT")
    assert "--time-limit" in next_of_stages(staged((0.7, 0.7), 0.3)[0], late, full=False)


def test_what_was_asked_for_may_be_left_out() -> None:
    text = next_of_stages(*staged((0.7, 0.7), 0.3, "microbatches=4"), full=False)
    assert "leave out what was asked for (microbatches=4)" in text
    assert "at most" not in text  # the bound is of pipelines with it


def test_the_commands_are_there(found: Plan) -> None:
    names = re.findall(r"`meshwright (\w+)", said(found) + said(found, exposed_s=0.0))
    assert names
    assert {*names} <= {*COMMANDS}
