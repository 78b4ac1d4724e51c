"""Bounds of divisions against simulated schedules, and lists of them against all there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import parse_cluster
from planner.pipeline.divide.critical_paths import Tasks
from planner.pipeline.divide.dynamic_programme import Machine
from planner.pipeline.divide.listing import Begun, Floors, Least, Listing, Parts, least_step_s
from planner.pipeline.divide.listing_in_turn import ListingInTurn, least_sums_s
from planner.pipeline.divide.simulated import table_of
from planner.pipeline.divide.transfers import crossed, entry_s, links_of
from planner.pipeline.schedule import (
    ONE_EACH,
    PIPELINES,
    TURNS,
    Simulator,
    StageCosts,
    Turns,
    turns_of,
)
from planner.pipeline.schedule.transform import with_optimizer

PLACES = 5
SIZES = (1, 2, 4)
EDGE = np.array([0.0, 2.0, 0.5, 1.0, 0.0])


def listing_of(work: list[float], stages: tuple[int, ...]) -> Listing:
    """Divisions of so much work on two hosts of four devices."""
    sums = np.concatenate(([0.0], np.cumsum(work)))
    run = sums[None, :] - sums[:, None]
    run = np.where(np.tril(np.ones_like(run, dtype=bool)), np.inf, run)
    floors = {
        d: Floors(run / d / 3, run / d * 2 / 3, run / d * 1.1, run * (4 + 0.1 * d) / d,
                  Tasks(run / d / 3, run / d * 2 / 3, run * 0.1, run / d / 3, run / d / 3, run / d,
                        run / d * 2 / 3))
        for d in SIZES
    }  # fmt: skip

    def transfer_s(first: int, size: int) -> np.ndarray:
        return EDGE / size if first % 4 == 0 else 0.0 * EDGE

    return Listing(Machine(8, 4, SIZES), 4, lambda d, _left, _turns: floors[d], transfer_s, stages)


def bound_s(listing: Listing, parts: Parts, turns: Turns = ONE_EACH) -> float:
    places, sizes = parts
    stages = [
        listing.floors(d, 1, turns).at(at)
        for d, at in zip(sizes, itertools.pairwise(places), strict=True)
    ]
    group = turns.group(len(sizes))
    firsts = [sum(sizes[:g]) for g in crossed(group)]
    moved = [
        float(listing.transfer_s(f, d)[i]) for f, d, i in zip(firsts, sizes, places, strict=False)
    ]
    return least_step_s(stages, moved, group, listing.count)


def every(listing: Listing) -> Iterator[Parts]:
    machine = listing.machine
    for p in listing.stages:
        for sizes in itertools.product(SIZES, repeat=p):
            starts = [sum(sizes[:s]) for s in range(p)]
            if sum(sizes) == machine.devices and all(map(machine.fits_at, starts, sizes)):
                for inner in itertools.combinations(range(1, PLACES - 1), p - 1):
                    yield (0, *inner, PLACES - 1), sizes


TAKEN = st.sampled_from([Turns(2), Turns(2, back=True)])
WORK = st.lists(st.floats(0.1, 9.0), min_size=PLACES - 1, max_size=PLACES - 1)


def below(listing: Listing | ListingInTurn, begun: list[Begun], limit_s: float) -> set[Parts]:
    """All divisions whose bound is below a limit; what was begun has the least bound of them."""
    found, todo = set[Parts](), [one for one in begun if one.bound_s < limit_s]
    while todo:
        one = todo.pop()
        assert listing.again(one).bound_s == one.bound_s
        for longer in listing.longer(one, limit_s):
            assert one.bound_s <= longer.bound_s < limit_s
            if longer.left:
                todo.append(longer)
            else:
                found.add((longer.places, longer.sizes))
    return found


@settings(max_examples=25, deadline=None)
@given(WORK, st.floats(1.0, 2.0))
def test_all_divisions_below_a_limit_are_listed(work: list[float], above: float):
    listing = listing_of(work, (2, 3, 4))
    steps = {parts: bound_s(listing, parts) for parts in every(listing)}
    begun, best = listing.begun(), min(steps.values())
    assert 0.7 * best < min(one.bound_s for one in begun) <= best * (1 + 1e-9)
    found = below(listing, begun, best * above)
    assert found == {parts for parts, step_s in steps.items() if step_s < best * above}


def test_what_was_begun_rises_with_the_bounds_of_its_stages():
    one = next(iter(listing_of([1.0, 2.0, 3.0, 1.0], (2,)).longer(Begun(2), 1e9)))
    now = listing_of([2.0, 2.0, 3.0, 1.0], (2,)).again(one)
    assert now.places == one.places
    assert now.bound_s > one.bound_s


@settings(max_examples=25, deadline=None)
@given(WORK, st.floats(0.8, 2.0), TAKEN)
def test_all_divisions_in_turn_below_a_limit_are_listed(
    work: list[float], above: float, turns: Turns
):
    listing = listing_of(work, (2,))
    own = ListingInTurn(listing, 2, turns, math.inf)
    parts = [((0, *inner, PLACES - 1), (4,) * 4) for inner in itertools.combinations((1, 2, 3), 3)]
    steps = {one: max(bound_s(listing, one, turns), own.paths.step_s(one[0])) for one in parts}
    least, begun = min(steps.values()), own.begun(own.least_s())
    assert begun.bound_s <= least * (1 + 1e-9)
    found = below(own, [begun], least * above)
    assert found >= {one for one, step_s in steps.items() if step_s < least * above}
    again = ListingInTurn(listing, 2, turns, math.inf, own.paths.counts)
    assert again.begun(0.0).bound_s == own.begun(0.0).bound_s
    assert ListingInTurn(listing, 3, turns, math.inf).least_s() == math.inf


SECONDS = st.lists(st.floats(0.01, 3.0), min_size=4, max_size=4)


@settings(max_examples=30, deadline=None)
@given(
    SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from(sorted({*PIPELINES})),
    st.sampled_from([2, 4, 8]), st.sampled_from([0.0, 1e9, 1e10]),
)  # fmt: skip
def test_no_schedule_is_faster_than_the_bound(
    forward: list[float], back: list[float], weight: list[float], once: list[float],
    name: str, count: int, sent: float,
):  # fmt: skip
    cluster = parse_cluster("4xv100-16gb:2")
    chunks = 2 if name in TURNS else 1
    group, groups = turns_of(name, chunks).group(4), 4 // chunks
    sizes = (cluster.num_devices // groups,) * groups
    costs = StageCosts(
        forward_s=tuple(forward), input_gradient_s=tuple(back), weight_gradient_s=tuple(weight),
        optimizer_s=tuple(once), output_bytes=(sent / sizes[0],) * 3 + (0.0,),
    )  # fmt: skip
    table = with_optimizer(table_of(name, count, ("none",) * 4, chunks))
    step_s = Simulator(table).run(costs, links_of(sizes, cluster)).step_s
    across, size = np.array([0.0, *(sent,) * 3]), sizes[0]
    moved = [
        float(entry_s(cluster, g * size, size, across)[s]) for s, g in enumerate(crossed(group))
    ]
    stages = [
        Least(f, f + b, f + b + w + u, count * (f + b + w) + u)
        for f, b, w, u in zip(forward, back, weight, once, strict=True)
    ]  # fmt: skip
    assert least_step_s(stages, moved, group, count) <= step_s * (1 + 1e-9)


def test_what_is_left_takes_at_least_its_best_parts() -> None:
    seconds = np.random.default_rng(0).random((6, 6))
    sums = least_sums_s(seconds)
    for first in range(6):
        between = range(first + 1, 5)
        inner = [some for n in range(5) for some in itertools.combinations(between, n)]
        every = [itertools.pairwise((first, *some, 5)) for some in inner] if first < 5 else [()]
        assert math.isclose(sums[first], min(sum(seconds[at] for at in some) for some in every))
