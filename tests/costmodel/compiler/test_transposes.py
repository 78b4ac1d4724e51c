# pyright: basic
"""Orders of dimensions in memory: what meets in one costs nothing, what does not is stored."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from costmodel.compiler.fusion import analyse
from costmodel.compiler.transposes import turned
from ir.analysis.flat_program import FlatProgram
from ir.analysis.flatten import flatten
from ir.trace import trace
from tests.planner.programs import CASES, struct

HALF = jnp.bfloat16


def laid(fn, *args) -> tuple[FlatProgram, list[str]]:
    """The program, and which types of which ops are stored in another order."""
    flat = flatten(trace(fn, *args).graph)
    found = turned(flat, analyse(flat).free)
    maker = {v: op.node.op for op in flat.ops for v in op.outputs}
    return flat, sorted(f"{maker.get(v, '')} {flat.values[v].type}" for v in found)


def attention(spec: str, out: str):
    def loss(q, k, v):
        scores = jnp.einsum(spec, q, k).astype(jnp.float32)
        probs = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return jnp.sum(jnp.einsum(out, probs, v).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))


def test_heads_that_share_a_key_meet_their_gradient_in_another_order() -> None:
    """Scores come as b g k q r and is used as b g r q k; its gradient comes as the latter."""
    q, kv = struct(2, 16, 2, 4, 8, dtype=HALF), struct(2, 16, 2, 8, dtype=HALF)
    grouped = attention("bqgrd,bkgd->bgrqk", "bgrqk,bkgd->bqgrd")
    assert laid(grouped, q, kv, kv)[1] == ["convert_element_type f32[2,2,4,16,16]"]


def test_plain_heads_meet_it_in_the_same() -> None:
    qkv = struct(2, 16, 4, 8, dtype=HALF)
    plain = attention("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd")
    assert laid(plain, qkv, qkv, qkv)[1] == []


def test_swapping_the_sides_of_a_product_is_free() -> None:
    def step(w, x, y):
        return w - (y.T @ x).T  # as x.T @ y

    types = struct(8, 16), struct(4, 8), struct(4, 16)
    assert laid(step, *types)[1] == []


def test_joining_dimensions_that_lie_apart_puts_them_in_order() -> None:
    def joined(x, y, z):
        return jnp.tanh(jnp.einsum("abc,cd->abd", x, y)).transpose(2, 1, 0).reshape(6, 5) + z

    def kept(x, y, z):
        return jnp.tanh(jnp.einsum("abc,cd->abd", x, y)).transpose(1, 2, 0) + z

    types = struct(5, 2, 7), struct(7, 3)
    assert laid(joined, *types, struct(6, 5))[1] == []
    assert laid(kept, *types, struct(2, 3, 5))[1] == ["transpose f32[2,3,5]"]


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_stored_anew_is_stored(name: str) -> None:
    flat = flatten(trace(CASES[name].fn, *CASES[name].args).graph)
    traffic = analyse(flat)
    assert all(traffic.stored[v] for v in turned(flat, traffic.free))


def test_a_number_is_a_side_of_a_product() -> None:
    def scaled(x):
        return jnp.transpose(jax.lax.dot_general(jnp.float32(2), x, (((), ()), ((), ()))))

    assert laid(scaled, struct(4, 6))[1] == []
