"""One round of a repeating schedule, and a bound of its period.

A round is one micro-batch of each route, or several; its blocks are a forward and a backward (or
both halves) of each chunk. No period is below the work of the busiest device in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import final

import numpy as np

from .costs import Links, StageCosts
from .placement import Placement
from .task import Kind

TOLERANCE = 1e-9


@final
@dataclass(frozen=True, slots=True)
class Block:
    """A task of one round."""

    kind: Kind
    route: int
    copy: int
    chunk: int
    device: int
    seconds: float


@final
@dataclass(frozen=True, eq=False)
class Round:
    """The blocks of one round and their dependencies.

    needs: (before, after, seconds between the end of the one and the start of the other).
    hold: (first, last, device, bytes): memory held from the start of a block until the end of
        another.
    room_bytes: for activations on each device, infinite where there is no limit.
    copies: micro-batches of each route.
    """

    placement: Placement
    copies: int
    blocks: tuple[Block, ...]
    needs: tuple[tuple[int, int, float], ...]
    hold: tuple[tuple[int, int, int, float], ...]
    room_bytes: tuple[float, ...]

    @cached_property
    def load_s(self) -> tuple[float, ...]:
        """Work of every device in a round."""
        load = [0.0] * self.placement.devices
        for block in self.blocks:
            load[block.device] += block.seconds
        return tuple(load)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Blocks, each after those that it needs."""
        waits = [0] * len(self.blocks)
        for _, after, _ in self.needs:
            waits[after] += 1
        found = [b for b, count in enumerate(waits) if count == 0]
        for b in found:
            for after in self.readers[b]:
                waits[after] -= 1
                if waits[after] == 0:
                    found.append(after)
        return tuple(found)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Blocks that need each block."""
        table: list[list[int]] = [[] for _ in self.blocks]
        for before, after, _ in self.needs:
            table[before].append(after)
        return tuple(map(tuple, table))

    @cached_property
    def sources(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Blocks that each block needs, with the seconds in between."""
        table: list[list[tuple[int, float]]] = [[] for _ in self.blocks]
        for before, after, gap in self.needs:
            table[after].append((before, gap))
        return tuple(map(tuple, table))

    @cached_property
    def head_s(self) -> tuple[float, ...]:
        """Earliest start of each block in its round."""
        head = [0.0] * len(self.blocks)
        for b in self.order:
            for source, gap in self.sources[b]:
                head[b] = max(head[b], head[source] + self.blocks[source].seconds + gap)
        return tuple(head)

    @cached_property
    def tail_s(self) -> tuple[float, ...]:
        """Least time from the end of each block to the end of its round."""
        tail = [0.0] * len(self.blocks)
        for b in reversed(self.order):
            for source, gap in self.sources[b]:
                tail[source] = max(tail[source], tail[b] + self.blocks[b].seconds + gap)
        return tuple(tail)

    @cached_property
    def least_period_s(self) -> float:
        """Bound of the period over all patterns [s].

        A device is busy for its load in each round; and the memory that a round must hold over time
        cannot on average exceed the device's memory.
        """
        least = max(self.load_s)
        for device, room in enumerate(self.room_bytes):
            if 0 < room < np.inf:
                held = [size * self.life_s(a, b) for a, b, d, size in self.hold if d == device]
                least = max(least, sum(held) / room)
        return least

    def life_s(self, first: int, last: int) -> float:
        """Least time from the start of a block to the end of another that depends on it."""
        far = {first: self.blocks[first].seconds}
        for b in self.order:
            for source, gap in self.sources[b]:
                if source in far:
                    far[b] = max(far.get(b, 0.0), far[source] + gap + self.blocks[b].seconds)
        return far[last]

    def lower_bound_s(self, rounds: float) -> float:
        """Bound of the step over all orders [s]: the least period, and work before and after."""
        ends = zip(self.head_s, self.blocks, self.tail_s, strict=True)
        bound = max(head + block.seconds + tail for head, block, tail in ends)
        for device, load in enumerate(self.load_s):
            mine = [b for b, block in enumerate(self.blocks) if block.device == device]
            if mine:
                head = min(self.head_s[b] for b in mine)
                tail = min(self.tail_s[b] for b in mine)
                bound = max(bound, head + rounds * load + tail)
        return max(bound, rounds * self.least_period_s)


