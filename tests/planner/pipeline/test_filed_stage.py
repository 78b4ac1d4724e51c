# pyright: basic
"""Phases of a stage read from its plan's text are those of the stage that was traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from ir import IRError, parse, show
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.stage_training_step import stage_training_step
from planner.pipeline.filed_stage import filed_stage
from planner.pipeline.stage_planner import phases_of
from tests.planner.emit.pipelines import CLIPPED, arguments, everything, masked


def rounded(params: Any, batch: Any) -> Any:
    """Whole numbers and casts of them go from layer to layer beside activations."""
    x = jax.nn.one_hot(batch["ids"], 16) @ params["tok"]
    for k in range(3):
        level = jnp.round(x * 4).astype(jnp.int32)
        steps = (level % 3).astype(jnp.float32)
        x = jnp.tanh(x @ params["layers"]["w"][k]) * params["gain"] + 0.1 * steps
    x = x + (jnp.argmax(x, axis=-1, keepdims=True) > level).astype(jnp.float32)
    return jnp.mean(x**2), {"top": jnp.max(level, axis=(1, 2))}


@pytest.mark.parametrize("kinds", [("none",) * 3, ("stage",) * 3, ("full", "selective", "none")])
@pytest.mark.parametrize("loss_fn", [everything, masked, rounded])
def test_phases_are_those_of_the_traced_stage(loss_fn: Any, kinds: tuple[str, ...]) -> None:
    params, batch = arguments()
    optimizer = CLIPPED if loss_fn is everything else optax.adam(1e-3)
    loss = opened(loss_fn, params, batch, optimizer, microbatches=4, has_aux=True)
    if loss.chain.recomputes and kinds[0] == "full":
        pytest.skip("only whole stages are computed again in a program with its own checkpoints")
    places = list(loss.chain.places())
    cuts = (0, places[len(places) // 3], places[2 * len(places) // 3], len(loss.chain.slots))
    cut = cut_of(loss, cuts, kinds)
    for s in range(3):
        stage = stage_training_step(loss, cut, s, optimizer)
        graph = parse(show(stage.traced.graph))
        roles = [item.role for item in stage.traced.graph.inputs]
        found = filed_stage(graph, roles, 4).phases
        expected = phases_of(stage)
        assert found.loop == expected.loop
        for name in ("forward", "input_gradient", "weight_gradient", "saved", "takes", "sums",
                     "own"):  # fmt: skip
            assert list(getattr(found, name)) == list(getattr(expected, name)), (s, name)


def test_a_program_without_a_loop_over_microbatches_is_no_stage() -> None:
    graph = parse(show(stage_of_one().traced.graph))  # of 4 micro-batches
    roles = [item.role for item in graph.inputs]
    with pytest.raises(IRError, match="no loop over its micro-batches"):
        filed_stage(graph, roles, 5)


def stage_of_one() -> Any:
    params, batch = arguments()
    loss = opened(everything, params, batch, CLIPPED, microbatches=4, has_aux=True)
    cut = cut_of(loss, (0, len(loss.chain.slots)), ("none",))
    return stage_training_step(loss, cut, 0, CLIPPED)
