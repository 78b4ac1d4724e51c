# pyright: basic
"""From jaxpr to graph: calls, constants, dead code, effects and parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray

from ir.errors import IRError
from ir.graph import Graph, digest
from ir.interpret import interpret
from ir.table import OPS
from ir.text import show
from ir.trace import trace
from tests.helpers_graphs import checked, f32, ops
from tests.helpers_internals import Primitive

X = np.arange(4, dtype=np.float32)
MATRIX = np.ones((4, 4), np.float32)


# --- calls and constants -----------------------------------------------------------------------


def test_an_already_jitted_function_is_the_same_program() -> None:
    def fn(x: Any) -> Any:
        return jnp.sin(x) @ MATRIX

    assert digest(trace(jax.jit(fn), X).graph) == digest(trace(fn, X).graph)
    nested = jax.jit(lambda x: jax.jit(fn)(x))
    assert ops(trace(nested, X).graph).count("dot_general") == 1


def test_captured_constants_are_inputs_with_a_digest() -> None:
    table = jnp.arange(4.0)
    graph = checked(trace(lambda x: x + table, X))
    constant, argument = graph.inputs
    assert (constant.name, constant.role, constant.type) == ("const0", "constant", f32(4))
    assert len(constant.digest) == 16
    assert (argument.name, argument.digest) == ("x", "")
    assert trace(lambda x: x + table, X).program.consts[0] is table


def test_constants_differ_by_content_and_by_type() -> None:
    values = [jnp.zeros(4), jnp.ones(4), jnp.zeros((2, 2)), jnp.zeros(4, jnp.int32)]
    values += [jnp.zeros(8, jnp.bfloat16), jax.random.key(0), jax.random.key(1)]
    graphs = [checked(trace(lambda v=value: jnp.stack([v, v]))) for value in values]
    assert len({graph.inputs[0].digest for graph in graphs}) == len(values)


def test_constants_of_inlined_calls_become_nodes() -> None:
    table = np.arange(4, dtype=np.float32)
    traced = trace(lambda x: jax.jit(lambda y: y + table)(x) * 2, X)
    graph = checked(traced)
    held = [binding for binding in traced.program.bindings if binding.primitive.name == "constant"]
    found = [item.digest for item in graph.inputs if item.role == "constant"]
    found += [str(node.attr("content")) for node in graph.nodes if node.op == "constant"]
    assert len(found) == 1
    assert all(np.array_equal(binding.primitive.bind(), table) for binding in held)


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return jnp.sin(x) * 2


with_jvp.defjvp(lambda x, t: (with_jvp(x[0]), 7 * t[0]))


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return jnp.cos(x)


with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, g: (jnp.tanh(x) * g,))


def test_custom_derivatives_are_inlined() -> None:
    assert ops(checked(trace(with_jvp, X))) == ["sin", "mul"]
    assert ops(checked(trace(with_vjp, X))) == ["cos"]
    gradient = checked(trace(jax.grad(lambda x: with_vjp(x).sum()), X))
    assert "tanh" in ops(gradient)
    assert "sin" not in ops(gradient)
    slope = checked(trace(jax.grad(with_jvp), np.float32(1)))
    np.testing.assert_array_equal(interpret(slope, [np.float32(1)])[0], 7)


def test_regions_keep_their_bodies() -> None:
    def fn(x: Any) -> Any:
        x = jax.checkpoint(jnp.sin)(x)
        x, _ = lax.scan(lambda c, _: (c * 2, None), x, length=3)
        x = lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)
        return lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)

    graph = checked(trace(fn, X))
    found = [(node.op, [ops(body) for body in node.bodies]) for node in graph.nodes if node.bodies]
    assert found == [
        ("remat", [["sin"]]),
        ("scan", [["mul"]]),
        ("while", [["add"], ["reduce_sum", "lt"]]),
        ("cond", [["cos"], ["sin"]]),
    ]


def test_a_loop_over_a_batch_runs_while_any_goes_on() -> None:
    def fn(x: Any, limit: Any) -> Any:
        return lax.while_loop(lambda c: c < limit, lambda c: c * 2 + 1, x)

    limits = np.array([0, 100, 3, 7], np.float32)
    graph = checked(trace(jax.vmap(fn), X, limits))
    np.testing.assert_array_equal(interpret(graph, [X, limits])[0], jax.vmap(fn)(X, limits))


def test_lines_of_the_user_are_kept() -> None:
    graph = trace(lambda x: jnp.linalg.norm(x), X).graph
    assert {node.source.partition(":")[0] for node in graph.nodes} == {"test_jaxpr.py"}


def test_only_libraries_themselves_are_no_lines_of_the_user() -> None:
    space: dict[str, Any] = {"jnp": jnp}
    exec(compile("def fn(x):\n    return jnp.sin(x)", "/home/me/jax/optax/model.py", "exec"), space)
    graph = trace(space["fn"], X).graph
    assert [node.source for node in graph.nodes] == ["model.py:2"]


# --- dead code and effects ---------------------------------------------------------------------


def test_dead_code_is_dropped() -> None:
    def fn(x: Any) -> Any:
        unused = jnp.sin(x) @ MATRIX
        del unused
        return x + 1

    assert ops(checked(trace(fn, X))) == ["add"]
    assert len(trace(fn, X).program.bindings) == 1


def test_dead_code_is_dropped_in_bodies() -> None:
    def step(carry: Any, _: Any) -> Any:
        unused = jnp.sin(carry) @ MATRIX
        del unused
        return carry + 1, None

    traced = trace(lambda x: lax.scan(step, x, length=3)[0], X)
    assert ops(checked(traced).nodes[-1].bodies[0]) == ["add"]
    assert [b.primitive.name for b in traced.program.bindings[-1].bodies[0].bindings] == ["add"]


def test_effects_are_kept_also_in_loops() -> None:
    def show_it(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x + 1

    def loop(x: Any) -> Any:
        lax.fori_loop(0, 3, lambda i, c: show_it(c), x)
        return x * 2

    assert ops(checked(trace(lambda x: (show_it(x), x)[1], X))) == ["debug_print"]
    graph = checked(trace(loop, X))
    assert ops(graph) == ["scan", "mul"]
    assert graph.nodes[0].has_attr("effect")
    quiet = checked(trace(lambda x: lax.fori_loop(0, 3, lambda i, c: c + 1, x), X))
    assert not quiet.nodes[-1].has_attr("effect")


# --- parameters --------------------------------------------------------------------------------


def test_nodes_that_call_different_functions_differ() -> None:
    def fn(x: Any) -> Any:
        return tuple(jax.pure_callback(f, x, x) for f in (np.sin, np.cos, np.sin))

    first, second, third = (node.attrs for node in checked(trace(fn, X)).nodes)
    assert first == third
    assert first != second


def test_the_gradients_of_pooling_by_maximum_and_by_minimum_differ() -> None:
    def pooled(start: float, function: Any) -> Graph:
        def fn(x: Any) -> Any:
            return lax.reduce_window(x, start, function, (2,), (2,), "VALID").sum()

        return checked(trace(jax.grad(fn), X))

    assert digest(pooled(-jnp.inf, lax.max)) != digest(pooled(jnp.inf, lax.min))


STRANGE = Primitive("strange op")
STRANGE.def_abstract_eval(lambda x, **_: ShapedArray(x.shape[::-1], x.dtype))


def test_an_unknown_primitive_is_legal_and_named() -> None:
    graph = checked(trace(lambda x: STRANGE.bind(x, size=3), np.ones((2, 3), np.float32)))
    (node,) = graph.nodes
    assert (node.op, node.outputs, node.attrs) == ("strange op", (f32(3, 2),), (("size", 3),))
    assert node.op not in OPS
    assert '%1: f32[3,2] = "strange op" %0 {size=3}' in show(graph)
    with pytest.raises(IRError, match="no NumPy meaning for strange op"):
        interpret(graph, [np.ones((2, 3))])


def test_the_constants_of_an_open_jaxpr_among_parameters_are_inputs_of_its_body() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.dot(x, MATRIX))(X)
    graph = checked(trace(lambda x: STRANGE.bind(x, held=(closed.jaxpr, 3)), X))
    (node,) = graph.nodes
    assert node.attrs == (("held", ("body 0", 3)),)
    assert [each.type for each in node.bodies[0].inputs] == [f32(4, 4), f32(4)]


class Pair(NamedTuple):
    left: Any
    right: Any


class Held:
    """A parameter that is not plain data."""

    def __init__(self, value: Any) -> None:
        self.value = value


def test_parameters_become_plain_data() -> None:
    def attrs(**params: Any) -> dict[str, Any]:
        return dict(trace(lambda x: STRANGE.bind(x, **params), X).graph.nodes[0].attrs)

    found = attrs(a=lax.Precision.HIGHEST, b=Pair(1, (2.5, None)), c=jnp.float32, d=1 + 2j)
    assert found == {
        "a": "HIGHEST",
        "b": (("left", 1), ("right", (2.5, None))),
        "c": "float32",
        "d": 1 + 2j,
    }
    one, two = Held(1), Held(2)
    assert attrs(a=(one, two, one)) == {"a": ("<Held #0>", "<Held #1>", "<Held #0>")}
    assert attrs(a=lax.add_p, b=ShapedArray((2,), jnp.int32), mesh=None) == {
        "a": "add",
        "b": "i32[2]",
    }
