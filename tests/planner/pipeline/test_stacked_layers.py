# pyright: basic
"""Plans in stages of losses that take their layers out of stacks in a Python loop."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from planner import load, plan
from planner.emit.pipeline.holdings import Pieces
from planner.result.moves.held_arrays import held_arrays
from tests.planner.emit.pipelines import arguments, arguments_apart, written_out
from tests.planner.emit.test_stacked_layers import LAYERS, indexed, reversed_stack, stacked
from tests.planner.programs import linked, slow_machine

from .trained import assert_trains
from .unproved import without_proof

ADAM = optax.adamw(1e-2)
INDEXED, REVERSED = stacked(indexed), stacked(reversed_stack)


def training(params: Any, batch: Any) -> tuple[Any, Any]:
    """Parameters, all of which the optimizer trains, and a batch."""
    return {name: leaf for name, leaf in params.items() if name != "count"}, batch


@cache
def planned(loss_fn: Any) -> Any:
    make = arguments_apart if loss_fn is written_out else arguments
    with without_proof():
        return plan(
            loss_fn, *training(*make(LAYERS)), optimizer=ADAM, has_aux=True, pipeline=2,
            microbatches=4, cluster=linked(slow_machine(4)), baselines=False, substitutions=False,
            schedules=("1f1b",),
        )  # fmt: skip


def test_a_plan_from_a_file_trains_as_the_step_does(tmp_path: Path) -> None:
    made = planned(INDEXED)
    made.save(tmp_path / "plan.json")
    assert_trains(load(tmp_path / "plan.json"), ADAM, INDEXED, training(*arguments(LAYERS)))


def test_the_plan_is_that_of_parameters_apart() -> None:
    """In no more memory."""
    stacks, apart = planned(INDEXED).file, planned(written_out).file
    assert stacks.whole.step_s == apart.whole.step_s
    for a, b in zip(stacks.stages, apart.stages, strict=True):
        assert (a.layers, a.devices) == (b.layers, b.devices)
        assert a.peak_bytes <= b.peak_bytes


def test_the_plan_names_what_each_stage_holds() -> None:
    first, second = (set(stage.params) for stage in planned(INDEXED).file.stages)
    layers = {f"layers/{name}[{k}:{k + 1}]" for name in "bw" for k in range(LAYERS)}
    assert first | second == layers | {"tok", "gain"}
    assert first & second == {"tok"}
    assert "in copies    tok (512 B) on stages 0 and 1\n" in str(planned(INDEXED))
    whole = ("layers/w (1.54 kB)", "tok (512 B)", "layers/b (192 B)")
    text = "; ".join(f"{name} on stages 0 and 1" for name in whole)
    assert f"in copies    {text}\n" in str(planned(REVERSED))


def test_pieces_of_a_stack_and_of_its_moments_are_where_the_plan_has_them() -> None:
    made, (params, _) = planned(INDEXED), training(*arguments(LAYERS))
    trees = {
        "params": made.shard(params, argnum=0),
        "opt_state/0/mu": made.shard(made.bound.loss.built.init(params), argnum=1)[0].mu,
    }
    held = held_arrays(made)
    for prefix, tree in trees.items():
        placed = tree["layers"]["w"]
        assert isinstance(placed, Pieces)
        pieces = held[f"{prefix}/layers/w"].pieces
        assert [piece.low for piece in pieces] == list(range(LAYERS))
        devices = jax.devices()
        for piece, part in zip(pieces, placed.parts, strict=True):
            assert devices[piece.first] in part.sharding.device_set
    np.testing.assert_array_equal(np.asarray(trees["params"]["layers"]["w"]), params["layers"]["w"])
