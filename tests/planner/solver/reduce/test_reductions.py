"""Every reduction keeps the optimum, and lifts choices at the cost and use they have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from planner.solver.arrays import Flat, Ints, Pool, flatten_problem
from planner.solver.exact.bucket_elimination import Tables
from planner.solver.exact.components import components, decide_apart
from planner.solver.problem import Edge, Floats, IntraProblem
from planner.solver.reduce.arc_consistency import consistent
from planner.solver.reduce.dominance import undominated
from planner.solver.reduce.followers import followers
from planner.solver.reduce.node_elimination import eliminate_series
from planner.solver.reduce.reduce import Step, reduce
from planner.solver.reduce.remap import keeping, remap
from tests.helpers_exhaustive import usual
from tests.planner.solver.brute_force import brute_force
from tests.planner.solver.flats import best, choices, rounding, small
from tests.planner.solver.flats import costs as costs_of
from tests.planner.solver.problems import instance

Reduction = Callable[[Flat], tuple[Flat, Step] | None]


def _kept(flat: Flat, held: np.ndarray) -> tuple[Flat, Step] | None:
    node = np.repeat(np.arange(flat.size), flat.sizes)
    if held.all() or (np.bincount(node[held], minlength=flat.size) == 0).any():
        return None
    step = keeping(flat, held)
    return remap(flat, step), step


def forbidden(flat: Flat) -> tuple[Flat, Step] | None:
    return _kept(flat, consistent(flat))


def dominated(flat: Flat) -> tuple[Flat, Step] | None:
    held = consistent(flat)
    if not held.all():
        found = _kept(flat, held)
        if found is None:
            return None
        flat = found[0]
    return _kept(flat, undominated(flat)) if held.all() else None


def merged(flat: Flat) -> tuple[Flat, Step] | None:
    step = followers(flat) if consistent(flat).all() else None
    return None if step is None else (remap(flat, step), step)


def removed(flat: Flat) -> tuple[Flat, Step] | None:
    return eliminate_series(flat)


def apart(flat: Flat) -> tuple[Flat, Step] | None:
    if not consistent(flat).all():
        return None
    return decide_apart(flat, Tables(), time.monotonic() + 60.0)


def islands(seed: int) -> Flat:
    """Two problems that have nothing to do with each other, one after the other in time."""
    one, other = instance(seed, nodes=(1, 4), most=20), instance(seed + 9000, nodes=(1, 4), most=20)
    shift, later = one.size, max((end for _, end in one.intervals), default=0)
    both = IntraProblem(
        one.node_cost + other.node_cost,
        (*one.edges, *(Edge(e.u + shift, e.v + shift, e.cost) for e in other.edges)),
        one.usage + other.usage,
        (*one.intervals, *((a + later, b + later) for a, b in other.intervals)),
        min(one.limit, other.limit),
    )
    flat = flatten_problem(both)
    flat = remap(flat, keeping(flat, np.ones(len(flat.cost), dtype=np.bool_)))
    held = consistent(flat)
    found = _kept(flat, held)
    return flat if found is None else found[0]


def functional(seed: int) -> Flat:
    """A problem some of whose edges allow each option of one end with one of the other."""
    flat, rng = small(seed), np.random.default_rng(seed)
    pool, sizes = flat.pool.copy(), flat.sizes
    for (u, v), at in zip(flat.ends.tolist(), flat.table.tolist(), strict=True):
        rows, columns = int(sizes[u]), int(sizes[v])
        if rows < columns or rng.random() < 0.4:
            continue
        keep = np.zeros((rows, columns), dtype=np.bool_)
        to = np.concatenate((rng.permutation(columns), rng.integers(0, columns, rows - columns)))
        keep[np.arange(rows), to] = True
        pool[at : at + rows * columns][~keep.ravel()] = np.inf
    return Flat(
        flat.first, np.where(np.isfinite(flat.cost), flat.cost, 1.0), flat.ends, flat.table,
        Pool(pool), flat.owner, flat.begin, flat.end, flat.use_at, flat.use, flat.limit,
        flat.moment, flat.constant,
    )  # fmt: skip


REDUCTIONS: tuple[tuple[Reduction, Callable[[int], Flat], int], ...] = (
    (forbidden, small, 15),
    (dominated, small, 40),
    (merged, functional, 20),
    (removed, small, 60),
    (apart, islands, 20),
)


@pytest.mark.parametrize(("reduction", "problem", "often"), REDUCTIONS)
def test_the_optimum_stays(
    reduction: Reduction, problem: Callable[[int], Flat], often: int
) -> None:
    found = 0
    for seed in range(300):
        flat = problem(seed)
        if not flat.size or not np.isfinite(flat.constant) or flat.limit.min(initial=0.0) < 0.0:
            continue
        reduced = reduction(flat)
        if reduced is None:
            continue
        found += 1
        after, step = reduced
        least = best(flat)
        assert best(after) == pytest.approx(least, rel=1e-9, abs=rounding(flat)), seed
        lifted_truthfully(flat, after, step, seed)
    assert found > often


def test_components_are_joined_by_edges_and_by_shared_moments() -> None:
    use, none = np.array([0.0, 2.0]), np.zeros(2)
    problem = IntraProblem(
        tuple(np.array([0.0, 1.0]) for _ in range(6)),
        (Edge(0, 1, np.ones((2, 2))),),
        (none, none, use, use, use, none),
        ((0, 0), (0, 0), (0, 2), (1, 3), (3, 5), (0, 9)), 1.0,
    )  # fmt: skip
    flat = flatten_problem(problem)
    tidy = remap(flat, keeping(flat, np.ones(len(flat.cost), dtype=np.bool_)))
    found = components(tidy).tolist()
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert len({found[0], found[2], found[4]}) == 3


def lifted_truthfully(flat: Flat, after: Flat, step: Step, seed: int) -> None:
    """All choices of the new problem have the same cost and fit alike when lifted."""
    if after.limit.min(initial=0.0) < 0.0:
        return
    for choice, cost in list(zip(choices(after), costs_of(after), strict=True))[:50]:
        lifted = step.lift(choice)
        back = flat.cost_of(lifted) if flat.fits(lifted) else math.inf
        assert back == pytest.approx(cost, rel=1e-9, abs=rounding(flat)), seed
    some: Ints = choices(after)[0]
    like = step.project(step.lift(some))
    assert like.shape == some.shape
    assert ((like >= 0) & (like < after.sizes)).all()


@pytest.mark.parametrize("block", usual(range(8), range(4)))
def test_all_together(block: int) -> None:
    for seed in range(block * 150, block * 150 + 150):
        problem = instance(seed, nodes=(1, 9), most=600)
        expected, state = brute_force(problem), reduce(flatten_problem(problem))
        if state.broken:
            assert not expected.choice, seed
            continue
        least = best(state.flat)
        assert least == pytest.approx(expected.cost, rel=1e-9, abs=rounding(state.flat)), seed
        if expected.choice:
            every = choices(state.flat)
            lifted = state.lift(every[int(costs_of(state.flat).argmin())])
            assert problem.is_feasible(lifted.tolist()), seed
            assert problem.cost(lifted.tolist()) == pytest.approx(expected.cost, rel=1e-9), seed


def chain(count: int) -> IntraProblem:
    """A chain of permutations and repeated tables: one choice decides all."""
    swap = np.array([[np.inf, 1.0], [2.0, np.inf]])
    costs: tuple[Floats, ...] = tuple(np.array([0.0, float(v % 2)]) for v in range(count))
    usage = tuple(np.array([1.0, 2.0]) for _ in range(count))
    edges = tuple(Edge(v, v + 1, swap) for v in range(count - 1))
    return IntraProblem(costs, edges, usage, ((0, 3),) * count, 2.0 * count)


def test_a_long_chain_of_followers_is_one_choice() -> None:
    state = reduce(flatten_problem(chain(5000)))
    assert not state.broken
    assert state.flat.size <= 1
    choice = state.lift(np.zeros(state.flat.size, dtype=np.int64))
    assert np.isfinite(chain(5000).cost(choice.tolist()))
    assert (np.diff(choice) != 0).all()


def test_equal_tables_are_held_once() -> None:
    rng = np.random.default_rng(0)
    table = rng.random((6, 6))
    cost = rng.random(6)
    count = 400
    pairs = [(v, w) for v in range(count) for w in (v + 1, v + 7, v + 31) if w < count]
    problem = IntraProblem(
        (cost,) * count, tuple(Edge(u, v, table) for u, v in pairs), (np.zeros(6),) * count,
        ((0, 0),) * count, 1.0,
    )  # fmt: skip
    flat = reduce(flatten_problem(problem)).flat
    assert flat.size > 300
    assert len(flat.pool) < flat.entries / 50
