# pyright: basic
"""Programs of every kind: planned, compiled for eight host devices, equal to the unsharded ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner import plan
from tests.planner.programs import CASES, slow_machine

# Planned whole on every device and named in the warnings, since no record says how to split them.
OPAQUE = {"called_back": "pure_callback"}
WHOLE = ("constants", "nothing_in_it", "prime_sizes", "unchanged")


def comparable(x) -> np.ndarray:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return np.asarray(x, np.float32)
    return np.asarray(x)


@pytest.mark.parametrize("name", sorted(CASES))
def test_program_equals_the_unsharded_one(name: str) -> None:
    fn, args = CASES[name].fn, CASES[name].args
    p = plan(fn, *args, cluster=slow_machine(), mesh=(2, 4), baselines=False)
    found, expected = p.compile()(*args), jax.jit(fn)(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        tolerance = 0.02 if x.dtype == "bfloat16" else 1e-4
        np.testing.assert_allclose(comparable(x), comparable(y), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", sorted(set(CASES) - set(WHOLE)))
def test_something_is_split_on_a_slow_machine(name: str) -> None:
    p = plan(CASES[name].fn, *CASES[name].args, cluster=slow_machine(), baselines=False)
    used = {role for roles in p.decisions.ops.values() for role in roles} - {""}
    assert used or any(not state.is_replicated for state in p.decisions.values.values())


@pytest.mark.parametrize(("name", "primitive"), sorted(OPAQUE.items()))
def test_unknown_primitive_is_named(name: str, primitive: str) -> None:
    p = plan(CASES[name].fn, *CASES[name].args, cluster="8xhost", baselines=False)
    assert any(f"'{primitive}'" in w and "whole on every device" in w for w in p.warnings)
    assert f"'{primitive}'" in str(p)


def test_while_loop_of_unknown_length_is_named() -> None:
    case = CASES["while_loop"]
    p = plan(case.fn, *case.args, cluster="8xhost", baselines=False)
    assert any("no known length" in w and "programs.py" in w for w in p.warnings)


@pytest.mark.parametrize("name", ["scanned", "recomputed", "scatters", "short_floats"])
def test_the_other_emission_computes_the_same(name: str) -> None:
    fn, args = CASES[name].fn, CASES[name].args
    p = plan(
        fn, *args, cluster=slow_machine(), mesh=(2, 4), baselines=False, emission="constraints"
    )
    found, expected = p.compile()(*args), jax.jit(fn)(*args)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        tolerance = 0.02 if x.dtype == "bfloat16" else 1e-4
        np.testing.assert_allclose(comparable(x), comparable(y), rtol=tolerance, atol=tolerance)
