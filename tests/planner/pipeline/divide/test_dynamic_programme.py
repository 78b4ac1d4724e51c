"""Divisions into stages against every division there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.divide.dynamic_programme import Machine, divide
from planner.pipeline.divide.run_costs import Costs
from planner.pipeline.schedule import IN_FLIGHT

PLACES = 5
SIZES = (1, 2, 4)
SECONDS = st.lists(st.integers(1, 9), min_size=PLACES - 1, max_size=PLACES - 1)


def costs_of(work: list[int], held: float, more: float) -> dict[tuple[int, str], Costs]:
    """Runs that cost the sum of their slots over the devices, a little more on many; two kinds."""
    sums = np.concatenate(([0.0], np.cumsum(work)))
    run = sums[None, :] - sums[:, None]
    empty = np.tril(np.ones_like(run, dtype=bool))
    found: dict[tuple[int, str], Costs] = {}
    for size in SIZES:
        for kind, slower, share in (("none", 1.0, 1.0), ("stage", 1.25, 0.25)):
            micro = np.where(empty, np.inf, run * slower * (1.0 + 0.1 * size) / size)
            found[size, kind] = Costs(micro, run * held / size, run * more * share / size)
    return found


def every(
    costs: dict[tuple[int, str], Costs],
    transfer: dict[int, np.ndarray],
    machine: Machine,
    count: int,
    p: int,
    family: str,
) -> Iterator[float]:
    """Steps of all divisions into p stages that fit."""
    for inner in itertools.combinations(range(1, PLACES - 1), p - 1):
        cuts = (0, *inner, PLACES - 1)
        for sizes in itertools.product(SIZES, repeat=p):
            starts = [sum(sizes[:s]) for s in range(p)]
            if sum(sizes) != machine.devices or not all(map(machine.fits_at, starts, sizes)):
                continue
            for kinds in itertools.product(("none", "stage"), repeat=p):
                stages = [costs[pair] for pair in zip(sizes, kinds, strict=True)]
                at = list(itertools.pairwise(cuts))
                flight = [IN_FLIGHT[family](p - s, count) for s in range(p)]
                held = [
                    c.held_bytes[a] + (f - 1) * c.more_bytes[a]
                    for c, a, f in zip(stages, at, flight, strict=True)
                ]
                if max(held) <= machine.limit_bytes:
                    micro = [float(c.micro_s[a]) for c, a in zip(stages, at, strict=True)]
                    moved = [float(transfer[d][c]) for d, c in zip(sizes, cuts[:-1], strict=True)]
                    trips = [
                        (sum(micro[s:]) + sum(moved[s + 1 :])) / flight[s]
                        for s in range(p) if flight[s] < count
                    ]  # fmt: skip
                    yield sum(micro) + sum(moved) + (count - 1) * max(*micro, *moved, *trips)


@settings(max_examples=60, deadline=None)
@given(
    SECONDS,
    st.integers(1, 8),
    st.sampled_from([4.0, 12.0, 40.0]),
    st.floats(0.0, 2.0),
    st.sampled_from(sorted(IN_FLIGHT)),
)
def test_no_division_is_better_by_more_than_the_limits_are_apart(
    work: list[int], count: int, limit: float, wide: float, family: str
):
    costs = costs_of(work, 1.5, 1.0)
    edge = np.array([0.0, *([wide] * (PLACES - 2)), 0.0])
    transfer = {size: edge / size for size in SIZES}
    machine = Machine(8, 4, SIZES, limit)
    divided = divide(costs, transfer, machine, count, stages=(2, 3, 4), in_flight=IN_FLIGHT[family])
    found = {len(d.sizes): d for d in divided}
    for p in (2, 3, 4):
        best = min(every(costs, transfer, machine, count, p, family), default=None)
        if best is None:
            assert p not in found
        elif p in found:
            assert best * (1 - 1e-9) <= found[p].step_s <= best * 1.15
        else:  # another number of stages is better
            assert best * (1 + 1e-9) >= min((d.step_s for d in found.values()), default=0.0)


def test_memory_of_early_stages_decides_what_they_recompute():
    costs = costs_of([4, 4, 4, 4], 1.0, 2.0)
    machine = Machine(4, 4, SIZES, 16.0)
    (found,) = divide(costs, dict.fromkeys(SIZES, np.zeros(PLACES)), machine, 16, stages=(4,))
    assert found.sizes == (1, 1, 1, 1)
    assert found.recompute == ("stage", "stage", "none", "none")


@pytest.mark.parametrize(("first", "size", "fits"), [(0, 3, True), (6, 3, False), (8, 16, True)])
def test_a_sub_mesh_lies_in_a_host_or_fills_hosts(first: int, size: int, fits: bool):
    assert Machine(32, 8, (size,), 1.0).fits_at(first, size) is fits
