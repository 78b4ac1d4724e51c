# pyright: basic
"""What is in memory twice because products want sizes in eights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from costmodel.compiler.gemm_padding import copied
from tests.planner.spaces import space

HALF = jnp.bfloat16


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q @ jnp.ones((8, 8), q.dtype), k)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def names(length: int, dtype) -> set[str]:
    x = jax.ShapeDtypeStruct((2, length, 4, 8), dtype)
    flat = space(attention, x, x, x).flat
    return {flat.values[v].name for v in copied(flat)}


@pytest.mark.parametrize("length", [16, 24, 64])
def test_sizes_in_eights_are_not_copied(length: int) -> None:
    assert names(length, HALF) == set()


@pytest.mark.parametrize("length", [17, 20, 197])
def test_what_a_product_made_is_copied_and_nothing_else(length: int) -> None:
    """The query is made by a product; arguments and probabilities are padded where they are."""
    assert names(length, HALF) == {"dot_general@1"}


def test_only_sixteen_bits_are_padded() -> None:
    assert names(17, jnp.float32) == set()


def test_a_copy_is_counted() -> None:
    def buffers(length: int) -> int:
        x = jax.ShapeDtypeStruct((2, length, 4, 8), HALF)
        found = space(attention, x, x, x)
        (v,) = (v for v, value in enumerate(found.flat.values) if value.name == "dot_general@1")
        return found.builder.facts.buffers(v)

    assert (buffers(16), buffers(17)) == (1, 2)
