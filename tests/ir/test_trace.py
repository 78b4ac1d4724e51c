# pyright: basic
"""Tracing: what becomes of arguments, and of state that is carried from step to step."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir.errors import IRError, TraceError
from ir.graph import Graph, Literal
from ir.table import OPS
from ir.trace import trace
from ir.types import TensorType
from tests.examples.test_examples import SMALL
from tests.helpers_graphs import checked, example, f32, ops

X = np.arange(4, dtype=np.float32)
MATRIX = np.ones((4, 4), np.float32)


# --- arguments ---------------------------------------------------------------------------------


class State(NamedTuple):
    count: Any
    moments: Any


def test_names_follow_the_path() -> None:
    def fn(params: Any, state: Any, *rest: Any) -> Any:
        return params["layers"][0]["w"] + state.moments + rest[0] + rest[1]["y"]

    arguments = ({"layers": [{"w": X}]}, State(0, X), X, {"y": X})
    graph = checked(trace(fn, *arguments))
    names = ["params/layers/0/w", "state/count", "state/moments", "rest0", "rest1/y"]
    assert [item.name for item in graph.inputs] == names


def test_results_are_named_too() -> None:
    traced = trace(lambda x: {"a": x, "b": [x, x + 1]}, X)
    assert traced.out_names == ("a", "b/0", "b/1")
    assert trace(lambda x: x, X).out_names == ("out",)


def test_shapes_suffice() -> None:
    huge = jax.ShapeDtypeStruct((1 << 40, 1 << 20), jnp.bfloat16)
    graph = checked(trace(lambda x: x.sum(), huge))
    assert graph.inputs[0].type == TensorType((1 << 40, 1 << 20), "bfloat16")


def test_no_arguments_and_no_results() -> None:
    assert checked(trace(lambda: ())) == Graph((), (), ())
    assert checked(trace(lambda x: (), X)).outputs == ()
    assert checked(trace(lambda: 3.0)).outputs == (Literal(3.0, f32()),)
    assert checked(trace(lambda x: None, None)).inputs == ()


def test_results_that_are_arguments() -> None:
    graph = checked(trace(lambda x, y: (y, x, y), X, X))
    assert (graph.outputs, graph.nodes) == ((1, 0, 1), ())


def test_zero_sized_arrays() -> None:
    empty = np.zeros((0, 4), np.float32)
    graph = checked(trace(lambda x: (x @ MATRIX, x.sum(), jnp.concatenate([x, x])), empty))
    assert [graph.type_of(o) for o in graph.outputs] == [f32(0, 4), f32(), f32(0, 4)]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("adam", "argument 'x': is a str, expected an array"),
        (object(), "argument 'x': is a object, expected an array"),
        ({"lr": [1.0, "a"]}, "argument 'x/lr/1': is a str"),
        (np.array(["a"]), "argument 'x': has dtype <U1, which JAX cannot hold"),
        (np.array([object()]), "has dtype object, which JAX cannot hold"),
        (np.zeros(2, [("a", "f4")]), "which JAX cannot hold"),
        (2**70, "argument 'x': does not fit: Python int"),
    ],
)
def test_arguments_that_are_not_arrays(argument: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        trace(lambda x: x, argument)


def test_arrays_of_64_bits_are_planned_as_jax_runs_them() -> None:
    traced = trace(lambda x, n: x[n], np.ones(4), np.int64(1))
    assert [item.type.dtype for item in checked(traced).inputs] == ["float32", "int32"]
    assert len(traced.warnings) == 2
    assert traced.warnings[0] == (
        "'x' is float64 and is planned as float32, as JAX runs it; set jax_enable_x64 to keep "
        "64 bits"
    )
    assert trace(lambda x: x, X).warnings == ()


def test_a_python_number_takes_the_type_of_what_it_meets() -> None:
    def scale(x: Any, factor: Any) -> Any:
        return x * factor

    half = jnp.ones(4, jnp.bfloat16)
    for factor in (2.0, 2, jnp.asarray(2.0)):
        graph = checked(trace(scale, half, factor))
        assert graph.type_of(graph.outputs[0]).dtype == "bfloat16"
        assert jax.eval_shape(scale, half, factor).dtype == jnp.bfloat16
    graph = checked(trace(scale, half, np.float32(2)))
    assert graph.type_of(graph.outputs[0]).dtype == "float32"


def test_static_settings_are_bound_beforehand() -> None:
    def fn(x: Any, power: int, mode: str) -> Any:
        return x**power if mode == "power" else x

    graph = checked(trace(functools.partial(fn, power=3, mode="power"), X))
    assert ops(graph) == ["integer_pow"]
    assert graph.inputs[0].name == "x"
    jitted = jax.jit(fn, static_argnums=(1, 2))
    with pytest.raises(TraceError, match=r"argument 'mode': is a str.* bind settings beforehand"):
        trace(jitted, X, 3, "power")
    with pytest.raises(TraceError):
        trace(jax.jit(lambda x, n: x**n, static_argnums=1), X, 3)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x @ np.ones((3, 3), np.float32), "fails to trace .* dot_general requires"),
        (lambda x: x if x.sum() > 0 else -x, "fails to trace .* TracerBoolConversionError"),
        (lambda x, y: x, "fails to trace .* TypeError"),
        (lambda x: {"a": "text"}, "fails to trace"),
    ],
    ids=["shapes", "branch", "count", "result"],
)
def test_a_function_that_fails_says_how_to_see_it_alone(fn: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        trace(fn, X)
    assert "call `jax.eval_shape(<lambda>, ...)` with them to see it alone" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TraceError, match="must be callable, got int"):
        trace(3, X)  # pyright: ignore[reportArgumentType]


# --- state -------------------------------------------------------------------------------------


def sgd(params: Any, momentum: Any, batch: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean((batch["x"] @ p["w"] + p["b"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


PARAMS = {"b": np.ones(2, np.float32), "w": np.ones((4, 2), np.float32)}
BATCH = {"x": np.ones((8, 4), np.float32), "y": np.ones((8, 2), np.float32)}
STEP = ["parameter"] * 2 + ["optimizer-state"] * 2 + ["batch"] * 2


def test_a_training_step_is_recognised_by_what_it_carries() -> None:
    def step(a: Any, b: Any, c: Any) -> Any:
        return sgd(a, b, c)

    traced = trace(step, PARAMS, PARAMS, BATCH)
    assert [item.role for item in checked(traced).inputs] == STEP
    assert traced.tied == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert traced.donated == ()


def test_names_tell_roles() -> None:
    def step(batch: Any, opt_state: Any, weights: Any) -> Any:
        return sgd(weights, opt_state, batch)

    graph = trace(step, BATCH, PARAMS, PARAMS).graph
    assert [item.role for item in graph.inputs] == STEP[4:] + STEP[2:4] + STEP[:2]


def test_given_roles_win() -> None:
    roles = ("batch", "parameter", "argument")
    graph = trace(sgd, PARAMS, PARAMS, BATCH, roles=roles).graph
    assert [item.role for item in graph.inputs] == [role for role in roles for _ in range(2)]
    with pytest.raises(TraceError, match=r"roles: has \['weights'\], expected some of parameter"):
        trace(sgd, PARAMS, PARAMS, BATCH, roles=("weights",))


def test_donation_of_the_caller_and_of_the_jitted_function_add_up() -> None:
    jitted = jax.jit(sgd, donate_argnums=(0,))
    assert trace(jitted, PARAMS, PARAMS, BATCH).donated == (0, 1)
    assert trace(jitted, PARAMS, PARAMS, BATCH, donate_argnums=1).donated == (0, 1, 2, 3)
    assert trace(sgd, PARAMS, PARAMS, BATCH, donate_argnums=(1,)).donated == (2, 3)
    assert trace(jax.jit(sgd, donate_argnames="batch"), PARAMS, PARAMS, BATCH).donated == (4, 5)
    with pytest.raises(TraceError, match=r"donate_argnums: has \[3\], but the function has 3"):
        trace(sgd, PARAMS, PARAMS, BATCH, donate_argnums=(3,))


def test_a_donated_array_is_tied_to_a_result_of_its_type() -> None:
    def fn(table: Any, x: Any) -> Any:
        return x.sum(), table.at[0].set(x)

    assert trace(fn, MATRIX, X, donate_argnums=0).tied == ((0, 1),)
    assert trace(fn, MATRIX, X).tied == ()


def test_of_arguments_alike_the_donated_one_is_tied_or_that_which_is_added_to() -> None:
    def accumulate(params: Any, sums: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, s: s + p * x.sum(), params, sums), x.sum()

    assert trace(accumulate, PARAMS, PARAMS, X).tied == ((2, 0), (3, 1))
    assert trace(accumulate, PARAMS, PARAMS, X, donate_argnums=0).tied == ((0, 0), (1, 1))

    def swapped(params: Any, mean: Any, x: Any) -> Any:
        mean = jax.tree.map(lambda m, p: 0.9 * m + 0.1 * p * x.sum(), mean, params)
        return mean, jax.tree.map(lambda p: p - x.sum(), params)

    assert trace(swapped, PARAMS, PARAMS, X).tied == ((0, 2), (1, 3), (2, 0), (3, 1))


def test_a_result_with_the_name_of_an_argument_is_its_state() -> None:
    def step(params: Any, x: Any) -> Any:
        return {"params": {"w": params["w"] * 2}, "x": x.sum(), "b": params["b"]}

    traced = trace(step, PARAMS, X)  # b is another name, x of another shape
    assert traced.out_names == ("b", "params/w", "x")
    assert traced.tied == ((1, 1),)


def test_a_part_of_an_argument_may_be_state_of_the_optimizer() -> None:
    def step(state: Any, batch: Any) -> Any:
        params, opt_state, _ = sgd(state["params"], state["opt_state"], batch)
        return {"params": params, "opt_state": opt_state}

    state = {"params": PARAMS, "opt_state": PARAMS}
    graph = trace(step, state, BATCH).graph
    assert [item.role for item in graph.inputs] == STEP[2:4] + STEP[:2] + STEP[4:]
    graph = trace(step, state, BATCH, roles=("parameter",)).graph
    assert [item.role for item in graph.inputs] == ["parameter"] * 4 + STEP[4:]


@pytest.mark.parametrize("target", sorted(SMALL))
def test_examples_carry_their_parameters_and_optimizer_state(target: str) -> None:
    traced = example(target)
    checked(traced)
    inputs = [item for item in traced.graph.inputs if item.role != "constant"]
    state = [i for i, item in enumerate(inputs) if item.role != "batch"]
    assert {"batch", "parameter"} <= {item.role for item in inputs}
    assert traced.donated == tuple(state)
    assert traced.tied == tuple((i, i) for i in state)
    assert all(op in OPS for op in ops(traced.graph))


def test_symbolic_shapes_are_refused() -> None:
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(IRError, match="is not made of whole numbers; export with fixed sizes"):
        trace(lambda x: x + 1, jax.ShapeDtypeStruct((size,), jnp.float32))
