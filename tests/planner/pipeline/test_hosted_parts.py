# pyright: basic
"""Programs of stages as XLA's GPU compiler has them: exact bytes in the memory of the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from costmodel import parse_cluster
from ir.analysis import flatten, host_values
from ir.jax_compilers import platform_named, put_arguments
from planner.common.options import Options
from planner.common.request import Request
from planner.emit.compilers import devices_for, has_plugin
from planner.emit.jit import HOST_MEMORY
from planner.emit.pipeline.layout import Planned
from planner.pipeline.cut.forward_backward import Part
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.solved_stage import solved_of
from planner.pipeline.cut.stage_gradient import Joint, joint_of
from planner.pipeline.cut.stage_training_step import ROLES, training_step_of
from planner.pipeline.divide.stage_price import price_of
from planner.pipeline.stage_planner import phases_of
from planner.sharding.plan_traced import One, plan_traced
from planner.training.step_call import StepCall

from .hosted import random_choices
from .test_stage_hosts import SGD


def loss_fn(params: Any, batch: Any) -> Any:
    x, _ = lax.scan(lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None), batch["x"], params)
    return jnp.mean(x**2)


def written_out(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for one, two in params:
        x = x + jnp.tanh(x @ one) @ two
    return jnp.mean(x**2)


@pytest.mark.skipif(not has_plugin(), reason="XLA's GPU compiler is not installed")
@pytest.mark.parametrize("seed", [0, 1])
def test_gpus_hold_the_predicted_bytes_on_the_host(seed: int) -> None:
    args = jnp.ones((4, 2, 256, 256)), {"x": jnp.ones((512, 256))}
    loss = opened(loss_fn, *args, SGD, microbatches=2)
    joint = joint_of(loss.program, cut_of(loss, (0, 2, len(loss.chain.slots))), 0)
    forward, backward, nbytes = memories_of(random_choices(seed)(joint, 0))
    assert forward.host_output_size_in_bytes == nbytes > 0
    assert backward.host_argument_size_in_bytes == nbytes
    others = forward.host_argument_size_in_bytes, backward.host_output_size_in_bytes
    assert others == (0, 0)


@pytest.mark.skipif(not has_plugin(), reason="XLA's GPU compiler is not installed")
@pytest.mark.parametrize("seed", [0, 1])
def test_gpus_hold_the_predicted_bytes_of_layers_written_out(seed: int) -> None:
    args = [(jnp.ones((256, 256)),) * 2] * 4, {"x": jnp.ones((512, 256))}
    loss = opened(written_out, *args, SGD, microbatches=2)
    joint = joint_of(loss.program, cut_of(loss, (0, len(loss.chain.slots))), 0)
    forward, backward, nbytes = memories_of(random_choices(seed, written=True)(joint, 0))
    assert forward.host_output_size_in_bytes == nbytes > 0
    assert backward.host_argument_size_in_bytes == nbytes
    others = forward.host_argument_size_in_bytes, backward.host_output_size_in_bytes
    assert others == (0, 0)


def memories_of(joint: Joint) -> tuple[Any, Any, float]:
    """What the compiler says of both passes of a stage, and the bytes that its price has."""
    stage = training_step_of(joint, 2, SGD)
    one = One(StepCall(loss_fn, (), (), "auto"), 2, (0, 1), ROLES, "stage 0")
    request = Request(parse_cluster("2xh100"), Options(mesh=(2,), baselines=False))
    _, found = plan_traced(one, stage.traced, request, 0.0)
    best, parts = found.best, stage.program.parts
    price = price_of(best, phases_of(stage), stage.body.graph, 2)
    solved = solved_of(stage, best.decisions, best.builder.cache.reshard)
    layout = Planned(solved, tuple(devices_for("gpu-aot", 2, 8, "h100")))
    sums = {*stage.program.args["sums"]}
    forward = memory_of(parts.forward, layout, sums, 0)
    added = len(parts.backward.makes) - len(stage.program.outgoing)
    return forward, memory_of(parts.backward, layout, sums, added), price.host_bytes


def memory_of(part: Part, layout: Planned, sums: set[int], added: int) -> Any:
    """What the compiler says of a part of a stage."""
    heads, graph = len(part.program.consts), part.program.graph
    flat = flatten(graph)
    away = host_values(flat)
    structs = [jax.ShapeDtypeStruct(i.type.shape, i.type.dtype) for i in graph.inputs[heads:]]
    with platform_named("cuda"):
        lowered = layout.jit(part, "part", sums, added).lower(*structs)
        # described devices have no memories
        there = [k for k, v in enumerate(flat.inputs[heads:]) if v in away]
        put_arguments(lowered, there, HOST_MEMORY, {})
        return lowered.compile().memory_analysis()
