# pyright: basic
"""`register_op`: kernels that are split as registered, priced as registered, and equal."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

import planner
from planner import PlanError, plan, register_op
from tests.planner.programs import array, assert_split_and_equal, slow_machine

W, X = array(16, 32), array(64, 16, seed=1)
ROWS = "r c, r c -> r c"
quick: Any = functools.partial(plan, cluster=slow_machine(8), baselines=False)


def body(x: Any, y: Any, out: Any) -> None:
    out[...] = 2 * x[...] + y[...]


def combined(x: Any, y: Any) -> Any:
    return pallas.pallas_call(body, out_shape=x, interpret=True)(x, y)


def kernel_of(**settings: Any) -> Any:
    return register_op(combined, **{"factors": ROWS, **settings})


def strategies(found: Any, op: str = "registered_op") -> list[tuple[str, ...]]:
    """Roles of the mesh axes in the plan's registered ops."""
    lowered = found._lowered
    numbers = [k for k, item in enumerate(lowered.flat.ops) if item.node.op == op]
    return [lowered.strategies[k].roles for k in numbers]


def same(fn: Any, *args: Any) -> Any:
    found = quick(fn, *args)
    assert_split_and_equal(found, fn, *args)
    return found


def test_a_kernel_is_split_and_equal() -> None:
    kernel = kernel_of()
    found = same(lambda w, x: kernel(x @ w, jnp.sin(x @ w)), W, X)
    assert {role for roles in strategies(found) for role in roles} <= {"r", "c"}
    assert not found.collectives


def test_a_callback_is_called_with_the_rows_of_each_device() -> None:
    seen = set[tuple[int, ...]]()

    def on_host(x: Any) -> Any:
        seen.add(x.shape)
        return np.sin(x)

    def called(x: Any) -> Any:
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    rows = register_op(called, factors="r c! -> r c!")
    jax.block_until_ready(quick(lambda w, x: rows(x @ w) @ w.T, W, X).compile()(W, X))
    assert seen == {(8, 32)}
    seen.clear()
    same(lambda w, x: rows(x @ w) @ w.T, W, X)


def test_without_registration_it_is_whole_and_named() -> None:
    found = quick(lambda w, x: combined(x @ w, x @ w), W, X)
    assert any("'pallas_call'" in text for text in found.file.whole.warnings)


def test_a_marked_factor_is_never_split() -> None:
    kernel = kernel_of(factors="r c!, r c! -> r c!")
    found = same(lambda w, x: kernel(x @ w, x @ w), W, X)
    assert {role for roles in strategies(found) for role in roles} == {"r"}


def test_a_factor_that_a_side_lacks_is_whole() -> None:
    softened = register_op(
        lambda q, k: jax.nn.softmax(q @ k.T), factors="s d, t d -> s t", name="softened"
    )
    keys = array(8, 16, seed=3)
    found = same(lambda q, k: softened(q, k), X, keys)
    (node,) = [op.node for op in found._lowered.flat.ops if op.node.op == "registered_op"]
    assert dict(node.attrs)["factors"] == "s d, t d -> s t"
    assert "d" not in {role for roles in strategies(found) for role in roles}


def test_sums_are_added_up() -> None:
    @functools.partial(register_op, factors="m! k+, k+ n! -> m! n!")
    def product(x: Any, y: Any) -> Any:
        return x @ y

    long, tall = array(8, 4096), array(4096, 8, seed=1)
    found = same(product, long, tall)
    assert {role for roles in strategies(found) for role in roles} == {"k"}
    assert [c.kind for c in found.collectives]


@pytest.mark.parametrize("wrapped", ["scan", "vmap", "checkpoint", "jit"])
def test_it_may_stand_anywhere(wrapped: str) -> None:
    kernel = kernel_of()
    forms = {
        "scan": lambda w, x: jax.lax.scan(lambda c, _: (kernel(c, x @ w), None), x @ w, length=3)[
            0
        ],
        "vmap": lambda w, x: jax.vmap(kernel, (0, None))((x @ w).reshape(8, 8, 32), (x @ w)[:8]),
        "checkpoint": lambda w, x: jax.checkpoint(lambda y: kernel(y, y))(x @ w),
        "jit": lambda w, x: jax.jit(kernel)(x @ w, x @ w),
    }
    same(forms[wrapped], W, X)


def test_derivatives_are_those_of_the_function() -> None:
    @functools.partial(register_op, factors=ROWS)
    def plain(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y

    def loss(f: Any, w: Any, x: Any) -> Any:
        return jnp.mean(f(x @ w, jnp.cos(x @ w)))

    expected = jax.grad(functools.partial(loss, lambda x, y: jnp.sin(x) * y))(W, X)
    found = same(jax.grad(functools.partial(loss, plain)), W, X)
    np.testing.assert_allclose(found.compile()(W, X), expected, rtol=1e-4, atol=1e-6)


def test_forward_and_backward_are_registered_apart() -> None:
    forward, backward = kernel_of(), register_op(lambda g: (2 * g, g), factors="r c -> r c, r c",
                                                 name="combined backward")  # fmt: skip

    @jax.custom_vjp
    def both(x: Any, y: Any) -> Any:
        return forward(x, y)

    both.defvjp(lambda x, y: (forward(x, y), None), lambda _, g: backward(g))

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(both(x @ w, jnp.sin(x @ w))))

    found = same(jax.value_and_grad(loss), W, X)
    names = {dict(op.node.attrs).get("name") for op in found._lowered.flat.ops}
    assert {"combined", "combined backward"} <= names