def round_of(
    placement: Placement,
    costs: StageCosts,
    *,
    split: bool,
    links: Links | None,
    memory_bytes: Sequence[float],
    copies: int = 1,
) -> Round:
    """The blocks of a round.

    Args:
        placement: of the chunks.
        costs: of the stages.
        split: whether weight gradients are blocks of their own.
        links: between devices; transfers count as delays, without queues on links.
        memory_bytes: of each device, for everything; no limit if empty.
        copies: micro-batches of each route in a round.
    """
    blocks: list[Block] = []
    needs: list[tuple[int, int, float]] = []
    hold: list[tuple[int, int, int, float]] = []
    back = Kind.INPUT_GRADIENT if split else Kind.BACKWARD
    back_s = costs.input_gradient_s if split else costs.backward_s
    for copy, (route, chunks) in product(range(copies), enumerate(placement.routes)):
        at: dict[tuple[Kind, int], int] = {}
        for chunk in chunks:
            stage, device = placement.stage[chunk], placement.device[chunk]
            first, second = len(blocks), len(blocks) + 1
            at[Kind.FORWARD, chunk], at[back, chunk] = first, second
            blocks.append(Block(Kind.FORWARD, route, copy, chunk, device, costs.forward_s[stage]))
            blocks.append(Block(back, route, copy, chunk, device, back_s[stage]))
            needs.append((first, second, 0.0))
            whole, kept = costs.activation_bytes[stage], 0.0
            if split:
                weight_s = costs.weight_gradient_s[stage]
                blocks.append(Block(Kind.WEIGHT_GRADIENT, route, copy, chunk, device, weight_s))
                needs.append((second, second + 1, 0.0))
                kept = min(whole, costs.weight_input_bytes[stage])
                hold.append((first, second + 1, device, kept))
            hold.append((first, second, device, whole - kept))
        for a, b in placement.edges:
            if (Kind.FORWARD, a) in at and (Kind.FORWARD, b) in at:
                there, home = (transfer_s(placement, costs, links, *e) for e in ((a, b), (b, a)))
                needs.append((at[Kind.FORWARD, a], at[Kind.FORWARD, b], there))
                needs.append((at[back, b], at[back, a], home))
    room = _room(placement, costs, memory_bytes)
    held = tuple(item for item in hold if item[3] > 0)
    return Round(placement, copies, tuple(blocks), tuple(needs), held, room)


def transfer_s(
    placement: Placement, costs: StageCosts, links: Links | None, source: int, target: int
) -> float:
    """Seconds between the end of a task on one chunk and its reader on another, along an edge."""
    ends = (placement.device[source], placement.device[target])
    if links is None or ends[0] == ends[1]:
        return 0.0
    upstream = source if (source, target) in placement.edges else target
    size = np.array(costs.output_bytes[placement.stage[upstream]])
    return float(links.transfer_s(np.array(ends[0]), np.array(ends[1]), size))


def _room(
    placement: Placement, costs: StageCosts, memory_bytes: Sequence[float]
) -> tuple[float, ...]:
    """Memory of each device that weights, gradients and state leave free."""
    if not memory_bytes:
        return (float("inf"),) * placement.devices
    room = [float(b) for b in memory_bytes]
    for chunk, stage in enumerate(placement.stage):
        fixed = costs.weight_bytes[stage] + costs.gradient_bytes[stage] + costs.state_bytes[stage]
        room[placement.device[chunk]] -= fixed
    return tuple(room)
