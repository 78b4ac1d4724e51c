"""Exact search where the slowest stage is the cost and all devices are equal.

For a threshold T, the fewest devices that run a suffix set with s replicas, every stage within T,
follow from the same for smaller sets. In front of a given plan only one number of replicas per
tensor-parallel degree matters: the smallest that is fast enough and fits, since more cost devices
and crowd the memory of earlier stages. Thresholds are halved, each feasible one replaced by what
its plan costs, until nothing lies between; then no plan is below.

With thousands of devices this takes seconds, where a table over (set, devices, replicas) takes
minutes. Costs and memory are those of Piper, NeurIPS 2021, section 3, or any convention of its
kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .device_runs import Runs
from .machine import Machine
from .problem import PipelinePlan, Problem, Stage
from .stage_space import Space
from .stage_tables import Tables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MANY = 1 << 40
GAP = 1e-7


@dataclass(frozen=True, slots=True)
class Shape:
    """Stages of one shape: seconds per selection and how many in flight each selection allows."""

    replicas: int
    degree: int
    seconds: Floats
    allows: Ints


def search_threshold(
    tables: Tables, machine: Machine, space: Space, *, below_s: float = np.inf
) -> PipelinePlan | None:
    """The best plan of a space on equal devices; see `search_labels`."""
    search = _Search(tables, machine, space)
    return search.run(below_s)


class _Search:
    def __init__(self, tables: Tables, machine: Machine, space: Space) -> None:
        self.tables, self.machine, self.space = tables, machine, space
        self.problem: Problem = tables.problem
        self.devices = machine.devices
        self.microbatches = self.problem.microbatches
        self.runs = Runs(tables, machine, 1)
        self.shapes = {
            degree: [
                self._shape(replicas, degree)
                for replicas in range(1, self.devices // degree + 1)
                if self._may(replicas, degree)
            ]
            for degree in tables.degrees
        }

    def _may(self, replicas: int, degree: int) -> bool:
        if replicas > 1 and not self.space.data:
            return False
        if self.tables.convention.divides and self.microbatches % replicas:
            return False
        if self.space.replicas is not None and replicas != self.space.replicas:
            return False
        return self.space.counts(replicas * degree)

    def _shape(self, replicas: int, degree: int) -> Shape:
        host = self.machine.hosts[0]
        option = self.tables.options[host.kind, degree]
        mix = ((host.kind, host.memory_bytes, replicas),)
        rest = self.runs.rest(mix, degree, 0)
        convention = self.tables.convention
        assert convention.seconds is not None
        cost = replace(
            rest, forward_s=option.forward_s / replicas, backward_s=option.backward_s / replicas,
            edge_bytes=rest.edge_bytes[:, None], enter_s=rest.enter_s[:, None],
            leave_s=rest.leave_s[:, None], weight_bytes=rest.weight_bytes[:, None],
        )  # fmt: skip
        seconds = convention.seconds(cost, self.microbatches)
        left = host.memory_bytes - option.fixed_bytes
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.floor(left / option.flight_bytes)
        room = np.where(option.flight_bytes > 0, room, np.where(left >= 0, MANY, 0))
        room = np.where(room >= self.microbatches, MANY, room)
        allows = np.clip(room, 0, MANY).astype(np.int64)
        # Rounding in the division may be off by one either way.
        one_more = (allows + 1) * option.flight_bytes + option.fixed_bytes <= host.memory_bytes
        over = (allows * option.flight_bytes + option.fixed_bytes > host.memory_bytes) & (
            allows < MANY
        )
        allows = allows + (one_more & (allows < MANY)) - over
        return Shape(replicas, degree, seconds, allows)

    def run(self, below_s: float) -> PipelinePlan | None:
        finite = np.concatenate([
            shape.seconds[np.isfinite(shape.seconds) & (shape.allows > 0)]
            for shapes in self.shapes.values() for shape in shapes
        ] or [np.zeros(0)])  # fmt: skip
        if not len(finite):
            return None
        low = 0.0
        found = self._within(min(float(finite.max()), below_s / self.microbatches * (1 + 1e-12)))
        if found is None:
            return None
        best, high = found
        while True:
            middle = (low + high) / 2 if high > low * (1 + GAP) else np.nextafter(high, 0.0)
            if middle <= low:
                return replace(best, exact=self.tables.exact)
            found = self._within(float(middle))
            if found is None:
                low = middle
            else:
                best, high = found

    def _within(self, limit: float) -> tuple[PipelinePlan, float] | None:
        """A plan with no stage over `limit` seconds, and what its slowest stage takes."""
        rooms = {
            degree: np.stack([
                shape.replicas
                * (np.where(shape.seconds <= limit, shape.allows, 0).max(axis=1) - 1)
                for shape in shapes
            ])
            for degree, shapes in self.shapes.items() if shapes
        }  # fmt: skip
        counts = {d: np.array([s.replicas for s in shapes]) for d, shapes in self.shapes.items()}
        lattice = self.tables.lattice
        divides = self.tables.convention.divides
        most = min(self.devices, self.microbatches) if divides else self.devices
        # Points kept: set, replicas, devices, and (pair, shape index, degree, parent point).
        sets, held, used = (np.zeros(1, dtype=np.int64) for _ in range(3))
        trace = np.full((1, 4), -1, dtype=np.int64)
        for outer in range(1, len(lattice.member)):
            pairs = lattice.pair[outer, sets]
            rows = np.flatnonzero(pairs >= 0)
            pieces = [
                self._front(
                    rooms[degree], counts[degree], degree, pairs[rows], rows, held, used, most
                )
                for degree in rooms
            ]
            s, k, t = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
            order = np.lexsort((s, k))
            s, k, t = s[order], k[order], t[order]
            lowest = np.minimum.accumulate(s)
            keep = np.ones(len(s), dtype=bool)
            keep[1:] = s[1:] < lowest[:-1]
            s, k, t = s[keep], k[keep], t[keep]
            sets = np.concatenate([sets, np.full(len(s), outer)])
            held, used = np.concatenate([held, s]), np.concatenate([used, k])
            trace = np.concatenate([trace, t])
        whole = np.flatnonzero(sets == len(lattice.member) - 1)
        if not len(whole):
            return None
        return self._plan(trace, held, used, int(whole[0]), limit)

    def _front(
        self, room: Ints, counts: Ints, degree: int, pairs: Ints, rows: Ints, held: Ints,
        used: Ints, most: int,
    ) -> tuple[Ints, Ints, Ints]:  # fmt: skip
        """Each point with the smallest stage in front that is fast enough and fits."""
        able = room[:, pairs] >= held[rows]
        which = able.argmax(axis=0)
        s = held[rows] + counts[which]
        k = used[rows] + counts[which] * degree
        good = able.any(axis=0) & (k <= self.devices) & (s <= most)
        trace = np.stack([pairs, which, np.full(len(rows), degree), rows], axis=1)
        return s[good], k[good], trace[good]

    def _plan(
        self, trace: Ints, held: Ints, used: Ints, point: int, limit: float
    ) -> tuple[PipelinePlan, float]:
        stages: list[Stage] = []
        slowest = 0.0
        while point > 0:
            pair, which, degree, parent = (int(v) for v in trace[point])
            shape = self.shapes[degree][which]
            flight = -(-int(held[point]) // shape.replicas)
            flight = min(flight, self.microbatches)
            fast = np.where(shape.allows[pair] >= flight, shape.seconds[pair], np.inf)
            selection = int(fast.argmin())
            slowest = max(slowest, float(fast[selection]))
            first = self.devices - int(used[point])
            stages.append(self._stage(pair, first, shape, selection))
            point = parent
        assert slowest <= limit
        return PipelinePlan(tuple(stages), self.machine, self.microbatches), slowest

    def _stage(self, pair: int, first: int, shape: Shape, selection: int) -> Stage:
        inside = self.tables.stages[pair]
        again = self.tables.selections[shape.degree].layers(selection, inside)
        nodes = tuple(int(v) for v in np.flatnonzero(inside))
        names = self.runs.names(nodes, again, shape.degree)
        return Stage(nodes, first, shape.replicas, shape.degree, names)
