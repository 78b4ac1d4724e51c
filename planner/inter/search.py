"""Pipelines worth trying, priced and ranked.

A candidate is a number of stages, devices of each, micro-batches, a schedule, and whether stages
run their forward pass again. Stages are cut by work; each distinct one is split over its devices
by the intra-op search, once; the simulator then runs every schedule with what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel import Cluster

from ..errors import PlanError
from ..schedule import Links, Schedule, Simulator, StageCosts, build
from ..schedule.transform import with_optimizer, with_recomputation
from .chain import Chain, cuts_by_share
from .price import StagePrice

SCHEDULES = ("1f1b", "zb-h1", "gpipe")
MOST_STAGES = 16
MOST_COUNTS = 2
# A pipeline of p stages idles for (p - 1) / (m + p - 1) of the step: with this many times p
# micro-batches, for less than a fifth.
ROUNDS = (4, 2, 8, 1)


@dataclass(frozen=True)
class Shape:
    """Stages and micro-batches of a candidate.

    cuts: first slot of every stage, and the number of slots.
    sizes: devices of every stage.
    """

    cuts: tuple[int, ...]
    sizes: tuple[int, ...]
    microbatches: int


@dataclass(frozen=True)
class Ranked:
    """A candidate with its simulated step.

    stage_s: busy seconds of each stage; peak_bytes: of a device of each stage.
    """

    shape: Shape
    schedule: str
    recompute: bool
    step_s: float
    bubble: float
    stage_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]

    @property
    def worst_bytes(self) -> float:
        """Peak of the fullest device."""
        return max(self.peak_bytes)


def sizes_of(cluster: Cluster, stages: int) -> tuple[int, ...] | None:
    """Devices of each stage: equal shares of whole hosts or of one host; else as even as it goes.

    None if some stage would lie across hosts that it does not fill.
    """
    devices, host = cluster.num_devices, cluster.devices_per_host
    if stages > devices:
        return None
    each, more = divmod(devices, stages)
    sizes = tuple(each + (s < more) for s in range(stages))
    if more and cluster.num_hosts > 1:
        hosts, left = divmod(cluster.num_hosts, stages)
        if not hosts:
            return None
        sizes = tuple((hosts + (s < left)) * host for s in range(stages))
    start = 0
    for size in sizes:
        inside = start % host + size <= host
        if not inside and (start % host or size % host):
            return None
        start += size
    return sizes


def stage_counts(cluster: Cluster, chain: Chain, asked: int | None) -> list[int]:
    """Numbers of stages to try: those that share the devices evenly, a stage an island first.

    Raises:
        PlanError: if the number asked for cannot be had.
    """
    most = min(len(chain.places()) + 1, cluster.num_devices)
    if asked is not None:
        if asked > cluster.num_devices or sizes_of(cluster, asked) is None:
            raise PlanError(
                f"{asked} stages cannot share {cluster.num_devices} devices in hosts of "
                f"{cluster.devices_per_host}", kind="bad-option", where="pipeline",
                remedy="ask for a number of stages that divides the hosts, or a host's devices",
            )  # fmt: skip
        return [asked]
    found = [s for s in range(2, min(most, MOST_STAGES) + 1) if cluster.num_devices % s == 0]
    islands = cluster.num_devices // cluster.island
    fit = [s for s in found if sizes_of(cluster, s) is not None]
    return sorted(fit, key=lambda s: (abs(math.log(s / islands)), s))


def counts_of(stages: int, batch: int, asked: int | None) -> list[int]:
    """Numbers of micro-batches to try, the most promising first, then larger ones for memory."""
    if asked is not None:
        return [asked]
    wanted = [min(batch, stages * k) for k in ROUNDS]
    found: list[int] = []
    for goal in wanted:
        divisors = [d for d in range(1, batch + 1) if batch % d == 0]
        nearest = min(divisors, key=lambda d: (abs(math.log(d / goal)), -d))
        if nearest not in found:
            found.append(nearest)
    found = found[:MOST_COUNTS]
    larger = [d for d in range(max(found) + 1, batch + 1) if batch % d == 0]
    while larger:
        found.append(larger[0])
        larger = [d for d in larger if d >= 2 * found[-1]]
    return found


def shape_of(cluster: Cluster, chain: Chain, stages: int, microbatches: int) -> Shape:
    """Stages of equal work for each device.

    Raises:
        PlanError: if the program has too few layers.
    """
    sizes = sizes_of(cluster, stages)
    assert sizes is not None
    return Shape(cuts_by_share(chain, [float(n) for n in sizes]), sizes, microbatches)


def rebalanced(shape: Shape, chain: Chain, stage_s: Sequence[float]) -> Shape | None:
    """The shape cut by the seconds that its stages turned out to take; None if it stays so."""
    slots = list(chain.slots)
    for s, seconds in enumerate(stage_s):
        a, b = shape.cuts[s], shape.cuts[s + 1]
        work = chain.work[b] - chain.work[a]
        rate = seconds * shape.sizes[s] / work if work else 0.0
        slots[a:b] = [replace(slot, flops=slot.flops * rate) for slot in slots[a:b]]
    priced = Chain(tuple(slots), chain.across)
    if not priced.work[-1]:
        return None
    cuts = cuts_by_share(priced, [float(size) for size in shape.sizes])
    return None if cuts == shape.cuts else replace(shape, cuts=cuts)


def ranked(
    shape: Shape,
    prices: Sequence[StagePrice],
    across: Sequence[float],
    cluster: Cluster,
    limit_bytes: float,
    schedules: Sequence[str] = SCHEDULES,
) -> list[Ranked]:
    """The shape under every schedule, with and without recomputation; the fastest that fit first.

    Args:
        shape: stages and micro-batches.
        prices: of every stage.
        across: bytes of one micro-batch that each stage sends to the next.
        cluster: all devices.
        limit_bytes: of a device.
        schedules: names.
    """
    found = [
        _simulated(shape, name, again, prices, across, cluster)
        for name in schedules
        for again in (False, True)
    ]
    return sorted(found, key=lambda r: (r.worst_bytes > limit_bytes, r.step_s, r.recompute))


def _simulated(
    shape: Shape,
    name: str,
    again: bool,
    prices: Sequence[StagePrice],
    across: Sequence[float],
    cluster: Cluster,
) -> Ranked:
    table = with_optimizer(build(name, len(prices), shape.microbatches))
    if again:
        table = with_recomputation(table)
    grow = [p.boundary_bytes if again else p.activation_bytes for p in prices]
    costs = StageCosts(
        forward_s=tuple(p.forward_s for p in prices),
        input_gradient_s=tuple(p.input_gradient_s for p in prices),
        weight_gradient_s=tuple(p.weight_gradient_s for p in prices),
        recompute_s=tuple(p.forward_s for p in prices),
        optimizer_s=tuple(p.once_s for p in prices),
        activation_bytes=tuple(grow),
        weight_input_bytes=tuple(grow),
        boundary_bytes=tuple(grow),
        output_bytes=(*across, 0.0),
        weight_bytes=tuple(
            max(p.held_bytes - g, 0.0) for p, g in zip(prices, grow, strict=True)
        ),
    )  # fmt: skip
    timeline = Simulator(table).run(costs, links_of(shape.sizes, cluster))
    busy = tuple(
        shape.microbatches * (p.microbatch_s + again * p.forward_s) + p.once_s for p in prices
    )
    return Ranked(shape, name, again, timeline.step_s, timeline.bubble, busy, timeline.peak_bytes)


def links_of(sizes: Sequence[int], cluster: Cluster) -> Links:
    """Links between stages: every device of the smaller one sends its part."""
    starts = [sum(sizes[:s]) for s in range(len(sizes))]
    host = cluster.devices_per_host
    latency: list[tuple[float, ...]] = []
    bandwidth: list[tuple[float, ...]] = []
    for a, n in zip(starts, sizes, strict=True):
        rows = [
            cluster.intra_host
            if a // host == (b + m - 1) // host == b // host == (a + n - 1) // host
            else cluster.network
            for b, m in zip(starts, sizes, strict=True)
        ]
        latency.append(tuple(link.latency_s for link in rows))
        bandwidth.append(
            tuple(
                link.bandwidth_bytes_per_s / min(link.shared_by_devices, n) * min(n, m)
                for link, m in zip(rows, sizes, strict=True)
            )
        )
    return Links(latency_s=tuple(latency), bandwidth_bytes_per_s=tuple(bandwidth))


def table_of(name: str, placement_stages: int, microbatches: int, *, again: bool) -> Schedule:
    """The schedule that a ranked candidate runs."""
    table = build(name, placement_stages, microbatches)
    return with_recomputation(table) if again else table
