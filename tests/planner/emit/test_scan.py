# pyright: basic
"""Pipelines as one program compute, on eight host devices, what the unsharded step computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner.common.errors import ArgumentError, PlanError
from planner.emit.pipeline.scan.classes import classes_of
from planner.pipeline.cut.opened_loss import opened
from tests.helpers_exhaustive import usual

from .pipelines import (
    CLIPPED,
    arguments,
    assert_equal_steps,
    everything,
    masked,
    pipeline_of,
)
from .test_pipeline import SINGLE, root

# First slot of each stage: two and four stages of equal layers of `everything`.
HALVES, QUARTERS = (0, 3, 32), (0, 2, 3, 4, 32)
CASES: dict[str, Any] = {
    "1f1b-deep": {"cuts": HALVES, "sizes": (2, 2), "mesh": (2,)},
    "gpipe": {"cuts": HALVES, "sizes": (4, 4), "mesh": (2, 2)},
    "1f1b": {"cuts": QUARTERS, "sizes": (2,) * 4, "mesh": (2,)},
    "zb-h1": {"cuts": QUARTERS, "sizes": (2,) * 4, "mesh": (2,)},
    "zb-h2": {"cuts": QUARTERS, "sizes": (2,) * 4, "mesh": (2,), "recompute": ("stage",) * 4},
}


@pytest.fixture(autouse=True)
def compiled_in_haste():
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize(
    "name",
    [name if i == 0 else pytest.param(name, marks=pytest.mark.exhaustive)
     for i, name in enumerate(CASES)],
)  # fmt: skip
def test_three_steps_are_those_of_the_unsharded_program(name: str):
    """With values that pass stages by, tied parameters, random bits, and results of all stages."""
    assert_equal_steps(
        everything, *arguments(), has_aux=True, schedule=name, scanned=True, **CASES[name]
    )


@pytest.mark.parametrize("name", usual([name for name in SINGLE if name != "zb-v"], {"gpipe"}))
def test_one_micro_batch_in_two_stages(name: str):
    assert_equal_steps(
        everything, *arguments(), has_aux=True, schedule=name, scanned=True, cuts=HALVES,
        sizes=(2, 2), mesh=(2,), microbatches=1,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_a_masked_mean_with_dropout_is_that_of_the_whole_batch():
    loss, _ = pipeline_of(masked, *arguments(), has_aux=True)
    first = next(k for k, (_, j) in enumerate(loss.layers.slots) if j == 0)
    assert_equal_steps(
        masked, *arguments(), has_aux=True, schedule="1f1b-eager", scanned=True, sizes=(4, 4),
        mesh=(2, 2), cuts=(0, first + 2, len(loss.layers.slots)),
    )  # fmt: skip


def squares(params: Any, batch: Any) -> Any:
    """Eight layers and nothing else."""
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], params["w"])
    return jnp.mean(x**2)


def of_squares(stages: int) -> tuple[Any, Any, Any, Any]:
    """Parameters, batch, loss and a step of stages on one device each."""
    params = {"w": jnp.ones((8, 4, 4)) / 4}
    batch = {"x": jnp.ones((8, 4))}
    slots = len(opened(squares, params, batch, CLIPPED, microbatches=4).layers.slots)
    loss, step = pipeline_of(
        squares, params, batch, schedule="1f1b-eager", scanned=True, sizes=(1,) * stages, mesh=(1,),
        cuts=(*range(0, 8, 8 // stages), slots),
    )  # fmt: skip
    return params, batch, loss, step


def test_a_step_leaves_the_caller_its_arrays_and_refuses_used_ones():
    params, batch, loss, step = of_squares(2)
    first, state = step.place(params, 0), loss.built.init(params)
    step(first, step.place(state, 1), batch)
    assert not params["w"].is_deleted()
    expected = jax.jit(loss.built.fn)(params, state, batch)
    found = step(step.place(params, 0), step.place(state, 1), batch)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6)
    with pytest.raises(ArgumentError, match="was given to an earlier step"):
        step(first, step.place(state, 1), batch)


def test_stages_that_are_the_same_program_share_their_branches():
    *_, step = of_squares(4)
    assert classes_of(step.layout) == [0, 1, 1, 3]
    # a stage sends what the next one takes; none keeps more than the schedule has in flight
    assert [form for form, _ in step.layout.ahead.forms] == [(2, 4)]
    assert max(step.layout.saved.sizes) <= 7 * max(map(max, step.layout.saved.counts))


def test_what_cannot_run_as_one_program_is_refused():
    args: Any = {"has_aux": True, "scanned": True, "mesh": (2,), "sizes": (2, 2)}
    with pytest.raises(PlanError, match="hold layers 0 to 2, 3 to 3 of a stack, not 2 each"):
        pipeline_of(everything, *arguments(), schedule="gpipe", cuts=(0, 4, 32), **args)
    with pytest.raises(PlanError, match="waits for sums over all of them"):
        pipeline_of(root, *arguments(), schedule="gpipe", **args)
