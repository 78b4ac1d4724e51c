"""Ranks schedules of a pipeline with known stage prices, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel import Cluster

from ...common.errors import PlanError
from ...common.options import SCHEDULES
from ..schedule import (
    INTERLEAVED,
    ONE_EACH,
    TURNS,
    Kind,
    Schedule,
    Simulator,
    StageCosts,
    Turns,
    build,
    in_turns,
)
from ..schedule.transform import with_optimizer, with_recomputation
from .stage_price import StagePrice
from .transfers import links_of


@dataclass(frozen=True)
class PipelineShape:
    """Stages and micro-batches of a pipeline.

    cuts: first slot of every stage, and the number of slots at the end.
    sizes: devices of every stage.
    recompute: of every stage "none"; "selective" or "full", by layer; "stage", the whole stage; or
        "chosen", value by value.
    turns: how stages take turns on groups of devices.
    """

    cuts: tuple[int, ...]
    sizes: tuple[int, ...]
    microbatches: int
    recompute: tuple[str, ...]
    turns: Turns = ONE_EACH

    @property
    def division(self) -> tuple[object, ...]:
        """What it is, whatever its stages compute again."""
        return self.microbatches, self.cuts, self.sizes, self.turns

    @property
    def groups(self) -> tuple[int, ...]:
        """Devices of every group."""
        return tuple(self.sizes[: len(self.sizes) // self.turns.chunks])

    @property
    def group(self) -> tuple[int, ...]:
        """Group of every stage."""
        return self.turns.group(len(self.sizes))


@dataclass(frozen=True)
class Ranked:
    """A pipeline under one schedule, with its simulated step.

    stage_s: busy seconds of each stage; peak_bytes: peak memory of a device of each stage.
    """

    shape: PipelineShape
    schedule: str
    step_s: float
    bubble: float
    stage_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]

    @property
    def worst_bytes(self) -> float:
        """Peak memory of the fullest device."""
        return max(self.peak_bytes)


def ranked(
    shape: PipelineShape,
    prices: Sequence[StagePrice],
    across: Sequence[float],
    cluster: Cluster,
    limit_bytes: float,
    schedules: Sequence[str] = SCHEDULES,
) -> list[Ranked]:
    """Simulates a pipeline under every schedule; the fastest that fits comes first.

    Args:
        shape: stages and micro-batches.
        prices: price of every stage.
        across: bytes of one micro-batch that each stage sends to the next.
        cluster: all devices.
        limit_bytes: memory limit of a device.
        schedules: names of the schedules to try.
    """
    costs = costs_of(shape.recompute, prices, across, shape.sizes, shape.group)
    names = in_turns(schedules, shape.turns)
    found = [_simulated(shape, name, costs, prices, cluster) for name in names]
    return sorted(found, key=lambda r: (r.worst_bytes > limit_bytes, r.step_s))


def costs_of(
    recompute: Sequence[str],
    prices: Sequence[StagePrice],
    across: Sequence[float],
    sizes: Sequence[int],
    group: Sequence[int],
) -> StageCosts:
    """Costs for the simulator, of one device of each stage.

    Args:
        recompute: of every stage, as of `PipelineShape`.
        prices: price of every stage.
        across: bytes of one micro-batch that each stage sends to the next.
        sizes: devices of every stage.
        group: group of devices of every stage.
    """
    sent = [size / min(a, b) for size, a, b in zip(across, sizes, sizes[1:], strict=False)]
    grow = [p.more_bytes(kind) for p, kind in zip(prices, recompute, strict=True)]
    return StageCosts(
        forward_s=tuple(p.forward_s for p in prices),
        input_gradient_s=tuple(p.input_gradient_s for p in prices),
        weight_gradient_s=tuple(p.weight_gradient_s for p in prices),
        recompute_s=tuple(p.forward_s for p in prices),
        optimizer_s=tuple(p.once_s for p in prices),
        activation_bytes=tuple(grow),
        weight_input_bytes=tuple(grow),
        boundary_bytes=tuple(grow),
        output_bytes=(*sent, 0.0),
        weight_bytes=_fixed_bytes(prices, grow, group),
    )  # fmt: skip


def _fixed_bytes(
    prices: Sequence[StagePrice], grow: Sequence[float], group: Sequence[int]
) -> tuple[float, ...]:
    """Bytes of each stage beside its micro-batches in flight.

    A group of devices runs one stage at a time: its stages hold their parameters and states all
    at once, but only one of them holds temporaries, which are counted where they are largest.

    Args:
        prices: price of every stage.
        grow: bytes of a micro-batch in flight.
        group: group of devices of each stage.
    """
    fixed = [max(p.held_bytes - g, 0.0) for p, g in zip(prices, grow, strict=True)]
    kept = [min(p.static_bytes, f) for p, f in zip(prices, fixed, strict=True)]
    for g in sorted({*group}):
        own = [s for s, mine in enumerate(group) if mine == g]
        worst = max(own, key=lambda s: fixed[s] - kept[s])
        kept[worst] = fixed[worst]
    return tuple(kept)


def _simulated(
    shape: PipelineShape,
    name: str,
    costs: StageCosts,
    prices: Sequence[StagePrice],
    cluster: Cluster,
) -> Ranked:
    table = with_optimizer(table_of(name, shape.microbatches, shape.recompute, shape.turns.chunks))
    timeline = Simulator(table).run(costs, links_of(shape.groups, cluster))
    busy = tuple(
        shape.microbatches * p.paced_s(kind) + p.once_s
        for p, kind in zip(prices, shape.recompute, strict=True)
    )
    peaks = tuple(timeline.peak_bytes[g] for g in shape.group)
    return Ranked(shape, name, timeline.step_s, timeline.bubble, busy, peaks)


def flights_of(table: Schedule) -> tuple[int, ...]:
    """Most micro-batches of each stage that are in flight: forward begun, backward not ended."""
    now, most = [0] * table.placement.chunks, [0] * table.placement.chunks
    for device in range(table.devices):
        for task in table.tasks(device):
            if task.kind is Kind.FORWARD:
                now[task.chunk] += 1
                most[task.chunk] = max(most[task.chunk], now[task.chunk])
            elif task.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
                now[task.chunk] -= 1
    return tuple(most)


def table_of(name: str, microbatches: int, recompute: Sequence[str], chunks: int = 1) -> Schedule:
    """The schedule's table for a pipeline with this recomputation.

    Raises:
        PlanError: if the schedule does not put `chunks` stages on each group of devices.
    """
    more = {"chunks": chunks} if name == INTERLEAVED else {}
    table = build(name, len(recompute) // chunks, microbatches, **more)
    if table.placement.chunks != len(recompute):
        fixed = sorted({turns.chunks for turns in TURNS.get(name, (ONE_EACH,))})
        raise PlanError(
            f"{chunks} stages on each group of devices", kind="bad-schedule", where=name,
            remedy=f"it takes {' or '.join(map(str, fixed))}",
        )  # fmt: skip
    again = [s for s, kind in enumerate(recompute) if kind == "stage"]
    return with_recomputation(table, again) if again else table
