# pyright: basic
"""Examples are found where a program cuts the batch, merges it, and looks it up in an order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ir.analysis import Classes, Kinds
from planner import plan
from tests.planner.spaces import space

B, T, F, E, PARTS = 64, 16, 32, 8, 4
KEY = jax.ShapeDtypeStruct((2,), "uint32")


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def in_loop(w: Any, rows: Any) -> Any:
    """Sum of squares of products of parts of rows [n, features], one part after the other."""
    parts = rows.reshape(PARTS, -1, rows.shape[1])
    return jax.lax.scan(lambda total, x: (total + jnp.sum((x @ w) ** 2), None), 0.0, parts)[0]


def cut(w, x):
    return in_loop(w, x)


def shuffled(w, x, key):
    return in_loop(w, x[jax.random.permutation(key, len(x))])


def one_part(w, x, key):
    return jnp.sum((x[jax.random.permutation(key, B)[: B // PARTS]] @ w) ** 2)


def rollout(w, x, key):
    _, rows = jax.lax.scan(lambda x, _: (jnp.tanh(x), x), x, None, T)  # [T, B, F]
    return in_loop(w, rows.reshape(-1, F)[jax.random.permutation(key, T * B)])


def table(w, x, key):
    """The rows that are looked up are of a table, whose own rows are none of the batch."""
    places = jax.random.randint(key, (B,), 0, F)
    return jnp.sum(w[places] @ w) + jnp.sum(x)


def slots(w, x, key):
    """What is looked up is by experts, then by their slots."""
    rows = x[jax.random.permutation(key, B)].reshape(E, -1, F)
    return jnp.sum(jnp.einsum("ecf,efg->ecg", rows, w) ** 2)


def tokens(w, x):
    """Rows of tokens of sequences that see each other."""
    y = (x @ w).reshape(B // T, T, F)
    return jnp.sum(jax.nn.softmax(jnp.einsum("btf,bsf->bts", y, y)))


ONE = (F, F)
ROWS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...], tuple[str, ...]]] = {
    # program, shape of parameters, further arguments, factors of its last product that have a kind
    "cut": (cut, ONE, (), ("batch",)),
    "shuffled": (shuffled, ONE, (KEY,), ("batch",)),
    "one part": (one_part, ONE, (KEY,), ("batch",)),
    "rollout": (rollout, ONE, (KEY,), ("batch",)),
    "table": (table, ONE, (KEY,), ()),
    "slots": (slots, (E, F, F), (KEY,), ("experts",)),
    "tokens": (tokens, ONE, (), ("batch",)),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_products(name: str) -> None:
    fn, weights, others, expected = ROWS[name]
    found = space(fn, struct(*weights), struct(B, F), *others)
    specs = [found.builder.spec(op) for op in found.flat.ops]
    w, *batch = found.flat.inputs
    kinds = Kinds(Classes(found.flat, specs), specs, batch, [w], [])
    products = [i for i, op in enumerate(found.flat.ops) if op.node.op == "dot_general"]
    of = kinds.of_op(products[-1])
    assert [kind for kind in of if kind in ("batch", "experts")] == list(expected)


def test_shuffled_parts_have_a_data_parallel_row_that_splits_them() -> None:
    """On every device all of the products would take four times as long."""

    def step(w, x, key):
        loss, gradient = jax.value_and_grad(shuffled)(w, x, key)
        return w - gradient, loss

    roles = ("parameter", "batch", "batch")
    settings = {"cluster": "4xh100", "substitutions": False, "mesh": (4,), "roles": roles}
    p = plan(step, struct(2048, 2048), struct(16384, 2048), KEY, **settings)
    assert p.baselines["data-parallel"].step_s < 2 * p.step_s
