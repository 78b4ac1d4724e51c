"""Prices of the whole program, from which divisions into stages are estimated.

It is planned on each size of sub-mesh for every other number of micro-batches of a grid; those in
between are interpolated. The middle of the grid comes first, then its neighbours on the side on
which estimates fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from costmodel import Cluster

from ..common.errors import IndivisibleError, PlanError
from .divide.space import anchors
from .trials import Trials

# A sub-mesh that needs more than this many times the best device-seconds is left out.
WASTE = 2.0
FEWER, MORE = -1, 1


@dataclass
class Prices:
    """Prices of the whole program, by number of micro-batches and devices.

    grid: numbers of micro-batches, rising.
    sizes: devices of the sub-meshes.
    ends: first and last index of the grid that is priced.
    """

    trials: Trials
    grid: tuple[int, ...]
    sizes: tuple[int, ...]
    ends: dict[int, int] = field(default_factory=dict[int, int])

    @staticmethod
    def begun(trials: Trials, machine: Cluster, grid: tuple[int, ...], asked: int | None) -> Prices:
        """Prices the middle of the grid, and leaves out sub-meshes above `WASTE`.

        Args:
            trials: holder of the estimates.
            machine: the cluster.
            grid: numbers of micro-batches, rising.
            asked: number of stages that the user asks for, if any.
        """
        each = machine.num_devices / asked if asked else 0.0
        found = anchors(machine)
        kept = [d for d in found if not asked or each / 4 <= d <= each * 4] or list(found)
        middle = len(grid) // 2
        prices = Prices(trials, grid, tuple(kept), {FEWER: middle, MORE: middle})
        prices._price(middle)
        if not asked:
            wholes = trials.estimates.wholes
            spent = {d: d * (m * p.microbatch_s + p.once_s) for (m, d), p in wholes.items()}
            most = WASTE * min(spent.values(), default=0.0)
            prices.sizes = tuple(d for d in kept if spent.get(d, 0.0) <= most)
        return prices

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of micro-batches within the priced part of the grid."""
        found = self.grid[self.ends[FEWER] : self.ends[MORE] + 1]
        return tuple(m for m in found if m not in self.trials.unable)

    def spread(self, best: Callable[[tuple[int, ...]], int | None]) -> None:
        """Prices more of the grid while the best number of micro-batches is at an end of it.

        Args:
            best: numbers of micro-batches -> the one with the fastest estimate; None if none fits.
        """
        at = best(self.counts)
        for way in (MORE, FEWER) if at is None else (FEWER, MORE):
            while at in (None, self.grid[self.ends[way]]) and self.further(way):
                at = best(self.counts)

    def reach(self, count: int) -> None:
        """Prices more of the grid until a number of micro-batches lies within, if possible."""
        while count < self.grid[self.ends[FEWER]] and self.further(FEWER):
            pass
        while count > self.grid[self.ends[MORE]] and self.further(MORE):
            pass

    def further(self, way: int) -> bool:
        """Prices fewer or more micro-batches; False at the end of the grid."""
        near = self.ends[way] + way
        if not 0 <= near < len(self.grid):
            return False
        far = near + way if 0 <= near + way < len(self.grid) else near
        self._price(far)
        if far != near:
            self._price(near)  # only sizes that cannot be interpolated
        self.ends[way] = far
        return True

    def _price(self, i: int) -> None:
        count, planner = self.grid[i], self.trials.planner
        wholes, around = self.trials.estimates.wholes, self.grid[max(i - 1, 0) : i + 2 : 2]
        try:
            planner.loss(count)
        except IndivisibleError:
            if planner.options.microbatches is not None:
                raise
            self.trials.unable.add(count)  # the loss cannot be divided by it
            return
        for size in self.sizes:
            if len(around) == 2 and all((m, size) in wholes for m in around):
                continue
            planner.say(f"{count} micro-batches on {size} devices")
            price = planner.whole(count, size)
            if isinstance(price, PlanError):
                needs = price.needs_bytes * size / planner.machine.num_devices
                self.trials.least.append(needs)
            else:
                wholes[count, size] = price
