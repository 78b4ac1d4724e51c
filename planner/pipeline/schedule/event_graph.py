"""A schedule as a graph of times: tasks, transfers and barriers, with dependencies as edges.

Every queue is served in a fixed order, so the earliest times are the longest paths of this graph.

* compute queue of a device: its tasks in table order; sends and receives stand in it and take
  no time of their own;
* link of an ordered pair of devices: transfers in the order in which the sender issues them;
* both directions of the host queue of a device: in table order, not before the compute task that
  stands ahead of them in the table is done;
* gradient-sync queue of a device: in table order; copies of a stage start a sum together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ...common.errors import PlanError
from .dependencies import ACTIVATION, GRADIENT, STAYS, Floats, Needs, needs_of
from .task import RECEIVES, SENDS, Kind
from .task_rows import Flags, Ints, Rows

_SIDE = ((Kind.SYNC,), (Kind.OFFLOAD,), (Kind.FETCH,))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Data that crosses from one device to another.

    source: row that produces it; target: row that needs it.
    issue: row after which it may leave (the source, or its send); arrive: row that waits for it
        (the target, or its receive).
    """

    source: Ints
    target: Ints
    issue: Ints
    arrive: Ints
    is_gradient: Flags


@final
@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes: the rows, then the transfers, then barriers, which take no time.

    `after[i]` starts no sooner than the start of `before[i]` plus `share[i]` of its duration.
    """

    rows: Rows
    transfers: Transfers
    size: int
    before: Ints
    after: Ints
    share: Floats


def graph_of(rows: Rows, *, links: bool, overlap: bool) -> Graph:
    """The graph of a checked schedule.

    Args:
        rows: of the schedule.
        links: whether transfers take time; if not, data arrives at once.
        overlap: whether compute goes on while its device sends.
    """
    needs = needs_of(rows)
    transfers = transfers_of(rows, needs)
    edges = _Edges()
    stays = _stays(rows, needs)
    edges.add(needs.before[stays], needs.after[stays], needs.share[stays])
    count = len(rows.kind)
    before, after = _queues(rows)
    edges.add(before, after)
    if links:
        node = count + np.arange(len(transfers.source))
        edges.add(transfers.issue, node)
        edges.add(node, transfers.arrive)
        edges.add(*_links(rows, transfers, node))
        if not overlap:
            edges.add(*_held(rows, transfers, node))
        count += len(node)
    else:
        edges.add(transfers.issue, transfers.arrive)
    count += _meet(rows, edges, count)
    return Graph(rows, transfers, count, *edges.joined())


class _Edges:
    """Edges under construction."""

    def __init__(self) -> None:
        self.before: list[Ints] = []
        self.after: list[Ints] = []
        self.share: list[Floats] = []

    def add(self, before: Ints, after: Ints, share: Floats | None = None) -> None:
        self.before.append(before)
        self.after.append(after)
        self.share.append(np.ones(len(before)) if share is None else share)

    def joined(self) -> tuple[Ints, Ints, Floats]:
        return np.concatenate(self.before), np.concatenate(self.after), np.concatenate(self.share)


def _stays(rows: Rows, needs: Needs) -> Flags:
    """Dependencies within one device."""
    same = rows.device[needs.before] == rows.device[needs.after]
    return same | (needs.gradient == STAYS)


def transfers_of(rows: Rows, needs: Needs) -> Transfers:
    """Dependencies between devices, with their sends and receives.

    Raises:
        PlanError: if the tables have some, but not all, sends and receives.
    """
    cross = np.flatnonzero(~_stays(rows, needs))
    source, target, flag = needs.before[cross], needs.after[cross], needs.gradient[cross]
    issue, arrive = source, target
    if rows.schedule.has_transfers:
        issue = _served(rows, source, target, flag, sends=True)
        arrive = _served(rows, source, target, flag, sends=False)
    return Transfers(source, target, issue, arrive, flag == GRADIENT)


def _served(rows: Rows, source: Ints, target: Ints, flag: Ints, *, sends: bool) -> Ints:
    """Row of the send (or receive) of every transfer."""
    kinds = SENDS if sends else RECEIVES
    have = rows.select(*kinds)
    near, far = (source, target) if sends else (target, source)
    wanted_kind = np.where(flag == ACTIVATION, kinds[0], kinds[1])
    wanted = _key(rows, wanted_kind, near, rows.chunk[far])
    found = _key(rows, rows.kind[have], have, rows.peer[have])
    order = np.argsort(found, kind="stable")
    found, have = found[order], have[order]
    place = np.searchsorted(found, wanted)
    place = np.minimum(place, max(len(found) - 1, 0))
    missing = np.flatnonzero(found[place] != wanted) if len(found) else np.arange(len(wanted))
    if len(missing):
        i = int(missing[0])
        what = "send" if sends else "receive"
        raise PlanError(
            f"no {what} between the {rows.task(int(source[i]))} and the "
            f"{rows.task(int(target[i]))} on device {int(rows.device[target[i]])}",
            kind="bad-schedule", where=f"device {int(rows.device[near[i]])}",
            remedy="list a send and a receive for every transfer, or leave all of them out",
        )  # fmt: skip
    if len(have) != len(wanted):
        spare = int(np.setdiff1d(have, have[place])[0])
        raise PlanError(
            f"the {rows.task(spare)} serves no transfer", kind="bad-schedule",
            where=f"device {int(rows.device[spare])}", remedy="remove it",
        )  # fmt: skip
    return have[place]


def _key(rows: Rows, kind: Ints, near: Ints, peer: Ints) -> Ints:
    schedule = rows.schedule
    key = kind * schedule.placement.chunks + rows.chunk[near]
    key = key * schedule.placement.chunks + peer
    return (key * schedule.microbatches + rows.microbatch[near]) * schedule.slices + rows.part[near]


def _queues(rows: Rows) -> tuple[Ints, Ints]:
    """Edges from each row to the next in its queue; host traffic also waits for compute."""
    side = np.zeros(len(rows.kind), np.int64)
    for number, kinds in enumerate(_SIDE, start=1):
        side[np.isin(rows.kind, kinds)] = number
    before: list[Ints] = []
    after: list[Ints] = []
    for number in range(len(_SIDE) + 1):
        mine = np.flatnonzero(side == number)
        same = rows.device[mine[:-1]] == rows.device[mine[1:]]
        before.append(mine[:-1][same])
        after.append(mine[1:][same])
    here = np.arange(len(side))
    ahead = np.maximum.accumulate(np.where(side == 0, here, -1))
    host = np.isin(rows.kind, (Kind.OFFLOAD, Kind.FETCH))
    beside = np.flatnonzero(host & (ahead >= rows.first[rows.device]))
    return np.concatenate([*before, ahead[beside]]), np.concatenate([*after, beside])


def _links(rows: Rows, transfers: Transfers, node: Ints) -> tuple[Ints, Ints]:
    """Transfers of one link, in the order of their issue."""
    source, target = rows.device[transfers.source], rows.device[transfers.target]
    link = source * rows.schedule.devices + target
    order = np.lexsort((transfers.target, transfers.issue, link))
    same = link[order][:-1] == link[order][1:]
    return node[order][:-1][same], node[order][1:][same]


def _held(rows: Rows, transfers: Transfers, node: Ints) -> tuple[Ints, Ints]:
    """Edges from transfers to the next compute of their sender."""
    compute = np.flatnonzero(~np.isin(rows.kind, [kind for kinds in _SIDE for kind in kinds]))
    at = np.searchsorted(compute, transfers.issue, side="right")
    known = at < len(compute)
    following = compute[np.minimum(at, len(compute) - 1)]
    known &= rows.device[following] == rows.device[transfers.issue]
    return node[known], following[known]


def _meet(rows: Rows, edges: _Edges, count: int) -> int:
    """Makes the copies of a stage start each gradient sum together; returns new barriers."""
    syncs = rows.select(Kind.SYNC)
    if not len(syncs):
        return 0
    stage = np.array(rows.schedule.placement.stage)[rows.chunk[syncs]]
    keys = np.stack((stage, rows.microbatch[syncs], rows.part[syncs]))
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    barrier = np.arange(count + int(group.max()) + 1)
    barrier[syncs] = count + group
    edges.after = [barrier[after] for after in edges.after]
    edges.add(count + group, syncs)
    return int(group.max()) + 1
