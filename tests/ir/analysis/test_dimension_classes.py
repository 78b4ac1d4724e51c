# pyright: basic
"""Dimensions that belong together, through products, reshapes and loops."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ir.analysis import has_experts
from ir.analysis.dimension_classes import Classes
from tests.planner.emit.models import MODELS
from tests.planner.programs import BATCH, CASES, PARAMS, A, W, array, mean_loss
from tests.planner.spaces import Space, space


def classes(found: Space) -> Classes:
    return Classes(found.flat, [found.builder.spec(op) for op in found.flat.ops])


def test_batch_is_one_class_through_a_network() -> None:
    found = space(mean_loss, PARAMS, BATCH)
    of = classes(found)
    names = {found.flat.values[v].name: v for v in found.flat.inputs}
    batch = of.of_dim(names["batch/x"], 0)
    assert of.of_dim(names["batch/y"], 0) == batch
    assert of.of_dim(names["params/w1"], 1) == of.of_dim(names["params/b1"], 0)
    assert of.of_dim(names["params/w1"], 1) == of.of_dim(names["params/w2"], 0)
    distinct = {batch, of.of_dim(names["params/w1"], 0), of.of_dim(names["params/w1"], 1)}
    assert len(distinct) == 3
    first = next(i for i, op in enumerate(found.flat.ops) if op.node.op == "dot_general")
    assert of.of_factor(first, "m0") == batch


def test_loops_keep_classes_of_carries_and_slices() -> None:
    found = space(CASES["scanned"].fn, *CASES["scanned"].args)
    of = classes(found)
    carry, sums = found.outputs
    x = found.flat.inputs[1]
    assert of.of_dim(carry, 0) == of.of_dim(x, 0)
    assert of.of_dim(carry, 1) == of.of_dim(x, 1)
    assert of.of_dim(sums, 1) == of.of_dim(x, 1)
    assert of.of_dim(sums, 0) != of.of_dim(x, 0)


def test_a_merged_dimension_belongs_to_its_major_part() -> None:
    found = space(lambda x: x.reshape(32, 4).sum(1), array(8, 4, 4))
    of = classes(found)
    (out,) = found.outputs
    x = found.flat.inputs[0]
    assert of.of_dim(out, 0) == of.of_dim(x, 0)
    assert of.of_dim(out, 0) != of.of_dim(x, 1)


def test_dimensions_that_never_meet_stay_apart() -> None:
    found = space(lambda x, y: (jnp.sin(x), lax.transpose(y, (1, 0))), A, W)
    of = classes(found)
    x, y = found.flat.inputs
    every = {of.of_dim(v, d) for v in (x, y) for d in (0, 1)}
    assert len(every) == 4
    assert of.of_dim(found.outputs[1], 0) == of.of_dim(y, 1)


def test_a_loop_that_carries_a_constant_unchanged_has_no_experts() -> None:
    function, args = MODELS["scan"]  # its backward loop carries the gradient of a sum
    found = space(function, *args)
    assert any(link.source == link.target for link in found.flat.links)
    assert not has_experts(found.flat, found.builder.spec)
