"""What devices exchange where an op slides along a dimension that is split.

Dimensions are exchanged one after the other, each with the borders of those before it. Along one of
n elements on a device, of which b come from one side and c from the other,

    sent = (b + c) / n * bytes    bytes afterwards = (1 + (b + c) / n) * bytes

in a permute from either side, in more of them where a border is wider than a shard. What runs
beside them is the planner's to say (`planner/sharding/problem/border_exchanges.py`). A shift sends
at most a shard, in one permute or two. But for a shift, the op then runs on a copy of its shard
with all borders. Where its result has borders too, the same bytes go back.

Emission: `planner.emit.halo`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ir import SHIFT, FactorSpec, Node, Slide, TensorType, slides

from .attention_blocks import Hops

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Sent:
    """The borders of one dimension, one entry per strategy.

    slide: the dimension.
    count: permutes in one run.
    each: bytes of a device in these, by distance of the device that sends them.
    """

    slide: Slide
    count: Floats
    each: tuple[Floats, ...]

    @property
    def bytes(self) -> Floats:
        return sum(self.each, np.zeros(len(self.count)))

    def seconds(self, hops: Hops) -> Floats:
        """Seconds of the permutes, one after the other."""
        here = hops.along(self.slide.factor)
        return sum((here.seconds(side) for side in self.each), np.zeros(len(self.count)))


class Borders:
    """Borders of an op on a device, under each of some strategies.

    Args:
        node: an op of `ir.SLIDING`.
        operands: types of its whole operands.
        spec: its factors.
        ways: for every factor the number of parts, one entry per strategy.
        count: number of strategies.
    """

    def __init__(
        self, node: Node, operands: Sequence[TensorType], spec: FactorSpec,
        ways: Mapping[str, Floats], count: int,
    ) -> None:  # fmt: skip
        self.sent: list[Sent] = []
        self.held: Floats = np.zeros(count)
        found = slides(node, operands)
        moving = found[0].operands if found else ()
        local = sum((_local_bytes(operands[k], spec, k, ways, count) for k in moving), self.held)
        copied = np.zeros(count, dtype=bool)
        for slide in found:
            size = operands[slide.operands[0]].shape[slide.dim]
            parts = np.broadcast_to(ways.get(slide.factor, 1.0), (count,)).astype(np.int64)
            there = tuple(
                (local * wide * parts / size).round() for wide in _widths(slide, size, parts)
            )
            each = there * 2 if slide.returns else there
            times: Floats = np.zeros(count)
            for sent in each:
                times = times + (sent > 0.0) * float(len(moving))
            self.sent.append(Sent(slide, times, each))
            added = np.where(parts > 1, float(sum(slide.border)), 0.0)
            local = local + (local * added * parts / size).round()
            copied |= times > 0.0
        if node.op == SHIFT:
            self.held = sum((each.bytes for each in self.sent), self.held)
        else:
            shards = 2.0 if any(each.slide.returns for each in self.sent) else 1.0
            self.held = np.where(copied, shards * local, 0.0)
        self.copies = node.op != SHIFT

    def copied_bytes(self) -> Floats:
        """Read and written before the op runs on its shard with borders."""
        return 2.0 * self.held if self.copies else np.zeros(len(self.held))

    def seconds(self, hops: Hops) -> Floats:
        """Of all permutes."""
        return sum((each.seconds(hops) for each in self.sent), np.zeros(len(self.held)))


def _widths(slide: Slide, size: int, parts: NDArray[np.int64]) -> list[Floats]:
    """Elements that each device sends another, by distance, one entry per strategy."""
    found: dict[int, Floats] = {}
    for n in {*parts.tolist()}:
        for distance, wide in slide.permutes(n, size):
            here = found.setdefault(distance, np.zeros(len(parts)))
            here[parts == n] = wide
    return [found[distance] for distance in sorted(found)]


def _local_bytes(
    type_: TensorType, spec: FactorSpec, k: int, ways: Mapping[str, Floats], count: int
) -> Floats:
    """Bytes of the shard of operand k."""
    found = np.full(count, float(type_.nbytes))
    for dim in spec.operands[k]:
        for name in dim:
            for factor in spec.splitting(name):
                found = found / ways.get(factor, 1.0)
    return found
