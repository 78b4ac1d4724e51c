# pyright: basic
"""Random training steps with random choices of what is computed again, on eight devices."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fuzz.training import random_training
from ir import check
from ir.trace import trace
from planner import PlanError
from planner.emit import compile_plan
from planner.sharding.recompute.keep import recomputes
from planner.sharding.recompute.saved import Layer, layers_of
from planner.sharding.recompute.variants import kept_by, variant_of
from planner.training.step import BuiltStep, build_step
from tests.planner.emit.plans import CUBE, LINE, lowered, random_decisions

RTOL, ATOL = 2e-3, 2e-5


def random_values(layers: tuple[Layer, ...], seed: int) -> list[tuple[tuple[int, ...], int]]:
    """The results of a random share of the nodes that can be computed again."""
    draw = random.Random(seed)
    share = draw.choice((0.3, 0.7, 1.0))
    nodes = [(layer, n) for layer in layers for n in layer.nodes if draw.random() < share]
    return [key for layer, node in nodes for key in layer.keys([node])]


def check_step(seed: int) -> int:
    """Compares a random step with the step as written; returns the nodes that were added."""
    loss, params, batch, optimizer, settings = random_training(seed)
    built = _built(loss, params, batch, optimizer, settings.microbatches, settings.has_aux)
    args = params, built.init(params), batch
    kept = kept_by(trace(built.fn, *args))
    assert not recomputes(kept.program)
    chosen = variant_of(kept, random_values(layers_of(kept.program), seed)).traced
    check(chosen.graph, after="recompute")
    decisions = random_decisions(chosen.graph, (CUBE, LINE)[seed % 2], seed)
    found = compile_plan(chosen, lowered(chosen, decisions))(*args)
    expected = jax.jit(built.fn)(*args)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        scale = max(1.0, float(np.abs(np.asarray(y)).max(initial=0.0)))
        np.testing.assert_allclose(
            np.asarray(x), np.asarray(y), rtol=RTOL, atol=ATOL * scale,
            err_msg=f"seed {seed}: {settings.what}",
        )  # fmt: skip
    return chosen.graph.count_nodes() - kept.graph.count_nodes()


def _built(
    loss: Any, params: Any, batch: Any, optimizer: Any, count: int, has_aux: bool
) -> BuiltStep:
    """The step on parts of the batch, or on the whole batch where it has no parts."""
    for microbatches in (count, 1):
        try:
            return build_step(
                loss, params, batch, optimizer, microbatches=microbatches, has_aux=has_aux
            )
        except PlanError:
            if microbatches == 1:
                raise
    raise AssertionError
