"""Lower estimates of the costs of any run of slots as a stage, from a price of the whole program.

The whole program is planned once on each size of sub-mesh without a limit of memory, and its
seconds are shared out among its slots as that plan spends them along the program: a stage has less
memory to choose with. Bytes are those of the program, split over all devices of the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from costmodel import Cluster

from ..cut.chain import Chain
from .cost_profile import Passing, spent_at
from .stage_price import StagePrice

Floats = NDArray[np.float64]
RECOMPUTE = ("none", "selective", "full", "stage")


@dataclass(frozen=True)
class Costs:
    """Costs of every run of slots, shape [first place, last place]; infinite where it is no stage.

    pace_s: forward and backward of one micro-batch, and its share of the costs once a step [s].
    fill_s: the part of it in which other stages may have to wait for this one [s].
    """

    pace_s: Floats
    fill_s: Floats


@dataclass(frozen=True)
class Whole:
    """Price of the whole program on a sub-mesh, with every run's share of its two passes."""

    price: StagePrice
    forward: Floats
    back: Floats


class Shares:
    """Share of every run of slots in the costs of the whole program.

    Attributes:
        places: cuts at which runs begin and end, with both ends of the program.
    """

    def __init__(self, chain: Chain, cluster: Cluster) -> None:
        self.chain = chain
        self.places = (0, *chain.places(), len(chain.slots))
        peak = max(rate for _, rate in cluster.device.peak_flops)
        rate = cluster.device.memory_bandwidth_bytes_per_s
        slots = chain.slots
        work = [max(s.flops / peak, s.moved_bytes / rate) for s in slots]
        self.roofline_s = work
        self.time = self._between(work)
        again = [max(s.again_flops / peak, s.again_bytes / rate) for s in slots]
        self.again = self._between(again)
        saved = [s.saved_bytes for s in slots]
        self.saved_bytes = max(sum(saved), 1.0)
        self.saved = self._between(saved)
        self.kept_bytes = self._between([s.kept_bytes for s in slots], total=False)
        self.params = self._params()
        self.takes_bytes = np.array([chain.across[c] for c in self.places])

    @property
    def count(self) -> int:
        return len(self.places)

    @cached_property
    def _runs(self) -> dict[bytes, list[tuple[int, int]]]:
        """Runs (first place, last place) of equal slots, by digest."""
        kinds: dict[tuple[object, ...], int] = {}
        number = [
            kinds.setdefault(
                (s.op, s.flops, s.moved_bytes, s.saved_bytes, tuple(n for _, n in s.params)),
                len(kinds),
            )
            for s in self.chain.slots
        ]  # fmt: skip
        each, found = np.array(number), dict[bytes, list[tuple[int, int]]]()
        for i in range(self.count - 1):
            for j in range(i + 1, self.count):
                key = each[self.places[i] : self.places[j]].tobytes()
                found.setdefault(key, []).append((i, j))
        return found

    @cached_property
    def _alike(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        return {at: runs for runs in self._runs.values() for at in runs}

    def alike(self, at: tuple[int, int]) -> list[tuple[int, int]]:
        """Runs of slots equal to the given one, itself included."""
        return self._alike[at]

    def core(self, at: tuple[int, int]) -> tuple[int, int]:
        """The rounds of a loop over layers in a run; the run if it has none, or of several."""
        i, j = at
        while i < j and not self._loop_of[i]:
            i += 1
        while i < j and not self._loop_of[j - 1]:
            j -= 1
        return (i, j) if len({self._loop_of[k] for k in range(i, j)}) == 1 else at

    def family(self, core: tuple[int, int]) -> dict[int, list[tuple[int, int]]]:
        """Rounds -> runs of that many of a loop, for two or more; else of runs equal to one."""
        i, j = core
        loops = {self._loop_of[k] for k in range(i, j)}
        if j - i < 2 or len(loops) > 1 or 0 in loops:
            return {1: self.alike(core)}
        first, last = i, j
        while first > 0 and self._loop_of[first - 1] in loops:
            first -= 1
        while last < self.count - 1 and self._loop_of[last] in loops:
            last += 1
        found: dict[int, list[tuple[int, int]]] = {}
        for a in range(first, last - 1):
            for b in range(a + 2, last + 1):
                found.setdefault(self.places[b] - self.places[a], []).append((a, b))
        return found

    @cached_property
    def _loop_of(self) -> list[int]:
        """For each run between neighbouring places the loop of which it has rounds, 0 if none."""
        slots = self.chain.slots
        rounds = Counter(slot.number for slot in slots)
        found = list[int]()
        for i, j in pairwise(self.places):
            numbers = {slot.number for slot in slots[i:j]}
            is_loop = len(numbers) == 1 and rounds[slots[i].number] > 1
            found.append(slots[i].number + 1 if is_loop else 0)
        return found

    def _between(self, values: Sequence[float], *, total: bool = True) -> Floats:
        """Share of each run in a sum over slots; the sum itself if not `total`."""
        sums = np.concatenate(([0.0], np.cumsum(values)))[list(self.places)]
        found = np.maximum(sums[None, :] - sums[:, None], 0.0)
        return found / (sums[-1] or 1.0) if total else found

    def _params(self) -> Floats:
        """Share of the parameters that each run reads, each counted once."""
        n, slots = self.count, self.chain.slots
        found = np.zeros((n, n))
        for i in range(n - 1):
            seen: dict[tuple[tuple[int, int, int], int], float] = {}
            total = 0.0
            for j in range(i + 1, n):
                for s in range(self.places[j - 1], self.places[j]):
                    slot = slots[s]
                    whole = s > 0 and slots[s - 1].number == slot.number
                    for part, size in slot.params:
                        key = (part, s if whole else -1)
                        if key not in seen:
                            seen[key] = size
                            total += size
                found[i, j] = total
        return found / max(float(found[0, -1]), 1.0)

    def along(self, pass_: Passing) -> Floats:
        """Share of every run in the seconds of a pass; by roofline if the pass has none."""
        spent = spent_at(pass_, [s.products for s in self.chain.slots], self.roofline_s)
        if not spent[-1] > 0:
            return self.time
        at = spent[list(self.places)] / spent[-1]
        return np.maximum(at[None, :] - at[:, None], 0.0)

    def costs(
        self, whole: Whole, microbatches: int, recompute: str, again: float = 1.0, *, late: bool
    ) -> Costs:
        """Estimated costs of every run.

        Args:
            whole: price of the whole program on the sub-mesh.
            microbatches: number in a step.
            recompute: one of `RECOMPUTE`.
            again: seconds that it adds to the whole program, over those of its forward pass.
            late: weight gradients may fill the time in which a stage waits.
        """
        price = whole.price
        forward = price.forward_s * whole.forward
        back = (price.microbatch_s - price.forward_s - price.sums_s) * whole.back
        back = back + price.sums_s * self.params
        if recompute == "selective":
            added = again * price.forward_s * self.again
        else:
            added = (recompute != "none") * again * forward
        micro = forward + back + added
        fill = micro
        if late and price.input_gradient_s:  # else both gradients come from one loop
            weight = (price.weight_gradient_s - price.sums_s) * whole.back
            fill = np.maximum(micro - 2 * (weight + price.sums_s * self.params), forward)
        pace = micro + price.once_s / microbatches * self.params
        empty = np.tril(np.ones_like(micro, dtype=bool))
        return Costs(np.where(empty, np.inf, pace), np.where(empty, np.inf, fill))

    def least_bytes(
        self, saved_bytes: float, state_bytes: float, recompute: str, flight: int
    ) -> Floats:
        """Memory that every run needs at least, on all devices of its stage together.

        Args:
            saved_bytes: activations of the whole program for one micro-batch.
            state_bytes: its parameters, optimizer state and accumulated gradients.
            recompute: one of `RECOMPUTE`.
            flight: micro-batches in flight.
        """
        local = saved_bytes / self.saved_bytes
        saved = saved_bytes * self.saved
        takes = np.broadcast_to((local * self.takes_bytes)[:, None], saved.shape)
        inner = np.concatenate(([0.0], np.cumsum(self.takes_bytes[1:])))
        layers = takes + local * np.maximum(inner[None, :] - inner[:, None], 0.0)
        if recompute == "none":
            kept = flight * saved
        elif recompute == "stage":
            kept = saved + (flight - 1) * np.minimum(takes, saved)
        else:
            each = local * self.kept_bytes if recompute == "selective" else layers
            kept = flight * np.minimum(each, saved)
        return state_bytes * self.params + kept
