"""Memory of every device over one step.

Held all through: one version of the weights, and the state of the optimizer. Over time:

    activations   from the start of a forward to the end of its input gradient; of these the
                  inputs of the weight gradient to its end
    recomputed    boundary from the start of the forward, the rest from the start of the
                  recomputation
    offloaded     gone from the end of the offload to the start of the fetch
    gradients     from the start of the first weight gradient of an update to its end
    versions      weights that a micro-batch in flight began with and that were updated since
    transfers     at the sender from the task's end until it is out, at the receiver from the
                  transfer's start to the start of the task that reads it
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .costs import StageCosts, shares
from .dependencies import BACKWARDS, WEIGHTS, Floats
from .event_graph import Transfers
from .task import Kind
from .task_rows import ABSENT, Ints, Rows, update_of
from .timeline import MemoryCurve, curve


class Change(NamedTuple):
    """Bytes that devices hold from a moment on."""

    device: Ints
    time_s: Floats
    size_bytes: Floats


def memory_of(
    rows: Rows, costs: StageCosts, start_s: Floats, end_s: Floats, moved: list[Change]
) -> tuple[MemoryCurve, ...]:
    """Memory curves of all devices.

    Args:
        rows: tasks of the schedule.
        costs: costs of its stages.
        start_s: start of every task.
        end_s: end of every task.
        moved: buffers of the transfers.
    """
    changes = [
        *_activations(rows, costs, start_s, end_s),
        *_gradients(rows, costs, start_s, end_s),
        *_versions(rows, costs, start_s, end_s),
        *moved,
    ]
    device = np.concatenate([change.device for change in changes])
    time_s = np.concatenate([change.time_s for change in changes])
    size = np.concatenate([change.size_bytes for change in changes])
    stage = np.array(rows.schedule.placement.stage)
    fixed = (np.array(costs.weight_bytes) + np.array(costs.state_bytes))[stage]
    home = np.array(rows.schedule.placement.device)
    held = np.bincount(home, fixed, minlength=rows.schedule.devices)
    alive = size != 0
    device, time_s, size = device[alive], time_s[alive], size[alive]
    order = np.argsort(device, kind="stable")
    at = np.searchsorted(device[order], np.arange(rows.schedule.devices + 1))
    return tuple(
        curve(time_s[order[a:b]], size[order[a:b]], float(held[d]))
        for d, (a, b) in enumerate(pairwise(at.tolist()))
    )


def buffers(
    rows: Rows,
    transfers: Transfers,
    size_bytes: Floats,
    node_s: tuple[Floats, Floats],
    start_s: Floats,
    end_s: Floats,
) -> list[Change]:
    """Buffers of transfers at both ends; `node_s` are their starts and ends."""
    sender, receiver = rows.device[transfers.source], rows.device[transfers.target]
    return [
        Change(sender, end_s[transfers.source], size_bytes),
        Change(sender, node_s[1], -size_bytes),
        Change(receiver, node_s[0], size_bytes),
        Change(receiver, np.maximum(start_s[transfers.target], node_s[1]), -size_bytes),
    ]


def sizes(rows: Rows, costs: StageCosts, values: tuple[float, ...], at: Ints) -> Floats:
    """A cost in bytes of each of the rows `at`, by their slice."""
    stage = np.array(rows.schedule.placement.stage)[rows.chunk[at]]
    share = np.array(shares(costs, rows.schedule.slices))
    return np.array(values)[stage] * share[rows.part[at]]


def _activations(rows: Rows, costs: StageCosts, start_s: Floats, end_s: Floats) -> list[Change]:
    forward, back = rows.select(Kind.FORWARD), rows.index(*BACKWARDS)
    again, weight = rows.index(Kind.RECOMPUTE), rows.index(Kind.WEIGHT_GRADIENT)
    out, fetch = rows.index(Kind.OFFLOAD), rows.index(Kind.FETCH)
    key = (rows.chunk[forward], rows.microbatch[forward], rows.part[forward])
    device = rows.device[forward]
    whole = sizes(rows, costs, costs.activation_bytes, forward)
    after = np.minimum(sizes(rows, costs, costs.weight_input_bytes, forward), whole)
    edge = np.minimum(sizes(rows, costs, costs.boundary_bytes, forward), whole)
    back, again, weight, out, fetch = (table[key] for table in (back, again, weight, out, fetch))
    ends = np.where(back != ABSENT, end_s[back], end_s[forward])
    first = np.where(again != ABSENT, edge, whole)
    kept = np.where(weight != ABSENT, after, 0.0)
    changes = [
        Change(device, start_s[forward], first),
        Change(device, start_s[again], np.where(again != ABSENT, whole - edge, 0.0)),
        Change(device, ends, kept - whole),
        Change(device, end_s[weight], -kept),
    ]
    gone = np.where(out != ABSENT, first, 0.0)
    changes.append(Change(device, end_s[out], -gone))
    changes.append(Change(device, np.where(fetch != ABSENT, start_s[fetch], ends), gone))
    return changes


def _gradients(rows: Rows, costs: StageCosts, start_s: Floats, end_s: Floats) -> list[Change]:
    weights, steps = rows.select(*WEIGHTS), rows.select(Kind.OPTIMIZER)
    if not len(weights) or not any(costs.gradient_bytes):
        return []
    update = update_of(rows.schedule, rows.microbatch)
    shape = (rows.schedule.placement.chunks, int(update.max()) + 1)
    begins, ends = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(begins, (rows.chunk[weights], update[weights]), start_s[weights])
    np.maximum.at(ends, (rows.chunk[steps], rows.microbatch[steps]), end_s[steps])
    chunk, number = np.nonzero(np.isfinite(begins))
    size = np.array(costs.gradient_bytes)[np.array(rows.schedule.placement.stage)[chunk]]
    device = np.array(rows.schedule.placement.device)[chunk]
    freed = np.where(np.isfinite(ends), ends, np.inf)[chunk, number]
    known = np.isfinite(freed)
    return [
        Change(device, begins[chunk, number], size),
        Change(device[known], freed[known], -size[known]),
    ]


def _versions(rows: Rows, costs: StageCosts, start_s: Floats, end_s: Floats) -> list[Change]:
    """Weight versions besides the newest, each held while a micro-batch in flight uses it."""
    steps = rows.select(Kind.OPTIMIZER)
    if not rows.schedule.update_every or not len(steps) or not any(costs.weight_bytes):
        return []
    device: list[int] = []
    time_s: list[float] = []
    size: list[float] = []
    last = rows.index(*WEIGHTS)
    forward = rows.index(Kind.FORWARD)
    for chunk, stage in enumerate(rows.schedule.placement.stage):
        updates: list[int] = np.sort(steps[rows.chunk[steps] == chunk]).tolist()
        begins = forward[chunk][forward[chunk] != ABSENT]
        ends = last[chunk][forward[chunk] != ABSENT]
        version = np.array([bisect_left(updates, row) for row in begins.tolist()])
        for number, update in enumerate(updates):
            until = float(end_s[ends[version == number]].max(initial=-np.inf))
            if until > float(end_s[update]):
                device += [rows.schedule.placement.device[chunk]] * 2
                time_s += [float(start_s[update]), until]
                size += [costs.weight_bytes[stage], -costs.weight_bytes[stage]]
    return [Change(np.array(device, np.int64), np.array(time_s), np.array(size))]
