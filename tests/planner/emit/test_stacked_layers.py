# pyright: basic
"""Layers that a Python loop takes out of a stack: stages hold those that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from planner.common.errors import PlanError
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.uses import Use
from tests.helpers_exhaustive import usual

from .pipelines import (
    CLIPPED,
    arguments,
    arguments_apart,
    assert_equal_steps,
    cuts_near,
    pipeline_of,
    written_out,
)

LAYERS = 6


def stacked(take: Callable[[Any, int], Any], order: Sequence[int] = range(LAYERS)) -> Any:
    """A loss whose layers are taken out of stacks, with dropout in each, and tied embeddings."""

    def loss_fn(params: Any, batch: Any) -> Any:
        x = params["tok"][batch["ids"]]
        keys = jax.random.split(batch["key"], LAYERS)
        for k in order:
            p = jax.tree.map(lambda leaf, k=k: take(leaf, k), params["layers"])
            y = jnp.tanh(x @ p["w"] + p["b"])
            x = x + jnp.where(jax.random.bernoulli(keys[k], 0.9, y.shape), y / 0.9, 0.0)
        each = optax.softmax_cross_entropy_with_integer_labels(x @ params["tok"].T, batch["ids"])
        return jnp.mean(each) + 1e-2 * jnp.sum(params["gain"] ** 2), {"each": each}

    return loss_fn


def indexed(leaf: Any, k: int) -> Any:
    return leaf[k]


def computed(leaf: Any, k: int) -> Any:
    """Of a stack that is computed as a whole, entry by entry."""
    return (2 * jnp.tanh(leaf))[k]


def strided(leaf: Any, k: int) -> Any:
    """Of every second entry."""
    return leaf[k % 2 :: 2][k // 2]


def in_halves(leaf: Any, k: int) -> Any:
    """Of parts of the stack."""
    return jnp.split(leaf, 2)[k // 3][k % 3]


def unstacked(leaf: Any, k: int) -> Any:
    """Of all entries, taken apart at once."""
    return jnp.unstack(leaf)[k]


def partly(leaf: Any, k: int) -> Any:
    """Of a part of each entry, from the end."""
    return jnp.concatenate([leaf[k - LAYERS, :3], leaf[k, 3:]])


def reversed_stack(leaf: Any, k: int) -> Any:
    """Of a stack that is turned round, which is read whole."""
    return leaf[::-1][k]


PIECES = tuple((k, k + 1) for k in range(LAYERS))
HALVES = ((0, 3), (3, 6))
CASES: dict[str, tuple[Any, dict[str, Any], Sequence[tuple[int, int]]]] = {
    "layer by layer": (stacked(indexed), {}, PIECES),
    "sharded, adamw": (
        stacked(indexed), {"mesh": (2, 2), "optimizer": optax.adamw(1e-2)}, PIECES,
    ),
    "computed stack": (stacked(computed), {"schedule": "zb-h1", "mesh": (2, 2)}, PIECES),
    "other order": (stacked(indexed, (3, 0, 5, 1, 2, 4)), {"mesh": (4,)}, PIECES),
    "a layer twice": (stacked(indexed, (0, 1, 2, 3, 4, 5, 1, 0)), {"mesh": (2, 2)}, PIECES),
    "a layer never": (
        stacked(indexed, (1, 2, 4)), {"optimizer": optax.adamw(1e-2)}, ((0, 2), (2, 4), (4, 6)),
    ),
    "halves": (stacked(in_halves), {"mesh": (2, 2)}, PIECES),
    "unstacked": (stacked(unstacked), {"mesh": (2, 2)}, PIECES),
    "parts of entries": (stacked(partly), {"recompute": ("full", "selective")}, PIECES),
    "strided": (stacked(strided), {}, ((0, -1),)),
    "turned round": (stacked(reversed_stack), {"mesh": (2, 2)}, ((0, -1),)),
    "norm of each leaf": (stacked(indexed), {"optimizer": optax.lamb(1e-2)}, PIECES),
    "both directions": (
        stacked(indexed), {"schedule": "chimera", "sizes": (4, 4), "mesh": (2, 2)}, PIECES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", usual(CASES, ("sharded, adamw", "a layer twice", "a layer never")))
def test_stages_that_hold_their_layers_train_as_the_step_does(name: str) -> None:
    loss_fn, settings, _ = CASES[name]
    assert_equal_steps(loss_fn, *arguments(LAYERS), has_aux=True, **settings)


@pytest.mark.parametrize("name", CASES)
def test_a_stage_holds_the_layers_that_it_reads(name: str) -> None:
    """What is read in part by all readers is held in pieces, each with the stages that read it."""
    loss_fn, settings, pieces = CASES[name]
    params, batch = arguments(LAYERS)
    optimizer = settings.get("optimizer", CLIPPED)
    loss = opened(loss_fn, params, batch, optimizer, microbatches=4, has_aux=True)
    cut = cut_of(loss, cuts_near(loss.chain, (1.0, 1.0)))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
    for leaf in (names.index("['layers']['b']"), names.index("['layers']['w']")):
        held = [{use for use in stage.params if use.leaf == leaf} for stage in cut.stages]
        assert {*held[0], *held[1]} == {Use(leaf, *piece) for piece in pieces}
        if len(pieces) == LAYERS and name != "a layer twice":
            assert held[0].isdisjoint(held[1])
            assert {len(held[0]), len(held[1])} <= {2, 3, 4}


def test_a_run_of_slots_reads_the_bytes_of_its_layers() -> None:
    """Also where entries are read of a stack that is computed of parameters."""
    for take in (indexed, computed):
        apart = chain_bytes(written_out, *arguments_apart(LAYERS))
        together = chain_bytes(stacked(take), *arguments(LAYERS))
        assert together == apart


def chain_bytes(loss_fn: Any, params: Any, batch: Any) -> list[list[float]]:
    """Bytes of the parameters that each op reads."""
    loss = opened(loss_fn, params, batch, CLIPPED, microbatches=4, has_aux=True)
    return [sorted(size for _, size in slot.params) for slot in loss.chain.slots if slot.params]


@pytest.mark.parametrize("starts", usual([(0, 19), (0, 13, 25)], ((0, 19),)))
def test_stages_in_one_program_hold_their_layers(starts: tuple[int, ...]) -> None:
    """Each slot that is named begins a layer."""
    loss_fn, args = stacked(indexed), arguments(LAYERS)
    optimizer, count = optax.adamw(1e-2), len(starts)
    loss = opened(loss_fn, *args, optimizer, microbatches=4, has_aux=True)
    assert_equal_steps(
        loss_fn, *args, schedule="gpipe", cuts=(*starts, len(loss.chain.slots)), scanned=True,
        sizes=(2,) * count, mesh=(2,), has_aux=True, optimizer=optimizer,
    )  # fmt: skip


def test_layers_in_another_order_are_not_run_as_one_program() -> None:
    with pytest.raises(PlanError, match="hold layers 0 to 0, 3 to 3, 5 to 5, 1 to 2, 4 to 4"):
        pipeline_of(
            stacked(indexed, (3, 0, 5, 1, 2, 4)), *arguments(LAYERS), schedule="gpipe",
            scanned=True, mesh=(2, 2), has_aux=True,
        )  # fmt: skip
