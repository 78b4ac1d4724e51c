# pyright: basic
"""Copies of values that a backward pass computes again: what they read, and what they wait for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir.evaluate import plain_program
from ir.trace import trace
from planner.sharding.recompute.again import with_recompute
from planner.sharding.recompute.choices import choices
from planner.sharding.recompute.keep import keeping_all
from planner.sharding.recompute.kinds import chosen_by_kind
from planner.sharding.recompute.saved import layers_of
from tests.planner.sharding.recompute.test_recompute import WIDTH, values_of

TYPES = "bfloat16", "float32", "bfloat16"


def test_what_copies_read_has_the_bits_that_are_kept() -> None:
    """Else the sum of a softmax is of unrounded logits in the forward pass, of rounded in copies.

    The reference is the program operation by operation, which rounds as it is written.
    """
    draw = np.random.default_rng(0)
    args = [draw.normal(size=s) * f for s, f in (((4, 64, 64), 0.3), ((64, 128), 1), ((32, 64), 1))]
    w, e, x = (jnp.asarray(a, t) for a, t in zip(args, TYPES, strict=True))

    def step(w, e, x):
        def loss(w, e):
            h = x
            for each in w:
                h = h + jax.nn.gelu(h @ each) * 3 + jax.nn.softmax(h @ each)
            return jnp.mean(jax.nn.log_softmax(h.astype("float32") @ e)[:, 0])

        return jax.grad(loss, (0, 1))(w, e)

    kept = keeping_all(trace(step, w, e, x).program)
    with jax.disable_jit():
        wanted = plain_program(kept)(w, e, x)
    for values in choices(layers_of(kept), lambda _: 1e-6):
        again = with_recompute(kept, values)
        found = jax.jit(plain_program(again))(w, e, x)
        for one, other in zip(found, wanted, strict=True):
            one, other = (np.asarray(a, "float64") for a in (one, other))
            assert (
                np.abs(one - other).max() <= 0.05 * np.abs(other).max()
            )  # XLA's own error is 0.03


def test_barriers_hold_what_gradients_are_widened_from() -> None:
    """Else the barrier needs memory for what kernels widen as they read, and copies wait for it."""

    def step(w, x):
        def loss(w):
            return jnp.sum(jnp.mean(jnp.sin(jnp.tanh(x @ w)), axis=1) ** 2)

        return jax.grad(loss)(w)

    args = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((WIDTH, WIDTH), (8, WIDTH)))
    kept = keeping_all(trace(step, *args).program)
    program = with_recompute(kept, chosen_by_kind(layers_of(kept), "full"))
    nodes, makers = program.graph.nodes, list[Any](program.graph.inputs)
    for node in nodes:
        makers += [node] * len(node.outputs)
    reads = {id(n): [makers[v] for v in n.inputs if isinstance(v, int)] for n in nodes}
    regions = [node for node in nodes if node.op == "remat"]
    (widened,) = (n for n in nodes if n.op == "broadcast_in_dim" and reads[id(n)])
    assert all(widened not in reads[id(region)] for region in regions)
    assert reads[id(widened)][0] in regions
    for x, y in zip(values_of(program), values_of(kept), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
