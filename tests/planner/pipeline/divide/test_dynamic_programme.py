"""Divisions into stages against every division there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.divide.dynamic_programme import (
    EXACT,
    Machine,
    Option,
    Space,
    divide,
    divisions,
)
from planner.pipeline.divide.run_costs import Costs
from planner.pipeline.schedule import IN_FLIGHT

PLACES = 5
SIZES = (1, 2, 4)
SECONDS = st.lists(st.integers(1, 9), min_size=PLACES - 1, max_size=PLACES - 1)


def costs_of(
    work: list[int], held: float, more: float, limit: float = math.inf
) -> Callable[[int], dict[Option, Costs]]:
    """Runs that cost the sum of their slots over the devices, a little more on many; two kinds.

    Runs that need more memory than the limit, given the micro-batches in flight, are no stages.
    """
    sums = np.concatenate(([0.0], np.cumsum(work)))
    run = sums[None, :] - sums[:, None]
    empty = np.tril(np.ones_like(run, dtype=bool))

    def costs(flight: int) -> dict[Option, Costs]:
        found: dict[Option, Costs] = {}
        for size in SIZES:
            for kind, slower, share in (("none", 1.0, 1.0), ("stage", 1.25, 0.25)):
                micro = np.where(empty, np.inf, run * slower * (1.0 + 0.1 * size) / size)
                needs = run * (held + (flight - 1) * more * share) / size
                micro = np.where(needs <= limit, micro, np.inf)
                found[size, kind] = Costs(micro, micro * 0.9)
        return found

    return costs


def space_of(
    work: list[int], count: int, limit: float, wide: float, family: str, devices: int = 8
) -> Space:
    """Divisions of so much work, with transfers between hosts of four alone."""
    edge = np.array([0.0, *([wide] * (PLACES - 2)), 0.0])
    return Space(
        Machine(devices, 4, SIZES), count, costs_of(work, 1.5, 1.0, limit),
        lambda first, size: edge / size if first % 4 == 0 else 0.0 * edge, IN_FLIGHT[family],
    )  # fmt: skip


def every(space: Space, stages: tuple[int, ...]) -> Iterator[float]:
    """Steps of all divisions that fit."""
    machine = space.machine
    for p in stages:
        for inner in itertools.combinations(range(1, PLACES - 1), p - 1):
            for sizes in itertools.product(SIZES, repeat=p):
                starts = [sum(sizes[:s]) for s in range(p)]
                if sum(sizes) != machine.devices or not all(map(machine.fits_at, starts, sizes)):
                    continue
                for kinds in itertools.product(("none", "stage"), repeat=p):
                    step_s = space.estimated((0, *inner, PLACES - 1), sizes, kinds).step_s
                    if np.isfinite(step_s):
                        yield step_s


CASE = (
    SECONDS, st.integers(1, 8), st.sampled_from([4.0, 12.0, 40.0]), st.floats(0.0, 2.0),
    st.sampled_from(sorted(IN_FLIGHT)),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(*CASE)
def test_no_division_is_better(work: list[int], count: int, limit: float, wide: float, family: str):
    space = space_of(work, count, limit, wide, family)
    for stages in ((2, 3, 4), (3,)):
        best = min(every(space, stages), default=math.inf)
        found, bound = divide(space, stages)
        assert bound <= best * (1 + 1e-9)
        if found is None:
            assert best == math.inf
        else:
            assert best * (1 - 1e-9) <= found.step_s <= best * (1 + 2 * EXACT)
            assert divide(space, stages, best * 0.9)[0] is None


@settings(max_examples=10, deadline=None)
@given(*CASE, st.floats(1.0, 1.5))
def test_all_divisions_below_a_limit_are_listed(
    work: list[int], count: int, limit: float, wide: float, family: str, above: float
):
    space = space_of(work, count, limit, wide, family)
    steps = sorted(every(space, (2, 3)))
    if not steps:
        return
    found = [*divisions(space, (2, 3), steps[0] * above)]
    wanted = [step_s for step_s in steps if step_s < steps[0] * above]
    np.testing.assert_allclose([one.step_s for one in found], wanted)
    assert len({one.key for one in found}) == len(found)


def test_memory_of_early_stages_decides_what_they_recompute():
    costs = costs_of([4, 4, 4, 4], 1.0, 2.0, 16.0)
    space = Space(Machine(4, 4, SIZES), 16, costs, lambda first, size: np.zeros(PLACES))
    found, _ = divide(space, (4,))
    assert found is not None
    assert found.sizes == (1, 1, 1, 1)
    assert found.recompute == ("stage", "stage", "none", "none")


@pytest.mark.parametrize(("first", "size", "fits"), [(0, 3, True), (6, 3, False), (8, 16, True)])
def test_a_sub_mesh_lies_in_a_host_or_fills_hosts(first: int, size: int, fits: bool):
    assert Machine(32, 8, (size,)).fits_at(first, size) is fits
