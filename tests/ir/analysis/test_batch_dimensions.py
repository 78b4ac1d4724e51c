# pyright: basic
"""The batch is found wherever it is: of equal programs with arguments in another order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from ir.analysis import Classes
from ir.analysis.batch_dimensions import batch_dimensions
from planner import plan
from tests.planner.spaces import space

B, T, F = 64, 16, 32


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def recurrent(x, w):  # x [T, B, F]
    last, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros_like(x[0]), x)
    return jnp.mean(last**2)


def attention(x, w):  # x [B, T, F]
    q, k = x @ w, x
    scores = jax.nn.softmax(jnp.einsum("btf,bsf->bts", q, k))
    return jnp.mean(jnp.einsum("bts,bsf->btf", scores, x) ** 2)


def layers(x, w):  # x [B, F]
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)


def contrastive(x, w):  # x [B, F]
    y = x @ w
    return jnp.mean(jax.nn.logsumexp(y @ y.T, axis=1) - jnp.sum(y * y, axis=1))


ROWS = {
    "time first": (recurrent, (0, 1, 2), (T, B, F), 1),
    "time second": (recurrent, (1, 0, 2), (B, T, F), 0),
    "time last": (recurrent, (2, 0, 1), (B, F, T), 0),
    "attention": (attention, (0, 1, 2), (B, T, F), 0),
    "attention, time first": (attention, (1, 0, 2), (T, B, F), 1),
    "features first": (layers, (1, 0), (F, B), 1),
    "features second": (layers, (0, 1), (B, F), 0),
    "all pairs of the batch": (contrastive, (0, 1), (B, F), 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_batch_dimension(name: str) -> None:
    fn, order, shape, expected = ROWS[name]
    found = space(lambda x, w: fn(jnp.transpose(x, order), w), struct(*shape), struct(F, F))
    specs = [found.builder.spec(op) for op in found.flat.ops]
    x, w = found.flat.inputs
    assert batch_dimensions(Classes(found.flat, specs), [x], [w]) == {x: expected}


@pytest.mark.parametrize(
    ("fn", "shape"), [(recurrent, (64, 2048, 512)), (attention, (64, 256, 512))],
    ids=["loop", "attention"],
)  # fmt: skip
def test_baselines_do_not_depend_on_the_order(fn, shape) -> None:
    """Data parallelism is as fast with time first as with the batch first."""

    def data_parallel_s(order):
        def step(params, x):
            loss, gradient = jax.value_and_grad(lambda w: fn(jnp.transpose(x, order), w))(params)
            return params - gradient, loss

        x = struct(*(shape[d] for d in order))  # swapping two dimensions is its own inverse
        settings = {"cluster": "4xh100", "substitutions": False, "mesh": (4,)}
        return plan(step, struct(512, 512), x, **settings).baselines["data-parallel"].step_s

    assert data_parallel_s((1, 0, 2)) == pytest.approx(data_parallel_s((0, 1, 2)), rel=0.25)
