# pyright: basic
"""Random training steps on 8 devices, with values and state on hosts or made again at random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fuzz.training import random_training
from ir import HOST_COPIES, Graph, check, replicated
from ir.analysis import Decisions, flatten, host_values
from ir.trace import Program, Traced, trace
from planner import PlanError
from planner.emit import compile_plan
from planner.sharding.recompute.host_states import parameters_of, states_of
from planner.sharding.recompute.hosted import stacked_values
from planner.sharding.recompute.hosted_written import written_bodies
from planner.sharding.recompute.keep import recomputes
from planner.sharding.recompute.saved import Layer, layers_of
from planner.sharding.recompute.variants import (
    kept_by,
    variant_of,
    with_states,
    with_values_on_host,
)
from planner.training.step import BuiltStep, build_step
from tests.planner.emit.plans import CUBE, LINE, lowered, random_decisions

RTOL, ATOL = 2e-3, 2e-5


def random_values(layers: tuple[Layer, ...], seed: int) -> list[tuple[tuple[int, ...], int]]:
    """The results of a random share of the nodes that can be computed again."""
    draw = random.Random(seed)
    share = draw.choice((0.3, 0.7, 1.0))
    nodes = [(layer, n) for layer in layers for n in layer.nodes if draw.random() < share]
    return [key for layer, node in nodes for key in layer.keys([node])]


def random_stacks(program: Program, seed: int) -> list[tuple[tuple[int, ...], int]]:
    """Values that loops over layers stack up, each with one chance in two."""
    draw = random.Random(seed)
    return [one.key for one in stacked_values(program) if draw.random() < 0.5]


def random_written(program: Program, seed: int) -> list[tuple[tuple[int, ...], int]]:
    """Values of layers that are written out, each with one chance in two."""
    draw = random.Random(seed)
    return [
        key for body in written_bodies(program) for key, _ in body.each() if draw.random() < 0.5
    ]


def random_states(traced: Traced, seed: int) -> list[int]:
    """State of the optimizer and parameters of loops, each array with one chance in two."""
    draw = random.Random(seed)
    may = (*states_of(traced), *parameters_of(traced))
    return [one.argument for one in may if draw.random() < 0.5]


def whole_on_host(graph: Graph, decisions: Decisions) -> Decisions:
    """Decisions under which every device has the whole of what is on its host."""
    flat = flatten(graph)
    away, whole = host_values(flat), ("",) * len(decisions.mesh.names)
    copies = {op.place: whole for op in flat.ops if op.node.op in HOST_COPIES}
    values = {
        key: replicated(len(state.dims)) if flat.names[key] in away else state
        for key, state in decisions.values.items()
    }
    ends = [
        tuple(replicated(len(s.dims)) if v in away else s for s, v in zip(states, at, strict=True))
        for states, at in ((decisions.inputs, flat.inputs), (decisions.outputs, flat.outputs))
    ]
    return replace(
        decisions, ops={**decisions.ops, **copies}, values=values, inputs=ends[0], outputs=ends[1]
    )


def check_step(seed: int) -> int:
    """Compares a random step with the step as written; returns the nodes that were added."""
    loss, params, batch, optimizer, settings = random_training(seed)
    built = _built(loss, params, batch, optimizer, settings.microbatches, settings.has_aux)
    args = params, built.init(params), batch
    kept = kept_by(trace(built.fn, *args))
    assert not recomputes(kept.program)
    variant = variant_of(kept, random_values(layers_of(kept.program), seed))
    program = variant.traced.program
    away = random_stacks(program, seed) + random_written(program, seed)
    hosted = with_values_on_host(variant, away)
    chosen = with_states(hosted, random_states(hosted.traced, seed)).traced
    check(chosen.graph, after="recompute")
    drawn = random_decisions(chosen.graph, (CUBE, LINE)[seed % 2], seed)
    decisions = whole_on_host(chosen.graph, drawn)
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
