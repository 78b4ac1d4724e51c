"""Divisions of a program to plan, chosen by estimated costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from costmodel import Cluster

from ..schedule import IN_FLIGHT, INTERLEAVED
from .by_hand import hand_written
from .corrected_estimates import Estimates
from .dynamic_programme import Division, Floats, Machine, divide, estimated, least_most
from .run_costs import Costs
from .simulated import flights_of, table_of
from .space import sizes


@dataclass(frozen=True)
class Candidates:
    """Source of divisions to plan.

    limit_bytes: memory limit of a device.
    kinds: kinds of recomputation to choose from.
    asked: number of micro-batches at which the program's chain was traced.
    """

    estimates: Estimates
    cluster: Cluster
    limit_bytes: float
    kinds: tuple[str, ...]
    asked: int

    def divided(self, count: int, flights: str, stages: tuple[int, ...]) -> list[Division]:
        """The division with the best estimate, and the best for other numbers of stages.

        Args:
            count: number of micro-batches.
            flights: schedule family that sets the micro-batches in flight, a key of `IN_FLIGHT`.
            stages: numbers of stages to choose from.
        """
        machine = self._machine(stages)
        costs = self._costs(count, machine.sizes)
        if not costs:
            return []
        return divide(
            costs, self._transfer_s(count, machine.sizes), machine, count, stages=stages,
            in_flight=IN_FLIGHT[flights],
        )  # fmt: skip

    def by_hand(self, count: int, flights: str, stages: tuple[int, ...]) -> dict[str, Division]:
        """Hand-written divisions by name, each stage with its best kind of recomputation."""
        machine, shares = self._machine(stages), self.estimates.shares
        costs = self._costs(count, machine.sizes)
        known = sorted({size for size, _ in costs})
        transfer_s = self._transfer_s(count, known)
        return {
            f"{name}, {p} stages": estimated(
                places, (machine.devices // p,) * p, costs, transfer_s, machine, count,
                IN_FLIGHT[flights],
            )
            for (name, p), places in hand_written(shares, machine.devices, known, stages).items()
        }  # fmt: skip

    def _machine(self, stages: tuple[int, ...]) -> Machine:
        cluster = self.cluster
        chosen = sizes(cluster, every=len(stages) == 1)
        return Machine(cluster.num_devices, cluster.devices_per_host, chosen, self.limit_bytes)

    def _costs(self, count: int, chosen: tuple[int, ...]) -> dict[tuple[int, str], Costs]:
        found = {
            (size, kind): self.estimates.costs(count, size, kind)
            for size in chosen for kind in self.kinds
        }  # fmt: skip
        return {key: costs for key, costs in found.items() if costs is not None}

    def _transfer_s(self, count: int, chosen: tuple[int, ...] | list[int]) -> dict[int, Floats]:
        cluster = self.cluster
        link = cluster.network if cluster.num_hosts > 1 else cluster.intra_host
        each = link.bandwidth_bytes_per_s / link.shared_by_devices
        across = self.estimates.shares.takes_bytes * self.asked / count
        return {
            d: np.where(across > 0, 2 * (link.latency_s + across / (each * d)), 0.0) for d in chosen
        }

    def interleaved(self, count: int, groups: tuple[int, ...], chunks: int) -> Division | None:
        """The interleaved division with the least estimated time of its slowest stage.

        None if the program has too few places, the groups differ, or `count` is not a multiple of
        the number of groups. All stages of a group have equal shares of its memory.

        Args:
            count: number of micro-batches.
            groups: devices of each group.
            chunks: stages on each group.
        """
        p, n, stages = len(groups), self.estimates.shares.count, len(groups) * chunks
        if len(set(groups)) > 1 or count % p or stages >= n:
            return None
        flight = flights_of(table_of(INTERLEAVED, count, ("none",) * stages, chunks))
        costs = self._costs(count, groups[:1])
        if not costs:
            return None
        room = self.limit_bytes / chunks
        kinds = [kind for _, kind in costs]
        each = [
            np.array([
                np.where(one.held_bytes + (f - 1) * one.more_bytes <= room, one.micro_s, np.inf)
                for one in costs.values()
            ])
            for f in flight
        ]  # fmt: skip
        places, slowest = least_most([seconds.min(axis=0) for seconds in each])
        if not np.isfinite(slowest):
            return None
        at = list(pairwise(places))
        recompute = tuple(kinds[int(each[s][:, i, j].argmin())] for s, (i, j) in enumerate(at))
        seconds = [float(each[s][:, i, j].min()) for s, (i, j) in enumerate(at)]
        pace = max(sum(seconds[g::p]) for g in range(p))
        step_s = (count + (p - 1) / chunks) * pace
        return Division(places, groups * chunks, recompute, step_s, pace, chunks)
