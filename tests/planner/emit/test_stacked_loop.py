# pyright: basic
"""Loops whose stacks begin with a number of what they are entered with give what a scan gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir.trace import trace
from planner import plan
from planner.emit.stacked_loop import entered_last, stacked_loop
from tests.helpers_internals import Literal, jaxprs_in_params

LENGTH = 5


def loop_of(fn: Any, *args: Any) -> tuple[Any, Any]:
    """The graph of a function, and the binding of its only loop."""
    traced = trace(fn, *args)
    (i,) = [n for n, node in enumerate(traced.program.graph.nodes) if node.op == "scan"]
    return traced.program.graph, traced.program.bindings[i]


def scanned(reverse: bool, **options: Any) -> Any:
    def fn(carry: Any, xs: Any) -> Any:
        return jax.lax.scan(body, carry, xs, reverse=reverse, **options)

    return fn


def body(carry: Any, x: Any) -> Any:
    total, count = carry
    total = jnp.sin(total) + x
    ys = total, total > 0, count * 2, total.astype(jnp.bfloat16), total + 1j
    return (total, count + 1), ys


def carried(values: Any) -> Any:
    return values, jnp.int32(3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("begin", [1.0, np.nan])
@pytest.mark.parametrize("options", [{}, {"unroll": 2}], ids=str)
def test_what_stacks_begin_with_is_never_read(
    reverse: bool, begin: float, options: dict[str, int]
) -> None:
    """Of all element types, in both directions, also where the number is none."""
    fn, xs = scanned(reverse, **options), jnp.arange(4.0 * LENGTH).reshape(LENGTH, 4)
    _, binding = loop_of(fn, carried(jnp.ones(4)), xs)

    def step(carry: Any, slices: Any) -> Any:
        after, ys = body(tuple(carry), slices[0])
        return list(after), list(ys)

    def run(carry: Any, xs: Any, entered: Any) -> Any:
        return stacked_loop(binding, step, list(carry), [xs], entered)

    found = jax.jit(run)(carried(jnp.ones(4)), xs, jnp.full((2, 2), begin))
    wanted = jax.tree.leaves(jax.jit(fn)(carried(jnp.ones(4)), xs))
    assert len(found) == len(wanted) == 7
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_keys_and_no_iterations_are_left_to_scan() -> None:
    def draw(key: Any, _: Any) -> Any:
        key, mine = jax.random.split(key)
        return key, mine

    _, binding = loop_of(lambda k: jax.lax.scan(draw, k, length=3), jax.random.key(0))

    def drawn(carry: Any, slices: Any) -> Any:
        return tuple([x] for x in draw(carry[0], slices))

    key = jax.random.key(7)
    _, keys = stacked_loop(binding, drawn, [key], [], jnp.ones(2))
    wanted = jax.lax.scan(draw, key, length=3)[1]
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(wanted))
    fn = scanned(False)
    none = jnp.zeros((0, 4))
    _, binding = loop_of(fn, carried(jnp.ones(4)), none)

    def step(carry: Any, slices: Any) -> Any:
        return tuple(map(list, body(carry, slices[0])))

    found = stacked_loop(binding, step, list(carried(jnp.ones(4))), [none], jnp.ones(2))
    assert [x.shape for x in found[2:]] == [(0, 4), (0, 4), (0,), (0, 4), (0, 4)]


def test_a_loop_waits_for_what_most_leads_to() -> None:
    """Not for an argument, a key, or a value that is made early."""

    def fn(early: Any, late: Any) -> Any:
        early = early + 1.0
        late = jnp.sin(jnp.cos(late * 2.0))
        return early, late, early * 2.0

    traced = trace(fn, jnp.ones(2), jnp.ones(3))
    graph = traced.program.graph
    early, late, other = (v for v in graph.outputs if isinstance(v, int))
    arrays = {early: jnp.full(2, 1.0), late: jnp.full(3, 2.0), other: jnp.full(2, 3.0)}
    pairs = list(arrays.items())
    for order in (pairs, pairs[::-1]):
        assert entered_last(graph, order) is arrays[late]
    assert entered_last(graph, [(early, jax.random.key(0))]) is None
    assert entered_last(graph, [(late, jnp.zeros((0, 2))), (early, arrays[early])]) is arrays[early]
    assert entered_last(graph, []) is None


def test_gradients_of_a_stack_of_weights_begin_after_the_loss() -> None:
    """The stack of gradients is made of the value that the backward loop is entered with."""
    weights, x = jax.ShapeDtypeStruct((6, 64, 64), "float32"), jax.ShapeDtypeStruct((8, 64), "f4")

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
            return jnp.sum(y**2)

        return jax.grad(loss)(weights)

    made = plan(step, weights, x, cluster="2xh100", baselines=False)
    jitted = made.compile(devices=jax.devices()[:2]).jitted
    found = list(equations(jax.make_jaxpr(jitted)(weights, x).jaxpr))
    backward = [eqn for eqn in found if eqn.primitive.name == "while"][-1]
    stacks = [v for v in backward.invars if v.aval.shape[:1] == (6,)]
    begun = [eqn for eqn in found if eqn.primitive.name == "broadcast_in_dim"]
    begun = [eqn for eqn in begun if eqn.outvars[0] in stacks]
    assert len(begun) == 1
    assert not isinstance(begun[0].invars[0], Literal)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a program and of all that is in them, in order."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from equations(inner)


@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_differentiated_as_a_scan_is(reverse: bool) -> None:
    """By what it carries, what it slices and what its body holds, in reverse and twice."""

    def move(scale: Any, total: Any, x: Any) -> Any:
        total = jnp.tanh(total * scale) + x
        return total, total.sum() * scale

    def wanted(scale: Any, total: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda t, x: move(scale, t, x), total, xs, reverse=reverse)

    args = jnp.float32(0.7), jnp.arange(3.0), jnp.arange(3.0 * LENGTH).reshape(LENGTH, 3) / 9
    _, binding = loop_of(wanted, *args)

    def found(scale: Any, total: Any, xs: Any) -> Any:
        def step(carry: Any, slices: Any) -> Any:
            after, y = move(scale, carry[0], slices[0])
            return [after], [y]

        return stacked_loop(binding, step, [total], [xs], jnp.sin(total))

    def summed(fn: Any) -> Any:
        return lambda *args: sum((leaf**2).sum() for leaf in fn(*args))

    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        for at in range(3):
            ours, theirs = (jax.jit(derivative(summed(fn), at))(*args) for fn in (found, wanted))
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


def test_a_planned_function_with_such_a_loop_has_gradients() -> None:
    def fn(weights: Any, x: Any) -> Any:
        h, sums = jax.lax.scan(
            lambda h, w: (jnp.tanh(h @ w), h.sum(-1)), jnp.tanh(x), weights
        )  # fmt: skip
        return (h**2).sum() + (sums**2).sum()

    weights, x = jnp.ones((4, 16, 16)) / 9, jnp.arange(256.0).reshape(16, 16) / 256
    pins = (("x", "[8,-]"),)
    planned = plan(fn, weights, x, cluster="8xhost", mesh=(8,), pins=pins, baselines=False)
    planned = planned.compile()
    for at in (0, 1):
        np.testing.assert_allclose(
            jax.grad(planned, at)(weights, x), jax.grad(fn, at)(weights, x), rtol=2e-5
        )
