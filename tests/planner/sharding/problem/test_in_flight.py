# pyright: basic
"""Micro-batches in flight: what they hold follows the states that were chosen, in every form."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Shape
from jax import lax

from planner.sharding.problem.in_flight import InFlightBuffers, with_in_flight
from planner.sharding.problem.restricted import Cuts, Within
from tests.planner.spaces import Space, space


def looped(params: Any, x: Any) -> Any:
    def body(total: Any, _: None) -> Any:
        y = jnp.tanh(x @ params["a"])
        z = jnp.sin(y) @ params["b"]
        return total + jnp.sum(z * z) + jnp.sum(y), None

    return lax.scan(body, 0.0, None, length=3)[0]


@pytest.fixture(scope="module")
def small() -> Space:
    params = {"a": Shape((8, 16), jnp.float32), "b": Shape((16, 8), jnp.float32)}
    return space(looped, params, Shape((8, 8), jnp.float32), mesh=(2, 2))


def buffers_of(small: Space, copies: int) -> InFlightBuffers:
    """What ops in the loop make."""
    inside = [op for op in small.flat.ops if len(op.place) > 1]
    times = [op.time for op in inside]
    return InFlightBuffers(
        tuple(v for op in inside for v in op.outputs), copies, min(times), max(times) + 1
    )


@pytest.mark.parametrize("copies", [1, 5])
def test_what_is_held_is_each_value_in_its_state_so_many_times(small: Space, copies: int):
    buffers, rng = buffers_of(small, copies), np.random.default_rng(copies)
    held = with_in_flight(small.builder, small.built, buffers)
    names = {v: key for key, v in small.flat.names.items()}
    for _ in range(40):
        choice = small.draw(rng)
        states = small.decided(choice).plan.decisions.values
        each = sum(
            states[names[v]].local_bytes(small.flat.values[v].type, small.mesh)
            for v in buffers.values if names[v] in states
        )  # fmt: skip
        assert each
        more = held.live_intervals.memory(choice) - small.built.live_intervals.memory(choice)
        assert np.all(more[buffers.start : buffers.end] == copies * each)
        assert not more[: buffers.start].any()
        assert not more[buffers.end :].any()


def test_solvers_see_it_whether_all_moments_are_watched_or_some(small: Space):
    buffers, rng = buffers_of(small, 3), np.random.default_rng(0)
    held = with_in_flight(small.builder, small.built, buffers)
    moments = tuple(range(0, held.live_intervals.horizon, 2))
    watched = held.watching(moments)
    for _ in range(40):
        choice = small.draw(rng)
        expected = held.live_intervals.memory(choice)
        whole = (*choice, *(choice[n] for n in held.followed))
        assert held.problem.cost(whole) == small.built.problem.cost(choice)
        assert held.problem.peak(whole) == pytest.approx(expected.max())
        some = (*choice, *(choice[n] for n in watched.followed))
        assert watched.problem.peak(some) == pytest.approx(expected[list(moments)].max())


def test_a_choice_to_begin_with_is_one_of_the_moments_that_are_watched_later_too(small: Space):
    held = with_in_flight(small.builder, small.built, buffers_of(small, 3)).watching((0,))
    left = Within(held, (None,) * len(held.refs), Cuts())
    rng = np.random.default_rng(2)
    choice = small.draw(rng)
    start = left.lowered(choice)
    assert left.problem(float("inf")).cost(start) == small.built.problem.cost(choice)
    later = left.watching_also(range(held.live_intervals.horizon))
    more = later.followed(start)
    assert len(more) > len(start)
    assert later.problem(float("inf")).cost(more) == small.built.problem.cost(choice)
    assert later.followed(()) == ()


def test_no_choice_is_below_the_least_peak(small: Space):
    held = with_in_flight(small.builder, small.built, buffers_of(small, 3))
    rng = np.random.default_rng(1)
    least = held.live_intervals.least_peak()
    assert least > small.built.live_intervals.least_peak()
    assert all(held.live_intervals.peak(small.draw(rng)) >= least for _ in range(200))
