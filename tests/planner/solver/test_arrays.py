"""The array that problems share."""

from __future__ import annotations

import numpy as np

from planner.solver.arrays import Pool


def test_a_pool_keeps_what_it_holds() -> None:
    rng = np.random.default_rng(0)
    first = [rng.random(n) for n in (3, 0, 8)]
    pool, known = Pool(*first), np.concatenate(first)
    for count in (1, 0, 5, 400, 2, 3000):
        seen, fresh = pool.filled, pool.grow(count)
        assert not fresh.any()
        fresh[:] = rng.random(count)
        np.testing.assert_array_equal(seen, known)
        known = np.append(known, fresh)
        np.testing.assert_array_equal(pool.filled, known)


def test_one_array_is_not_copied_until_it_grows() -> None:
    array = np.arange(4.0)
    pool = Pool(array)
    assert np.shares_memory(pool.filled, array)
    pool.grow(2)[:] = 1.0
    np.testing.assert_array_equal(array, np.arange(4.0))
    np.testing.assert_array_equal(pool.filled, [0.0, 1.0, 2.0, 3.0, 1.0, 1.0])
