# pyright: basic
"""`check_ops`: factors that hold pass, and each kind of wrong factor is an error that names it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner import PlanError, check_ops, register_op
from tests.planner.programs import array

X = array(8, 12)


def normalised(x: Any) -> Any:
    return x / jnp.sum(x * x, axis=-1, keepdims=True)


def matrix_product(x: Any, y: Any) -> Any:
    return x @ y


def checked(fn: Any, *args: Any, **settings: Any) -> dict[str, int]:
    return {check.factor: check.ways for check in check_ops(fn, *args, **settings)}


def test_right_factors_are_listed_with_their_parts() -> None:
    op = register_op(normalised, factors="r c! -> r c!")
    assert checked(op, X) == {"r": 2}
    op = register_op(matrix_product, factors="m k+, k+ n -> m n")
    assert checked(op, array(9, 5), array(5, 4)) == {"m": 3, "k": 5, "n": 2}


@pytest.mark.parametrize(
    ("function", "factors", "wrong"),
    [
        (normalised, "r c -> r c", "c"),  # each part would divide by its own sum
        (lambda x: jnp.max(x, axis=0), "r+ c -> c", "r"),  # parts are compared, not added up
        (lambda x: x[::-1], "r c -> r c", "r"),  # the parts change places
        (lambda x: jnp.round(x * 9).astype(int).sum(0), "r> c -> c", "r"),
    ],
    ids=["whole", "reduction", "order", "integers"],
)
def test_a_wrong_factor_is_named(function: Any, factors: str, wrong: str) -> None:
    op = register_op(function, factors=factors, name=f"wrong_{wrong}_{factors}")
    with pytest.raises(PlanError, match=f"factor '{wrong}' in 2 parts gives results that differ"):
        check_ops(op, X)


def test_a_tolerance_is_kept() -> None:
    op = register_op(lambda x: x + 1e-2 * x.mean(0), factors="r c -> r c", name="nearly right")
    with pytest.raises(PlanError, match="larger tolerance="):
        check_ops(op, X)
    assert checked(op, X, tolerance=0.1) == {"r": 2, "c": 2}


@pytest.mark.parametrize("wrapped", ["scan", "cond", "checkpoint", "grad", "vmap", "jit"])
def test_operations_inside_are_found(wrapped: str) -> None:
    op = register_op(lambda x: x / x.sum(-1), factors="c -> c", name="wrong_inside")

    def inside(x: Any) -> Any:
        if wrapped == "scan":
            return jax.lax.scan(lambda c, row: (c, op(row)), 0.0, x)[1]
        if wrapped == "cond":
            return jax.lax.cond(x[0, 0] < 9, op, lambda row: row, x[0])
        if wrapped == "vmap":
            return jax.vmap(op)(x)
        return {"jit": jax.jit(op), "checkpoint": jax.checkpoint(op)}[wrapped](x[0])

    def in_a_gradient(x: Any) -> Any:
        split = jax.custom_vjp(lambda x: x.sum(-1))
        split.defvjp(lambda x: (x.sum(-1), x), lambda x, _: (op(x),))
        return jax.grad(split)(x[0])

    with pytest.raises(PlanError, match=r"op 'wrong_inside': factor 'c' in 2 parts"):
        check_ops(in_a_gradient if wrapped == "grad" else inside, X)


def test_a_function_of_fixed_sizes_is_an_error() -> None:
    op = register_op(
        lambda x: jnp.ones((8, 12)) * x.sum(), factors="r c -> r c", name="ones of fixed sizes"
    )
    with pytest.raises(PlanError, match="take sizes from the operands"):
        check_ops(op, X)


def test_nothing_to_check_is_an_error() -> None:
    with pytest.raises(PlanError, match="no registered operation"):
        check_ops(jnp.sin, X)
