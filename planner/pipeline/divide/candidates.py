"""Divisions of a program to plan, chosen by the lower estimates of their stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np

from costmodel import Cluster

from ..schedule import IN_FLIGHT, Simulator, StageCosts, Turns, take, turned, with_optimizer
from .by_hand import hand_written
from .chosen_bounds import ChosenBounds
from .dynamic_programme import Division, Floats, Machine, Option, Space, divide, least_most
from .run_costs import Costs
from .simulated import PipelineShape, flights_of, table_of
from .space import sizes
from .stage_bounds import StageBounds, StageKind
from .transfers import entry_s, links_of


@dataclass(frozen=True)
class Candidates:
    """Source of divisions to plan.

    kinds: kinds of recomputation to choose from.
    asked: number of micro-batches at which the program's chain was traced.
    late: families of schedules in which weight gradients may fill the time that a stage waits.
    """

    bounds: StageBounds | ChosenBounds
    cluster: Cluster
    kinds: tuple[str, ...]
    asked: int
    late: frozenset[str] = frozenset()

    def space(self, count: int, family: str) -> Space:
        """All divisions under a number of micro-batches and a family of schedules.

        Args:
            count: number of micro-batches.
            family: sets the micro-batches in flight, a key of `IN_FLIGHT`.
        """
        cluster = self.cluster
        machine = Machine(cluster.num_devices, cluster.devices_per_host, sizes(cluster))

        def costs(flight: int) -> Mapping[Option, Costs]:
            return {
                (size, kind): self.bounds.costs(
                    StageKind(count, size, kind), flight, late=family in self.late
                )
                for size in machine.sizes for kind in self.kinds
            }  # fmt: skip

        return Space(machine, count, costs, self.transfer_s(count), IN_FLIGHT[family])

    def transfer_s(self, count: int) -> Callable[[int, int], Floats]:
        """Seconds of transfers of micro-batches; see `Space`."""
        return partial(entry_s, self.cluster, across_bytes=self.across_bytes(count))

    def across_bytes(self, count: int) -> Floats:
        """Bytes of one micro-batch at each place."""
        return self.bounds.shares.takes_bytes * self.asked / count

    def best(
        self, count: int, family: str, stages: Sequence[int], below_s: float
    ) -> Division | None:
        """The division with the least estimate below a limit [s]; arguments as of `space`."""
        return divide(self.space(count, family), stages, below_s)[0]

    def least_s(self, count: int) -> float:
        """Lower estimate of all steps: the device-seconds of the whole program [s]."""
        whole = [
            size * self.bounds.shares.costs(self.bounds.whole(count, size), count, "none",
                                            late=True).pace_s[0, -1]
            for size in sizes(self.cluster)
        ]  # fmt: skip
        return count * float(min(whole)) / self.cluster.num_devices

    def by_hand(self, count: int, family: str, stages: Sequence[int]) -> dict[str, Division]:
        """Hand-written divisions by name, each stage with its best recomputation.

        Args:
            count: number of micro-batches.
            family: as of `space`.
            stages: numbers of stages to choose from.
        """
        space, shares = self.space(count, family), self.bounds.shares
        devices = self.cluster.num_devices
        rows = hand_written(shares, devices, space.machine.sizes, stages)
        return {
            f"{name}, {p} stages": space.estimated(places, (devices // p,) * p)
            for (name, p), places in rows.items()
        }

    def in_turn(self, count: int, groups: int, turns: Turns) -> Division | None:
        """The division in turns with the least estimated time of its slowest stage.

        None if the program has too few places, no such groups exist, or their schedule does not
        take `count`. All stages of a group have equal shares of its memory.

        Args:
            count: number of micro-batches.
            groups: number of groups, of equal numbers of devices.
            turns: how stages take turns on them.
        """
        n, devices = self.bounds.shares.count, self.cluster.num_devices
        stages = groups * turns.chunks
        size = devices // groups
        machine = Machine(devices, self.cluster.devices_per_host, (size,))
        if devices % groups or not take(turns, groups, count) or stages >= n:
            return None
        if not all(machine.fits_at(size * g, size) for g in range(groups)):
            return None
        flight = flights_in_turn(count, groups, turns)
        each = {
            f: np.array([
                self.bounds.costs(StageKind(count, size, kind, turns.chunks), f, late=False).pace_s
                for kind in self.kinds
            ])
            for f in set(flight)
        }  # fmt: skip
        places, slowest = least_most([each[f].min(axis=0) for f in flight])
        if not math.isfinite(slowest):
            return None
        at = [*pairwise(places)]
        recompute = [self.kinds[int(each[f][:, i, j].argmin())]
                     for f, (i, j) in zip(flight, at, strict=True)]  # fmt: skip
        return self.estimated_in_turn(count, turns, places, recompute)

    def estimated(self, shape: PipelineShape, places: Sequence[int], family: str) -> Division:
        """A division like that of a pipeline, with other places."""
        count, kinds = shape.microbatches, shape.recompute
        if shape.turns.chunks > 1:
            return self.estimated_in_turn(count, shape.turns, places, kinds)
        return self.space(count, family).estimated(places, shape.sizes, kinds)

    def estimated_in_turn(
        self, count: int, turns: Turns, places: Sequence[int], recompute: Sequence[str]
    ) -> Division:
        """A division in turns with given places; other arguments as of `in_turn`."""
        group = turns.group(len(recompute))
        groups = len(recompute) // turns.chunks
        size = self.cluster.num_devices // groups
        flight = flights_in_turn(count, groups, turns)
        price = self.bounds.whole(count, size).price
        passes = price.forward_s, price.input_gradient_s, price.weight_gradient_s
        forward, inward, weight = (each / (price.microbatch_s or 1.0) for each in passes)
        micro = [
            float(self.bounds.costs(
                StageKind(count, size, kind, turns.chunks), f, late=False).fill_s[i, j])
            for kind, f, (i, j) in zip(recompute, flight, pairwise(places), strict=True)
        ]  # fmt: skip
        sizes_ = (size,) * len(micro)
        step_s = slowest = math.inf
        if all(map(math.isfinite, micro)):
            sent = self.across_bytes(count)[list(places[1:])] / size
            costs = StageCosts(
                forward_s=tuple(forward * t for t in micro),
                input_gradient_s=tuple(inward * t for t in micro),
                weight_gradient_s=tuple(weight * t for t in micro),
                output_bytes=(*sent[:-1].tolist(), 0.0),
            )
            params = [float(self.bounds.shares.params[run]) for run in pairwise(places)]
            slowest, held = (
                max(sum(x for x, g in zip(each, group, strict=True) if g == one)
                    for one in range(groups))
                for each in (micro, params)
            )  # fmt: skip
            links = links_of(sizes_[:groups], self.cluster)
            simulator = in_turn_simulator(count, groups, turns)
            step_s = simulator.step_s(costs, links) + price.once_s * held
        return Division(tuple(places), sizes_, tuple(recompute), step_s, slowest, turns)


@cache
def in_turn_simulator(count: int, groups: int, turns: Turns, *, updated: bool = False) -> Simulator:
    """Simulator of the schedule with such turns; with `updated`, stages end with their updates."""
    table = table_of(turned(turns), count, ("none",) * groups * turns.chunks, turns.chunks)
    return Simulator(with_optimizer(table) if updated else table)


@cache
def flights_in_turn(count: int, groups: int, turns: Turns) -> tuple[int, ...]:
    """Micro-batches in flight on each stage of a division in turns."""
    return flights_of(in_turn_simulator(count, groups, turns).schedule)
