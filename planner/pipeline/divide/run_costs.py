"""Estimated costs of any run of slots as a stage, from one price of the whole program.

The whole program is planned once on each size of sub-mesh, and its seconds and bytes are shared
out among its slots: seconds as that plan spends them along the program, parameters and activations
by their bytes. These estimates only choose the stages that are planned themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel import Cluster

from ..cut.chain import Chain
from .cost_profile import Passing, spent_at
from .stage_price import StagePrice

Floats = NDArray[np.float64]
# The whole program is priced with the memory of many stages; transient buffers of a stage with less
# memory are smaller.
SQUEEZED = 0.05
RECOMPUTE = ("none", "selective", "full", "stage")


@dataclass(frozen=True)
class Costs:
    """Costs of every run of slots, shape [first place, last place]; infinite where there is no run.

    micro_s: forward and backward of one micro-batch, and its share of the costs once a step [s].
    held_bytes: memory with one micro-batch in flight; more_bytes: for each further one.
    """

    micro_s: Floats
    held_bytes: Floats
    more_bytes: Floats


@dataclass(frozen=True)
class Ratio:
    """Memory of planned stages over its estimate."""

    held: float = 1.0
    more: float = 1.0


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
        self.again = self._between(again, total=False) / (sum(work) or 1.0)
        saved = [s.saved_bytes for s in slots]
        self.saved_bytes = max(sum(saved), 1.0)
        self.saved = self._between(saved)
        self.kept_bytes = self._between([s.kept_bytes for s in slots], total=False)
        self.layer = self._largest(saved) / self.saved_bytes
        self.widest = self._widest([s.widest_bytes for s in slots])
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

    def _between(self, values: Sequence[float], *, total: bool = True) -> Floats:
        """Share of each run in a sum over slots; the sum itself if not `total`."""
        sums = np.concatenate(([0.0], np.cumsum(values)))[list(self.places)]
        found = np.maximum(sums[None, :] - sums[:, None], 0.0)
        return found / (sums[-1] or 1.0) if total else found

    def _largest(self, saved: Sequence[float]) -> Floats:
        """Most bytes that a layer within each run saves."""
        sums = np.concatenate(([0.0], np.cumsum(saved)))[list(self.places)]
        return self._running(np.diff(sums))

    def _widest(self, moved: Sequence[float]) -> Floats:
        """Most moved bytes of a slot in each run, over that of the program."""
        bounds = list(zip(self.places, self.places[1:], strict=False))
        each = np.array([max(moved[a:b], default=0.0) for a, b in bounds])
        return self._running(each) / max(float(each.max()), 1.0)

    def _running(self, each: Floats) -> Floats:
        n = self.count
        found = np.zeros((n, n))
        for i in range(n - 1):
            found[i, i + 1 :] = np.maximum.accumulate(each[i:])
        return found

    def _params(self) -> Floats:
        """Share of the parameters that each run reads, each counted once."""
        n, slots = self.count, self.chain.slots
        found = np.zeros((n, n))
        for i in range(n - 1):
            seen: dict[tuple[int, int], float] = {}
            total = 0.0
            for j in range(i + 1, n):
                for s in range(self.places[j - 1], self.places[j]):
                    slot = slots[s]
                    whole = s > 0 and slots[s - 1].number == slot.number
                    for leaf, size in slot.params:
                        key = (leaf, s if whole else -1)
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

    def costs(self, whole: Whole, microbatches: int, recompute: str, ratio: Ratio) -> Costs:
        """Estimated costs of every run.

        Args:
            whole: price of the whole program on the sub-mesh.
            microbatches: number in a step.
            recompute: one of `RECOMPUTE`.
            ratio: memory of planned stages over such estimates.
        """
        price = whole.price
        forward = price.forward_s * whole.forward
        back = (price.microbatch_s - price.forward_s - price.sums_s) * whole.back
        back = back + price.sums_s * self.params
        saved = max(price.activation_bytes, 0.0)
        local = saved / self.saved_bytes  # bytes on a device for each byte of the program
        held = price.static_bytes * self.params + saved * self.saved
        brief = max(price.held_bytes - price.static_bytes - saved, 0.0)
        held = held + SQUEEZED * brief * self.widest
        update = price.update_bytes * self.params
        takes = np.broadcast_to((local * self.takes_bytes)[:, None], held.shape)
        inner = np.concatenate(([0.0], np.cumsum(self.takes_bytes[1:])))
        layers = takes + local * np.maximum(inner[None, :] - inner[:, None], 0.0)
        more, again = saved * self.saved + takes, 0.0 * self.time
        if recompute == "selective":
            kept = local * self.kept_bytes + takes
            held = held - np.maximum(more - kept, 0.0) + saved * self.layer
            more = np.minimum(kept, more)
            again = np.minimum(price.forward_s * self.again, forward)
        elif recompute == "full":
            held = held - np.maximum(more - layers, 0.0) + saved * self.layer
            more, again = np.minimum(layers, more), forward
        elif recompute == "stage":
            more, again = np.minimum(takes, more), forward
        micro = forward + back + again + price.once_s / microbatches * self.params
        empty = np.tril(np.ones_like(micro, dtype=bool))
        micro = np.where(empty, np.inf, micro)
        return Costs(micro, np.maximum(held, update) * ratio.held, more * ratio.more)
