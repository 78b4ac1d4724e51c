"""Stages on a run of consecutive devices: arrays over all stages and counts in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .convention import Convention, StageTerms
from .machine import Machine
from .problem import Problem, Stage
from .stage_tables import Option, Tables
from .uneven_shares import split

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# (device kind, its memory, replicas on it)
Mix = tuple[tuple[str, float, int], ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """Best times of every stage by micro-batches in flight, [stages, in flight from 1]."""

    forward_s: Floats
    backward_s: Floats
    selection: Ints


class Runs:
    """Prices stages on runs of a machine's devices, each distinct one once."""

    def __init__(self, tables: Tables, machine: Machine, most_in_flight: int) -> None:
        self.tables, self.machine = tables, machine
        self.problem: Problem = tables.problem
        self.convention: Convention = tables.convention
        self.most = min(most_in_flight, self.problem.microbatches)
        self._timed: dict[tuple[Mix, int], Timed] = {}
        self._rest: dict[tuple[Mix, int, float, float, float], StageTerms] = {}

    def mix(self, first: int, replicas: int, degree: int) -> Mix | None:
        """Which devices a run has; None where a tensor-parallel group would span two hosts."""
        counts: dict[tuple[str, float], int] = {}
        for r in range(replicas):
            a = self.machine.host_of(first + r * degree)
            if a != self.machine.host_of(first + (r + 1) * degree - 1):
                return None
            host = self.machine.hosts[a]
            key = (host.kind, host.memory_bytes)
            counts[key] = counts.get(key, 0) + 1
        return tuple((kind, memory, n) for (kind, memory), n in counts.items())

    def timed(self, mix: Mix, degree: int) -> Timed:
        """Times on a mix of devices."""
        key = (mix, degree)
        if key not in self._timed:
            self._timed[key] = self._best(mix, degree)
        return self._timed[key]

    def rest(self, mix: Mix, degree: int, first: int) -> StageTerms:
        """What does not depend on the count in flight; its times are zero."""
        replicas = sum(n for _, _, n in mix)
        last = first + replicas * degree - 1
        machine = self.machine
        ring = machine.link(first, last)
        before = machine.link(max(first - 1, 0), first)
        after = machine.link(last, min(last + 1, machine.devices - 1))
        key = (mix, degree, ring, before, after)
        if key not in self._rest:
            tables = self.tables
            edges, enter, leave = tables.edge_bytes(degree)
            weights = tables.weights[degree]
            kinds = [tables.late(kind, degree, replicas, ring) for kind, _, _ in mix]
            nothing = np.zeros_like(weights)
            self._rest[key] = StageTerms(
                nothing, nothing, edges, enter / before, leave / after,
                2 * (replicas - 1) / replicas * weights / ring, np.max(kinds, axis=0), weights,
                ring, replicas,
            )  # fmt: skip
        return self._rest[key]

    def _best(self, mix: Mix, degree: int) -> Timed:
        options = [self.tables.options[kind, degree] for kind, _, _ in mix]
        seconds = [self._seconds(kind, degree) for kind, _, _ in mix]
        flights = range(1, self.most + 1)
        columns = [self._pick(options, seconds, mix, flight) for flight in flights]
        forward, backward, chosen = (
            np.stack(found, axis=1) for found in zip(*columns, strict=True)
        )
        return Timed(forward, backward, chosen)

    def _seconds(self, kind: str, degree: int) -> tuple[Floats, Floats]:
        tables = self.tables
        if not self.convention.averages:
            option = tables.options[kind, degree]
            return option.forward_s, option.backward_s
        total = self.machine.devices
        forward = backward = np.zeros(())
        for host in self.machine.hosts:
            option = tables.options[host.kind, degree]
            forward = forward + host.devices / total * option.forward_s
            backward = backward + host.devices / total * option.backward_s
        return forward, backward

    def _pick(
        self, options: list[Option], seconds: list[tuple[Floats, Floats]], mix: Mix, flight: int
    ) -> tuple[Floats, Floats, Ints]:
        """The fastest selection of every stage that fits with `flight` micro-batches in flight."""
        counts = [n for _, _, n in mix]
        even = 1 / sum(counts)
        forward, backward = seconds[0][0] * even, seconds[0][1] * even
        fits = np.ones(forward.shape, dtype=bool)
        shared = len(mix) > 1 and not self.convention.averages
        if shared:
            tau = self._shared(options, seconds, mix, flight)
            both = seconds[0][0] + seconds[0][1]
            able = np.isfinite(tau) & np.isfinite(both)
            part = np.zeros_like(tau)
            np.divide(tau, both, out=part, where=able & (both > 0))
            forward, backward = (np.full_like(tau, np.inf) for _ in range(2))
            np.multiply(part, seconds[0][0], out=forward, where=able)
            np.multiply(part, seconds[0][1], out=backward, where=able)
        for option, (_, memory, _) in zip(options, mix, strict=True):
            if not self.convention.by_replicas:
                if shared:
                    continue
                held = option.flight_bytes * (flight * even)
            else:
                held = option.flight_bytes * flight
            fits &= held + option.fixed_bytes <= memory
        total = np.where(fits, forward + backward, np.inf)
        chosen = total.argmin(axis=1)
        rows = np.arange(len(total))
        infinite = ~np.isfinite(total[rows, chosen])
        forward, backward = forward[rows, chosen], backward[rows, chosen]
        forward[infinite] = backward[infinite] = np.inf
        return forward, backward, chosen

    def _shared(
        self, options: list[Option], seconds: list[tuple[Floats, Floats]], mix: Mix, flight: int
    ) -> Floats:
        each = [f + b for f, b in seconds]
        caps: list[Floats] = []
        for option, (_, memory, _) in zip(options, mix, strict=True):
            left = memory - option.fixed_bytes
            if self.convention.by_replicas:
                caps.append(np.full_like(left, np.inf))
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                cap = left / (option.flight_bytes * flight)
            caps.append(np.where(option.flight_bytes > 0, cap, np.where(left >= 0, np.inf, -1.0)))
        return split(each, [n for _, _, n in mix], caps)[0]

    def stage(self, pair: int, first: int, replicas: int, degree: int, flight: int) -> Stage:
        """The stage that was priced."""
        mix = self.mix(first, replicas, degree)
        assert mix is not None
        selection = int(self.timed(mix, degree).selection[pair, flight - 1])
        inside = self.tables.stages[pair]
        again = self.tables.selections[degree].layers(selection, inside)
        nodes = tuple(int(v) for v in np.flatnonzero(inside))
        names = self.names(nodes, again, degree)
        return Stage(nodes, first, replicas, degree, names)

    def names(self, nodes: tuple[int, ...], again: frozenset[int], degree: int) -> tuple[str, ...]:
        """Variants of the layers of a stage."""
        found: list[str] = []
        for v in nodes:
            kinds = [variant.recompute for variant in self.tables.graph.layers[v].at(degree)]
            wanted = "full" if v in again else "none"
            found.append(wanted if wanted in kinds else kinds[0])
        return tuple(found)
