# pyright: basic
"""The search for a pipeline: divisions are estimated, the best planned stage by stage and ranked.

1. The whole program is planned on a few sizes of sub-mesh and micro-batch (`StagePlanner.whole`).
2. From these prices a dynamic programme divides it (`inter.divide`), for each number of stages.
3. The stages of the most promising division are planned themselves and simulated; what they turn
   out to cost, over what was estimated, corrects the estimates, and 2 runs again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from costmodel import Cluster

from .emit.pipeline.build import cut_of
from .errors import PlanError
from .inter.divide import Division, Machine, divide
from .inter.estimate import RECOMPUTE, Costs, Ratio, Shares
from .inter.price import StagePrice
from .inter.rank import Ranked, Shape, ranked
from .inter.space import anchors, counts, near, sizes, stage_counts
from .options import Options
from .plan import Plan
from .search import USABLE
from .show import bytes_text
from .stages import BoundStages, Say, StagePlanner, Training

# Divisions whose stages are planned, in all and after the first that fits, and how far from the
# best simulated step an estimate may be to be worth it.
MOST_TRIALS, TRIALS = 14, 4
HOPE = 1.0
# A sub-mesh that needs so many times the device-seconds of the best is left out.
WASTE = 2.0


# Of a planned run: seconds of a micro-batch, None if it does not fit; bytes held; each further one.
Known = tuple[float | None, float, float]


@dataclass(frozen=True)
class Found:
    """A pipeline whose stages are planned; `across` bytes go from each to the next."""

    ranked: Ranked
    bound: BoundStages
    plans: tuple[Plan, ...]
    prices: tuple[StagePrice, ...]
    across: tuple[float, ...]


@dataclass
class PipelineSearch:
    """One search; `least` has what tried pipelines would need at the worst place [byte]."""

    training: Training
    machine: Cluster
    options: Options
    say: Say
    start: float
    least: list[float] = field(default_factory=list)
    wholes: dict[tuple[int, int], StagePrice] = field(default_factory=dict)
    ratios: dict[tuple[int, int, str], Ratio] = field(default_factory=dict)
    exact: dict[tuple[int, int, str], dict[tuple[int, int], Known]] = field(default_factory=dict)
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.planner = StagePlanner(
            self.training, self.machine, self.options, self.say, self.limit
        )  # fmt: skip

    @cached_property
    def shares(self) -> Shares:
        """What each run of slots is of the whole program."""
        return Shares(self.planner.loss(self.options.microbatches or 1).chain, self.machine)

    @property
    def limit(self) -> float:
        """Bytes that a plan may use on a device."""
        return float(self.options.memory_bytes or USABLE * self.machine.memory_bytes)

    def run(self, asked: int | None) -> Found | None:
        """The fastest pipeline that fits; None if none of those tried does.

        Raises:
            PlanError: if the number of stages asked for cannot be had.
        """
        self.deadline = time.monotonic() + self.options.time_limit_s
        layers = self.shares.count - 1
        stages = (asked,) if asked else stage_counts(self.machine, layers)
        self._check(asked, layers)
        self.batch = self.options.microbatches or self._examples()
        grid = counts(self.batch, self.options.microbatches)
        self._price(grid, asked)
        best: Found | None = None
        tried: set[tuple[object, ...]] = set()
        queue = {count: self._divided(count, stages) for count in grid}
        left = TRIALS
        for _ in range(MOST_TRIALS):
            options = [
                (one.step_s, count, one)
                for count, found in queue.items() for one in found
                if (count, one.places, one.sizes, one.recompute) not in tried
            ]  # fmt: skip
            late = best is not None and time.monotonic() > self.deadline
            if not options or late or not left:
                break
            step_s, count, one = min(options, key=lambda o: (o[0], o[1], o[2].places))
            if best and step_s > HOPE * best.ranked.step_s:
                break
            tried.add((count, one.places, one.sizes, one.recompute))
            found = self.trial(count, one)
            left -= best is not None
            if found and (best is None or found.ranked.step_s < best.ranked.step_s):
                best = found
            if found and not self.options.microbatches:
                for other in near(count, self.batch):
                    queue.setdefault(other, [])
            queue = {m: self._divided(m, stages) for m in queue}
        return best

    def _check(self, asked: int | None, layers: int) -> None:
        if asked is None:
            return
        host, devices = self.machine.devices_per_host, self.machine.num_devices
        if asked > layers:
            raise PlanError(
                f"{asked} stages, but the program has {layers} layers between which it can be cut",
                kind="bad-option", where="pipeline", remedy=f"ask for at most {layers} stages",
            )  # fmt: skip
        if asked > devices:
            raise PlanError(
                f"{asked} stages cannot share {devices} devices in hosts of {host}",
                kind="bad-option", where="pipeline", remedy=f"ask for at most {devices} stages",
            )  # fmt: skip

    def _examples(self) -> int:
        """Examples in a step, as far as they are to be cut."""
        for count in (2, 3, 5, 7):
            try:
                parts = self.planner.loss(count).built.parts
            except PlanError as error:
                if not _is_size(error):
                    raise
                continue
            assert parts is not None
            return parts.batch
        return 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of recomputation; a program that says its own is not asked for another."""
        return ("none", "stage") if self.shares.chain.recomputes else RECOMPUTE

    # --- prices -----------------------------------------------------------------------------

    def _price(self, grid: tuple[int, ...], asked: int | None) -> None:
        """Prices the program on sub-meshes; from the middle of the grid to both ends."""
        each = self.machine.num_devices / asked if asked else 0.0
        found = anchors(self.machine)
        kept = [d for d in found if not asked or each / 4 <= d <= each * 4] or list(found)
        middle = len(grid) // 2
        order = sorted(range(len(grid)), key=lambda i: (abs(i - middle), i))
        for i in order:
            spent: dict[int, float] = {}
            for size in kept:
                self.say(f"{grid[i]} micro-batches on {size} devices")
                try:
                    price = self.planner.whole(grid[i], size)
                except PlanError as error:
                    if self.options.microbatches is not None or not _is_size(error):
                        raise
                    break  # the loss cannot be computed on so few examples
                if isinstance(price, PlanError):
                    self.least.append(price.needs_bytes * size / self.machine.num_devices)
                    continue
                self.wholes[grid[i], size] = price
                spent[size] = size * (grid[i] * price.microbatch_s + price.once_s)
            if spent and i == order[0] and not asked:
                kept = [d for d in kept if spent.get(d, 0.0) <= WASTE * min(spent.values())]

    def _whole(self, count: int, size: int) -> StagePrice | None:
        """A price that was worked out, or one between those of neighbours."""
        found = self.wholes.get((count, size))
        if found is not None:
            return found
        rows = sorted({m for m, d in self.wholes if d == size})
        low = [m for m in rows if m < count]
        high = [m for m in rows if m > count]
        if rows and low and high:
            a, b = low[-1], high[0]  # seconds are close to linear in the size of a micro-batch
            share = (1 / count - 1 / b) / (1 / a - 1 / b)
            return _between(self.wholes[a, size], self.wholes[b, size], share)
        columns = sorted({d for m, d in self.wholes if m == count})
        small = [d for d in columns if d < size]
        large = [d for d in columns if d > size]
        if not rows and small and large:
            a, b = small[-1], large[0]
            share = (1 / size - 1 / b) / (1 / a - 1 / b)
            return _between(self.wholes[count, a], self.wholes[count, b], share)
        return None

    def _divided(self, count: int, stages: tuple[int, ...]) -> list[Division]:
        every = len(stages) == 1
        chosen = sizes(self.machine, every=every)
        costs: dict[tuple[int, str], Costs] = {}
        for size in chosen:
            whole = self._whole(count, size)
            if whole is None:
                continue
            for kind in self.kinds:
                costs[size, kind] = self._costs(count, size, kind, whole)
        if not costs:
            return []
        scale = (self.options.microbatches or 1) / count
        link = self.machine.network if self.machine.num_hosts > 1 else self.machine.intra_host
        wide = link.bandwidth_bytes_per_s / link.shared_by_devices * min(d for d, _ in costs)
        across = self.shares.takes_bytes * scale
        transfer_s = np.where(across > 0, 2 * (link.latency_s + across / wide), 0.0)
        machine = Machine(
            self.machine.num_devices, self.machine.devices_per_host, chosen, self.limit
        )
        only = set(self.options.schedules) == {"gpipe"}
        return divide(costs, transfer_s, machine, count, stages=stages, all_in_flight=only)

    # --- trials -----------------------------------------------------------------------------

    def trial(self, count: int, one: Division) -> Found | None:
        """A division with its stages planned, under its best schedule; None if it does not fit."""
        try:
            loss = self.planner.loss(count)
        except PlanError as error:
            if self.options.microbatches is None and _is_size(error):
                return None
            raise
        cuts = tuple(self.shares.places[j] for j in one.places)
        shape = Shape(cuts, one.sizes, count, one.recompute)
        p = len(one.sizes)
        self.say(f"{p} stages on {'+'.join(map(str, one.sizes))} devices, {count} micro-batches")
        cut = cut_of(loss, cuts, one.recompute)
        across = tuple(loss.chain.across[c] for c in cuts[1:-1])
        plans: list[Plan] = []
        prices: list[StagePrice] = []
        only = set(self.options.schedules) == {"gpipe"}
        for s in range(p):
            flight = count if only else min(p - s, count)
            found = self.planner.stage(cut, shape, s, flight)
            if isinstance(found, PlanError):
                self.least.append(found.needs_bytes)
                self._fails(one, count, s, flight, found)
                return None
            plans.append(found[0])
            prices.append(found[1])
            self._learn(one, count, s, found[1])
        order = ranked(shape, prices, across, self.machine, self.limit, self.options.schedules)
        self.least.append(min(r.worst_bytes for r in order))
        if order[0].worst_bytes > self.limit:
            return None
        bound = BoundStages(loss, cut, self.training.optimizer)
        return Found(order[0], bound, tuple(plans), tuple(prices), across)

    def _fails(self, one: Division, count: int, s: int, flight: int, error: PlanError) -> None:
        """Corrects the estimates by what a stage that does not fit would need."""
        more = flight - 1 if error.kind == "in-flight" else 0
        needs = error.needs_bytes / (1 + more)
        for kind in (one.recompute[s],) if more else self.kinds:
            self._know(one, count, s, kind, (None, needs, needs if more else 0.0))

    def _learn(self, one: Division, count: int, s: int, price: StagePrice) -> None:
        """Corrects the estimates of stages like this one."""
        kind = one.recompute[s]
        again = (kind == "stage") * price.forward_s
        micro = price.microbatch_s + price.once_s / count + again
        more = price.boundary_bytes if kind == "stage" else price.activation_bytes
        self._know(one, count, s, kind, (micro, price.held_bytes, more))

    def _know(
        self,
        one: Division,
        count: int,
        s: int,
        kind: str,
        found: Known,
    ) -> None:
        """Notes what a run of slots costs: it holds there, its ratio to the guess elsewhere."""
        size, at = one.sizes[s], (one.places[s], one.places[s + 1])
        whole = self._whole(count, size)
        if whole is None:
            return  # a division that was not found by estimates
        self.exact.setdefault((count, size, kind), {})[at] = found
        guess = self.shares.costs(whole, count, kind, Ratio())
        rows = self.exact[count, size, kind]
        micro = [m / float(guess.micro_s[at]) for at, (m, _, _) in rows.items() if m is not None]
        held = [h / max(float(guess.held_bytes[at]), 1.0) for at, (_, h, _) in rows.items()]
        more = [a / max(float(guess.more_bytes[at]), 1.0) for at, (_, _, a) in rows.items() if a]
        self.ratios[count, size, kind] = Ratio(
            float(np.median(micro or [1.0])),
            float(np.median(held)),
            float(np.median(more or [1.0])),
        )

    def _costs(self, count: int, size: int, kind: str, whole: StagePrice) -> Costs:
        """Estimated costs of every run, and those that are known."""
        ratio = self.ratios.get((count, size, kind), Ratio())
        costs = self.shares.costs(whole, count, kind, ratio)
        known = self.exact.get((count, size, kind), {})
        if not known:
            return costs
        arrays = [np.array(a) for a in (costs.micro_s, costs.held_bytes, costs.more_bytes)]
        for at, values in known.items():
            for array, value in zip(arrays, values, strict=True):
                if value is not None:
                    array[at] = value
        return Costs(*arrays)

    def refusal(self) -> PlanError:
        """Why nothing that was asked for fits."""
        least = min((x for x in self.least if x > self.limit), default=0.0)
        remedy = "use more devices or micro-batches, or another number of stages"
        if not least:
            return PlanError(
                f"no pipeline was found that fits {bytes_text(self.limit)} on each device, though "
                "one may exist", kind="does-not-fit", where=self.machine.name, remedy=remedy,
            )  # fmt: skip
        return PlanError(
            f"does not fit: the leanest pipeline tried needs {bytes_text(least)} on some device, "
            f"{bytes_text(least - self.limit)} more than the limit of {bytes_text(self.limit)}",
            kind="does-not-fit", where=self.machine.name, remedy=remedy, needs_bytes=least,
        )  # fmt: skip


def _between(a: StagePrice, b: StagePrice, share: float) -> StagePrice:
    pairs = ((getattr(a, f), getattr(b, f)) for f in StagePrice.__dataclass_fields__)
    return StagePrice(*(share * x + (1 - share) * y for x, y in pairs))


def _is_size(error: PlanError) -> bool:
    """Whether a number of micro-batches is refused for the size of its parts."""
    said = str(error)
    return error.kind == "bad-batch" and ("divide" in said or "does not trace with" in said)
