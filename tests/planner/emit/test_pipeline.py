# pyright: basic
"""Pipelines on eight host devices compute what the unsharded step computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner.common.errors import PlanError
from planner.emit.pipeline.holdings import Pieces
from planner.emit.pipeline.prepared import start_each
from planner.pipeline.schedule import schedules
from tests.helpers_exhaustive import usual
from tests.helpers_internals import ArrayImpl

from .pipelines import (
    CLIPPED,
    RUN,
    arguments,
    assert_equal_steps,
    everything,
    masked,
    pipeline_of,
)

CASES = {
    "gpipe unequal, recomputed": {
        "schedule": "gpipe", "sizes": (6, 2), "shares": (3.0, 1.0),
        "recompute": ("stage", "selective"),
    },
    "split by the planner": {"schedule": "zb-h1", "sizes": (4, 4), "mesh": (2, 2)},
    "zero bubble of four": {"schedule": "zb-h1", "sizes": (2, 2, 2, 2)},
    "two chunks a device": {"schedule": "interleaved", "sizes": (4, 4)},
}  # fmt: skip
MORE = {
    "full recomputation": {"schedule": "1f1b", "sizes": (4, 4), "recompute": ("full", "full")},
    "1f1b": {"schedule": "1f1b", "sizes": (4, 4)},
    "v shape": {"schedule": "zb-v", "sizes": (1, 3), "recompute": ("stage",) * 4},
    "both directions": {"schedule": "chimera", "sizes": (2, 2, 2, 2)},
    "eager": {"schedule": "1f1b-eager", "sizes": (3, 5)},
    "twice the warm-up": {"schedule": "zb-h2", "sizes": (4, 4), "optimizer": optax.adamw(1e-2)},
    "factored moments": {
        "schedule": "1f1b", "sizes": (4, 4),
        "optimizer": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    },
    "norm of each layer": {"schedule": "1f1b", "sizes": (4, 4), "optimizer": optax.lamb(1e-2)},
}  # fmt: skip
TAKE_MORE = {"interleaved", "chimera"}  # as many micro-batches as there are stages, or a multiple
SINGLE = [name for name in RUN if name not in TAKE_MORE]


@pytest.fixture(autouse=True)
def compiled_in_haste():
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# Chunks in turn: of a masked mean; stages split by the planner are of the zero bubble too.
@pytest.mark.parametrize(
    "name", usual(CASES, {*CASES} - {"two chunks a device", "zero bubble of four"})
)
def test_three_steps_are_those_of_the_unsharded_program(name: str):
    assert_equal_steps(everything, *arguments(), has_aux=True, **CASES[name])


MASKED = {
    "two chunks a device": {"schedule": "interleaved", "sizes": (2, 2)},
    "gpipe": {"schedule": "gpipe", "sizes": (4, 4)},
    "1f1b, split by the planner": {"schedule": "1f1b", "sizes": (4, 4), "mesh": (2, 2)},
}  # fmt: skip


@pytest.mark.parametrize("name", usual(MASKED, ["two chunks a device"]))
def test_a_masked_mean_with_dropout_is_that_of_the_whole_batch(name: str):
    assert_equal_steps(masked, *arguments(), has_aux=True, **MASKED[name])


def root(params, batch):
    """Its gradient waits for all micro-batches; aux reads what the whole batch gave, too."""
    value, aux = masked(params, batch)
    return jnp.sqrt(value) + 1e-2 * jnp.sum(params["tok"] ** 2), aux


def test_a_gradient_that_waits_for_other_micro_batches():
    assert_equal_steps(root, *arguments(), has_aux=True, schedule="1f1b", sizes=(2, 2))


def test_aux_of_parameters_and_sums_is_refused():
    def scaled(params, batch):
        value, _ = masked(params, batch)
        return value, jnp.sqrt(value) * params["gain"]

    with pytest.raises(PlanError, match="aux is computed from parameters and sums"):
        pipeline_of(scaled, *arguments(), has_aux=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MORE)
def test_three_steps_with_every_kind_of_schedule_and_state(name: str):
    assert_equal_steps(everything, *arguments(), has_aux=True, **MORE[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("schedule", RUN)
def test_every_schedule_on_two_and_four_stages_split_inside(schedule: str, stages: int):
    size = 8 // stages
    assert_equal_steps(
        everything, *arguments(layers=8), has_aux=True, schedule=schedule, sizes=(size,) * stages,
        mesh=(size,),
    )  # fmt: skip


@pytest.mark.parametrize("schedule", usual(SINGLE, {"1f1b-eager"}))
def test_one_micro_batch_in_two_stages(schedule: str):
    assert_equal_steps(
        everything, *arguments(), has_aux=True, schedule=schedule, mesh=(4,), microbatches=1
    )


@pytest.mark.parametrize("schedule", sorted(TAKE_MORE))
def test_schedules_that_take_no_single_micro_batch_say_so(schedule: str):
    with pytest.raises(PlanError, match="use a number of micro-batches that the stages divide"):
        pipeline_of(everything, *arguments(), has_aux=True, schedule=schedule, microbatches=1)


@pytest.mark.parametrize("schedule", usual(RUN, {"zb-v"}))
def test_starts_read_what_is_there_and_leave_results_alone(schedule: str):
    """Every array is there from its making to its last reader, and no longer."""
    recompute = ("stage", "none") * 4 if schedule in ("interleaved", "zb-v") else ("stage",) * 4
    _, pipeline = pipeline_of(
        everything, *arguments(layers=8), has_aux=True, schedule=schedule, sizes=(2,) * 4,
        recompute=recompute,
    )  # fmt: skip
    made = pipeline.prepared

    def numbers(*parts: slice) -> set[int]:
        return {k for part in parts for k in range(part.start, part.stop)}

    given = numbers(*made.params, *made.zeros, *made.rows.values())
    there = given | {*made.seeds.values()}
    ends = {*made.results.values(), *made.seeds.values()} | numbers(*made.sums)
    read: set[int] = set()
    for start in made.starts:
        assert {*start.reads} <= there
        read |= {*start.reads}
        for source, copy, _ in start.sends:
            assert source in there | numbers(start.outs)
            there.add(copy)
        there |= numbers(start.outs)
        there -= numbers(*(part for part, _ in start.dead))
    assert there - ends <= given - read  # Chimera gives all micro-batches to both copies
    assert ends <= there
    tasks = [start.task for start in made.starts]
    assert [*dict.fromkeys(tasks)] == [t for t in pipeline.order if t in set(tasks)]


def test_a_program_with_other_results_than_were_numbered_ends_the_step():
    _, pipeline = pipeline_of(
        everything, *arguments(layers=8), has_aux=True, schedule="1f1b", sizes=(4, 4)
    )
    start = pipeline.prepared.starts[0]
    env = [None] * pipeline.prepared.count
    short = replace(start, call=lambda *_: [0], sends=(), dead=())
    assert start.outs.stop - start.outs.start > 1
    with pytest.raises(RuntimeError, match="were numbered"):
        start_each([short], env)


def test_every_schedule_that_can_run_is_run():
    refused = {"token-slices", "1f1b-stashed"}
    assert set(RUN) == set(schedules()) - refused


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_parameters_keep_their_type(dtype: str):
    params, batch = arguments()
    params = jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params
    )
    _, pipeline = pipeline_of(everything, params, batch, has_aux=True)
    new, _, _ = pipeline(params, pipeline.place(state_of(params), 1), batch)
    assert jax.tree.map(lambda x: x.dtype, new) == jax.tree.map(lambda x: x.dtype, params)


def state_of(params: Any) -> Any:
    """Optimizer state without the leaves that no gradient reaches."""
    moving: Any = {k: v for k, v in params.items() if k != "count"} | {"count": None}
    return CLIPPED.init(moving)


def sum_loss(params, batch):
    y = jnp.tanh(batch["x"] @ params["a"])
    return jnp.sum(jnp.square(jnp.tanh(y @ params["b"]) @ params["c"]))


@pytest.mark.parametrize(("sizes", "mesh"), [((4, 2), None), ((4, 4), (2, 2))])
def test_a_step_donates_leaks_nothing_and_never_goes_through_the_host(monkeypatch, sizes, mesh):
    rng = np.random.default_rng(0)
    params = {k: jnp.asarray(rng.standard_normal((8, 8)), jnp.float32) for k in "abc"}
    batch = {"x": jnp.asarray(rng.standard_normal((8, 8)), jnp.float32)}
    loss, pipeline = pipeline_of(sum_loss, params, batch, sizes=sizes, mesh=mesh)
    params = pipeline.place(params, 0)
    state = pipeline.place(loss.built.init(params), 1)
    params, state, _ = pipeline(params, state, batch)
    fetch = ArrayImpl._value

    def refuse(self):
        raise AssertionError(f"{self.shape} of {self.sharding} is fetched to the host")

    monkeypatch.setattr(ArrayImpl, "_value", property(refuse))
    live = []
    for _ in range(2):
        old = jax.tree.leaves((params, state))
        params, state, value = pipeline(params, state, batch)
        jax.block_until_ready((params, state, value))
        assert all(x.is_deleted() for x in old)
        del old
        live.append(len(jax.live_arrays()))
    monkeypatch.setattr(ArrayImpl, "_value", fetch)
    assert live[0] == live[1]
    assert np.isfinite(float(value))


def test_stacks_lie_in_pieces_and_read_as_arrays():
    params, batch = arguments()
    _, pipeline = pipeline_of(everything, params, batch, has_aux=True, microbatches=1)
    placed = pipeline.place(params, 0)
    found = placed["layers"]["w"]
    assert isinstance(found, Pieces)
    assert found.shape == (4, 8, 8)
    homes = [part.sharding.device_set for part in found.parts]
    assert homes[0].isdisjoint(homes[1])
    np.testing.assert_array_equal(np.asarray(found), params["layers"]["w"])
    np.testing.assert_array_equal(jnp.asarray(found), params["layers"]["w"])


def test_what_cannot_run_is_refused():
    params, batch = arguments()
    with pytest.raises(PlanError, match="token slices"):
        pipeline_of(everything, params, batch, has_aux=True, schedule="token-slices")
    with pytest.raises(PlanError, match="8 examples do not divide into 3"):
        pipeline_of(everything, params, batch, has_aux=True, microbatches=3)

    def noisy(params, batch):
        jax.debug.print("{}", params["gain"][0])
        return everything(params, batch)

    with pytest.raises(PlanError, match="has effects"):
        pipeline_of(noisy, params, batch, has_aux=True)
