# pyright: basic
"""Kernels run after what they read; blocks alive together do not share memory."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.hostmemory.kernels import Body, Kernel
from planner.hostmemory.order import Layout, laid_out, scheduled


def rank(source: Hashable) -> int:
    return source if isinstance(source, int) else 0


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """Kernels that read blocks of earlier ones, some of them in one collective."""
    body = Body()
    blocks = [body.source(n) for n in range(draw(st.integers(1, 3)))]
    for n in range(draw(st.integers(1, 12))):
        reads = tuple(draw(st.sets(st.sampled_from(blocks), min_size=1, max_size=3)))
        made = [body.block(draw(st.integers(0, 5))) for _ in range(draw(st.integers(1, 2)))]
        joins = draw(st.sampled_from([None, None, "sum"]))
        overwrites = draw(st.booleans())
        body.kernels.append(Kernel(n, reads, tuple(made), overwrites, joins=joins))
        blocks += made
    return body


@given(bodies())
def test_what_is_read_is_there(body: Body) -> None:
    there: set[int] = set()
    for kernel in scheduled(body, rank):
        assert there.issuperset(kernel.reads)
        there.update(kernel.writes)
    assert there == set(range(len(body.sizes)))


@given(bodies())
def test_sums_that_are_ready_together_are_one(body: Body) -> None:
    sums = [k for k in scheduled(body, rank) if k.joins is not None]
    made: dict[int, set[int]] = {}  # block -> what it is made of
    for kernel in scheduled(body, rank):
        origin = set(kernel.reads).union(*(made.get(b, set()) for b in kernel.reads))
        made |= dict.fromkeys(kernel.writes, origin)
    for a, b in itertools.pairwise(sums):
        assert any(made[block] & set(a.writes) for block in b.writes)


@given(bodies())
def test_memory_is_what_is_alive(body: Body) -> None:
    """Without overwriting, a block is in use from where it is written to where it is last read."""
    plain = Body([Kernel(k.moment, k.reads, k.writes, joins=k.joins) for k in body.kernels],
                 body.sizes, body.sources)  # fmt: skip
    order = scheduled(plain, rank)
    used = [0] * len(order)
    for block, size in enumerate(plain.sizes):
        times = [n for n, k in enumerate(order) if block in (*k.reads, *k.writes)]
        for n in range(times[0], times[-1] + 1):
            used[n] += size
    layout = laid_out(plain, rank)
    np.testing.assert_array_equal(layout.in_use(), used)
    assert laid_out(body, rank).in_use().max() <= max(used)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_packing_holds_what_is_alive(rows: list[tuple[int, int, int]]) -> None:
    sizes, first, long = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    layout = Layout(sizes, first, np.minimum(first + long, 9), np.zeros(10, dtype=np.int64))
    packed = layout.packed_bytes()
    assert layout.in_use().max() <= packed <= sizes.sum()


def test_a_hole_is_used() -> None:
    """One of 4 and one of 2 live all the time, one of 3 before one of 3: nothing is wasted."""
    sizes = np.array([4, 3, 3, 2])
    first, last = np.array([0, 0, 2, 0]), np.array([3, 1, 3, 3])
    assert Layout(sizes, first, last, np.zeros(4, dtype=np.int64)).packed_bytes() == 9


def test_a_loop_adds_what_it_needs_inside() -> None:
    inner = Body()
    a = inner.block(5)
    inner.kernels.append(Kernel(1, (inner.source(0),), (a,)))
    outer = Body()
    kept, result = outer.block(7), outer.block(2)
    outer.kernels += [
        Kernel(0, (outer.source(0),), (kept,)),
        Kernel(1, (kept,), (result,), inner=(inner,)),
    ]
    assert laid_out(outer, rank).in_use().max() == 7 + 2 + 5
