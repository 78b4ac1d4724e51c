# pyright: basic
"""Random bits of a shard: the same as those of the whole, whatever generator is set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir.threefry import product
from ir.trace import trace
from tests.helpers_exhaustive import usual
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import CUBE, lowered, random_decisions

MASK = (1 << 64) - 1


def draws(key):
    return (
        jax.random.bits(key, (16, 8), jnp.uint32),
        jax.random.bits(key, (8, 8), jnp.uint16),
        jax.random.uniform(key, (8, 2, 8)),
    )


@pytest.mark.parametrize("seed", usual(range(3), [0]))
@pytest.mark.parametrize("partitionable", [True, False])
@pytest.mark.parametrize("kind", ["rbg", "threefry2x32"])
def test_same_bits(kind: str, partitionable: bool, seed: int) -> None:
    with jax.threefry_partitionable(partitionable):
        key = jax.random.key(9, impl=kind)
        traced = trace(draws, key)
        decisions = random_decisions(traced.graph, CUBE, seed)
        report = check_numerics(traced, lowered(traced, decisions), (key,), rtol=0.0)
        assert all(output.max_abs == 0 for output in report.outputs), str(report)


@pytest.mark.parametrize("factor", [0, 1, 3, 65537, 0xFFFFFFFF, 1 << 32, (7 << 33) + 12345])
def test_product_of_words(factor: int) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, 200, dtype=np.uint32)
    words[:4] = (0, 1, 0xFFFF, 0xFFFFFFFF)
    high, low = product(jnp.asarray(words), factor)
    found = [
        (int(h) << 32) | int(x) for h, x in zip(np.asarray(high), np.asarray(low), strict=True)
    ]
    assert found == [int(word) * factor & MASK for word in words]