# --- prices --------------------------------------------------------------------------------------


def step_s(fn: Any) -> float:
    return float(quick(fn, X, X).step_s)


def test_a_function_is_priced_for_the_sizes_on_a_device() -> None:
    sizes: list[tuple[int, int]] = []

    def seconds(r: int, c: int) -> float:
        sizes.append((r, c))
        return 1e-3 * r

    kernel = kernel_of(seconds=seconds)
    found = quick(kernel, X, X)
    assert (64, 16) in sizes
    assert strategies(found) == [("r",)], "only a split of r makes it shorter"
    assert 8e-3 <= found.step_s < 8.1e-3


def test_a_number_is_that_of_the_whole_op() -> None:
    kernel = kernel_of(seconds=1.0)
    assert 0.125 <= step_s(kernel) < 0.126


@pytest.mark.parametrize("kind", ["flops", "bytes"])
def test_more_work_takes_longer(kind: str) -> None:
    few, many = (step_s(kernel_of(**{kind: n})) for n in (1e9, 4e9))
    assert 3.5 < many / few <= 4.0


def test_a_batch_multiplies_the_costs() -> None:
    kernel = kernel_of(seconds=lambda r: 1e-3 * r)

    many = array(4, 16, 32)
    assert 8e-3 <= quick(jax.vmap(kernel), many, many).step_s < 8.1e-3


# --- plan files and calls of libraries -----------------------------------------------------------


def test_a_plan_is_saved_and_loaded(tmp_path: Path) -> None:
    kernel = kernel_of(flops=lambda r, c: 3 * r * c)

    def fn(w: Any, x: Any) -> Any:
        return kernel(x @ w, x @ w)

    quick(fn, W, X).save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(fn, W, X)
    np.testing.assert_allclose(bound.compile()(W, X), fn(W, X), rtol=1e-4)
    other = register_op(lambda x, y: x - y, factors=ROWS, name="other", flops=3.0)
    with pytest.raises(PlanError, match="for another function"):
        planner.load(tmp_path / "plan.json").bind(lambda w, x: other(x @ w, x @ w), W, X)


def test_the_target_of_an_ffi_call_is_registered_by_name() -> None:
    jax.scipy.linalg.cholesky(jnp.eye(2))  # JAX registers its targets when one is used
    one = jnp.asarray([array(8, 8, seed=k) for k in range(8)])
    spd = one @ one.mT + 8 * jnp.eye(8)

    def factor(a: Any) -> Any:
        shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
        info = jax.ShapeDtypeStruct(a.shape[:1], np.int32)
        found, _ = jax.ffi.ffi_call("lapack_spotrf_ffi", (shape, info))(a, uplo=np.uint8(ord("L")))
        return jnp.tril(found)

    def fn(a: Any) -> Any:
        return factor(jnp.tanh(a) + 8 * jnp.eye(8))

    warnings = quick(fn, spd).file.whole.warnings
    assert any("'ffi_call'" in text for text in warnings)
    register_op("lapack_spotrf_ffi", factors="b n! m! -> b n! m!, b", seconds=1e-2)
    assert strategies(same(fn, spd)) == [("b",)]


# --- errors --------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no arrow": ({"factors": "r c, r c"}, "has not one '->'"),
    "unknown mark": ({"factors": "r c?, r c -> r c"}, "holds '\\?'"),
    "factor twice": ({"factors": "r r, r c -> r c"}, "'r r' has the factor 'r' twice"),
    "unknown size": ({"flops": lambda q: q}, "its argument 'q' is no factor"),
    "negative": ({"bytes": -1}, "bytes of op 'combined': is -1"),
    "text": ({"seconds": "1 ms"}, "is '1 ms'; give a number"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_registration_is_one_clear_error(name: str) -> None:
    settings, message = BAD[name]
    with pytest.raises(PlanError, match=message):
        kernel_of(**settings)


def test_factors_that_do_not_fit_name_the_op() -> None:
    kernel = kernel_of(factors="r c -> r c")
    with pytest.raises(PlanError, match=r"op 'combined': .*lists 1 tensors where there are 2"):
        quick(lambda w, x: kernel(x @ w, x @ w), W, X)


def test_a_function_with_fixed_sizes_names_the_op() -> None:
    fixed = register_op(lambda x: jnp.zeros((64, 32)) + x.sum(), factors="r c -> r c", name="fixed")
    found = quick(lambda w, x: fixed(x @ w), W, X)
    with pytest.raises(PlanError, match=r"op 'fixed': on shards .* take sizes from the operands"):
        found.compile()(W, X)


def test_a_name_belongs_to_one_function() -> None:
    kernel_of()
    with pytest.raises(PlanError, match="op 'combined': is registered already"):
        register_op(lambda x, y: x, factors=ROWS, name="combined")
    with pytest.raises(PlanError, match="pass name="):
        register_op(lambda x: x, factors="a -> a")
    with pytest.raises(PlanError, match="is a int"):
        register_op(3, factors="a -> a")  # pyright: ignore[reportArgumentType, reportCallIssue]
