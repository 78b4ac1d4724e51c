# pyright: basic
"""Which values reach memory, and which kernels start."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from costmodel.compiler import is_fused
from tests.planner.programs import CASES, A, W
from tests.planner.spaces import Space, space


def of(fn, *args) -> Space:
    return space(fn, *args)


def stored(found: Space) -> dict[str, bool]:
    return {v.name: found.traffic.stored[i] for i, v in enumerate(found.flat.values)}


def test_a_chain_of_elementwise_ops_is_one_kernel() -> None:
    found = of(lambda x: jnp.tanh(x * 2) + 1, A)
    assert stored(found) == {"x": True, "mul@0": False, "tanh@1": False, "add@2": True}
    assert found.traffic.launches == (1, 0, 0)
    assert found.traffic.reads == ((0,), (), ())


def test_what_a_product_reads_and_makes_is_stored() -> None:
    found = of(lambda x, w: jnp.tanh(jnp.sin(x) @ w), A, W)
    assert stored(found) == {
        "x": True, "w": True, "sin@0": True, "dot_general@1": True, "tanh@2": True
    }  # fmt: skip
    assert found.traffic.launches == (1, 1, 1)
    assert not is_fused(found.flat.ops[1].node)
    assert is_fused(found.flat.ops[2].node)


def test_a_sum_is_stored_and_fuses_what_it_reads() -> None:
    found = of(lambda x: (x * 3).sum(0) * 2, A)
    assert stored(found)["mul@0"] is False
    assert stored(found)["reduce_sum@1"] is True
    assert sum(found.traffic.launches) == 2


def test_a_fusion_reads_a_value_once() -> None:
    found = of(lambda x: x * x + jnp.sin(x), A)
    assert sum(len(reads) for reads in found.traffic.reads) == 1
    assert sum(found.traffic.launches) == 1


def test_what_reads_the_same_array_shares_a_kernel() -> None:
    found = of(lambda x: (x * 2, x + 1), A)
    assert [len(reads) for reads in found.traffic.reads] == [1, 0]
    assert found.traffic.launches == (1, 0)


def test_a_lookup_computes_the_few_elements_that_it_reads() -> None:
    """The sum and the lookup read the argument; its wider copy is in neither's memory."""

    def picked(x, i):
        wide = x.astype("float32")
        return jnp.take_along_axis(wide, i, axis=1), wide.sum(1)

    found = of(picked, A.astype("bfloat16"), jnp.zeros((A.shape[0], 1), int))
    assert stored(found)["convert_element_type@0"] is False


def test_constants_are_free() -> None:
    found = of(lambda x: x + (jnp.zeros((8, 16)) + 1), A)
    free = {v.name: found.traffic.free[i] for i, v in enumerate(found.flat.values)}
    assert free == {"x": False, "broadcast_in_dim@0": True, "add@1": True, "add@2": False}
    assert found.traffic.launches == (0, 0, 1)


def test_what_renames_memory_starts_nothing() -> None:
    found = of(lambda x: x.reshape(4, 32), A)
    assert found.traffic.launches == (0,)


def test_carries_and_what_enters_a_loop_are_stored() -> None:
    case = CASES["scanned"]
    found = of(case.fn, *case.args)
    kept = stored(found)
    assert kept["stack@3"]
    assert kept["scan@4.in1"]
    assert kept["tanh@4/0/2"]
    assert not kept["add@4/0/1"]


def test_what_a_dear_op_computes_from_is_stored_if_another_kernel_reads_it() -> None:
    def gelu(x, w):
        u = (x @ w) * 0.7
        return jax.lax.erfc(u) @ w, jnp.exp(-u * u) @ w

    wide = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    kept = stored(of(gelu, jax.ShapeDtypeStruct((8, 16), jnp.float32), wide))
    assert kept["mul@1"]
    once = stored(of(lambda x, w: jax.lax.erfc((x @ w) * 0.7), A, W))
    assert not once["mul@1"]


def test_a_carry_that_starts_as_a_constant_is_still_stored() -> None:
    """Its first value is free, but not what the body makes of it."""

    def fn(x):
        return jax.lax.fori_loop(0, 3, lambda _, c: c + x, jnp.zeros((8, 16)))

    found = of(fn, A)
    carries = [i for i, v in enumerate(found.flat.values) if v.kind == "port" and v.type.shape]
    assert all(found.traffic.stored[i] for i in carries)


@pytest.mark.parametrize("name", sorted(CASES))
def test_facts_fit_the_program(name: str) -> None:
    found = of(CASES[name].fn, *CASES[name].args)
    traffic, flat = found.traffic, found.flat
    assert len(traffic.stored) == len(traffic.free) == len(flat.values)
    assert len(traffic.reads) == len(traffic.launches) == len(flat.ops)
    for op, reads, starts in zip(flat.ops, traffic.reads, traffic.launches, strict=True):
        assert starts in (0, 1)
        read = [op.inputs[k] for k in reads]
        assert all(isinstance(v, int) and traffic.stored[v] for v in read)
    assert not any(traffic.free[v] for v in flat.inputs)
