"""Lower bounds of divisions in which groups of devices take turns, from critical paths.

A schedule has a fixed order, so that its step is the longest path through its tasks and transfers.
Any one path bounds the step of every division from below: with n the number of tasks of stage s on
it, f, b and o the least seconds of its forward pass, backward pass and update, and c those of its
transfers,

    T  >=  sum over s of  n_f f_s + n_b b_s + n_o o_s + n_c c_s

and so does a mean of paths. Where both passes of a micro-batch take no less than f + b + d
together, min(n_f, n_b) d comes on top, whatever part of d each pass has. The sum is least for a
division that dynamic programming finds, which bounds all divisions at once; the more so the better
the mean is chosen. That is a game: a path is answered by a division, the mean of all divisions so
far by its longest path (fictitious play).

Source: Robinson, An iterative method of solving a game, Annals of Mathematics 54, 1951.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..schedule import Kind, Links, Schedule, Simulator, StageCosts, with_optimizer
from .dynamic_programme import least_most
from .simulated import table_of

Floats = NDArray[np.float64]
T = TypeVar("T")
# Of the game; with 20 the bounds of a GPT of 8 layers on 16 V100s are within 5 % of
# those with 100.
ROUNDS = 20
UNIT = Links(bandwidth_bytes_per_s=1.0)  # transfers are given in seconds
# Places of tasks in `Tasks`; transfers come after them.
_COLUMN = {
    Kind.FORWARD: 0, Kind.BACKWARD: 1, Kind.INPUT_GRADIENT: 1, Kind.OPTIMIZER: 2,
    Kind.WEIGHT_GRADIENT: 3,
}  # fmt: skip
_TRANSFER = 4


class Tasks(NamedTuple, Generic[T]):
    """Least seconds of the tasks of a stage, or of every run of slots, [first place, last place].

    forward_s, back_s: passes of one micro-batch.
    once_s: the update.
    input_s, weight_s: parts of the backward pass, where weight gradients may wait.
    micro_s: both passes together, no less than the sum of their own least seconds.
    """

    forward_s: T
    back_s: T
    once_s: T
    input_s: T
    weight_s: T
    micro_s: T


@dataclass(frozen=True)
class Paths:
    """Paths of one schedule, and the least that they allow.

    simulator: of the schedule, updates included; its stages are those of the divisions.
    passes: least seconds, by column of `_COLUMN`.
    moved_s: seconds of one transfer into each stage, at each place, [stage, place].
    each: seconds of every run on each path, [path, stage, first place, last place].
    rest: least seconds of all that follows, [path, stage, first place]; the last path is the mean.
    least_s: lower bound of all divisions [s].
    """

    simulator: Simulator
    passes: tuple[Floats, ...]
    moved_s: Floats
    each: Floats
    rest: Floats
    least_s: float

    def step_s(self, places: Sequence[int]) -> float:
        """Lower bound of a division [s]."""
        return self.simulator.step_s(_costs(*_seconds(self.passes, self.moved_s, places)), UNIT)

    def ends_s(self, s: int, i: int, ends: slice, before_s: Floats) -> tuple[Floats, Floats]:
        """Bounds of divisions that were begun, for all ends of the next stage.

        Args:
            s: the next stage.
            i: its first place.
            ends: places at which it may end.
            before_s: seconds of the stages before it on each path.

        Returns:
            The bounds, and the seconds of the stages up to it, [path, end].
        """
        until = before_s[:, None] + self.each[:, s, i, ends]
        return (until + self.rest[:, s + 1, ends]).max(axis=0), until


def paths_of(simulator: Simulator, tasks: Tasks[Floats], moved_s: Floats, limit_s: float) -> Paths:
    """Paths of a schedule, found until they bound all divisions by a limit.

    Args:
        simulator: of the schedule.
        tasks: least seconds.
        moved_s: as of `Paths`.
        limit_s: the limit [s].
    """
    empty, waits = np.isinf(tasks.forward_s), _waits(simulator.schedule)
    finite = Tasks(*(np.where(empty, 0.0, each) for each in tasks))
    backward = finite.input_s if waits else finite.back_s
    weight = finite.weight_s if waits else np.zeros_like(finite.weight_s)
    passes = finite.forward_s, backward, finite.once_s, weight
    least_s = finite.forward_s + backward + weight
    more_s = np.maximum(finite.micro_s - least_s, 0.0)
    ratio = 1 + np.divide(more_s, least_s, out=np.zeros_like(more_s), where=least_s > 0)
    longer = ratio * passes[0], ratio * backward, finite.once_s, ratio * weight
    places, _ = least_most([tasks.forward_s + tasks.back_s] * len(moved_s))
    bound_s, found = 0.0, list[Floats]()
    sums = [np.zeros(len(moved_s)) for _ in range(_TRANSFER + 1)]
    for k in range(ROUNDS):
        seconds = _seconds(longer, moved_s, places)
        sums = [a + b for a, b in zip(sums, seconds, strict=True)]
        counts = _counts(simulator, _costs(*(each / (k + 1) for each in sums)))
        along = _along(counts, passes, moved_s, empty)
        fewest = counts[:, [0, 1, 3] if waits else [0, 1]].min(axis=1)
        if waits:  # the first stage has no input gradient to send
            fewest[0] = counts[0, [0, 3]].min()
        found.append(along + fewest[:, None, None] * more_s)
        rest, places = _least(np.mean(found, axis=0))
        bound_s = max(bound_s, float(rest[0, 0]))
        if bound_s >= limit_s:
            break
    found.append(np.mean(found, axis=0))
    rests = np.array([_least(each)[0] for each in found])
    return Paths(simulator, passes, moved_s, np.array(found), rests, bound_s)


def _seconds(
    passes: Sequence[Floats], moved_s: Floats, places: Sequence[int]
) -> tuple[Floats, ...]:
    """Seconds of each stage of a division, by column, and of the transfer into it."""
    runs = (*pairwise(places),)
    first = np.array([i for i, _ in runs])
    return (
        *(np.array([each[run] for run in runs]) for each in passes),
        moved_s[np.arange(len(runs)), first],
    )


def _costs(
    forward_s: Iterable[float], back_s: Iterable[float], once_s: Iterable[float],
    weight_s: Iterable[float], into_s: Iterable[float],
) -> StageCosts:  # fmt: skip
    return StageCosts(
        forward_s=tuple(forward_s), input_gradient_s=tuple(back_s), optimizer_s=tuple(once_s),
        weight_gradient_s=tuple(weight_s), output_bytes=(*tuple(into_s)[1:], 0.0),
    )  # fmt: skip


def least_of_schedules_s(
    names: Sequence[str], count: int, chunks: int, tasks: Tasks[Floats], into_s: Floats
) -> Floats:
    """Lower bounds of divisions under each of some schedules [s].

    Two paths are taken: the longest one where each pass takes its own least seconds, and that where
    all of them have their share of what they take longer together.

    Args:
        names: of the schedules.
        count: number of micro-batches.
        chunks: stages on each group of devices.
        tasks: of each stage of each division, [stage, division].
        into_s: seconds of one transfer into each stage, likewise.
    """
    whole = {Kind.FORWARD: tasks.forward_s, Kind.BACKWARD: tasks.back_s}
    apart = {
        Kind.FORWARD: tasks.forward_s, Kind.INPUT_GRADIENT: tasks.input_s,
        Kind.WEIGHT_GRADIENT: tasks.weight_s,
    }  # fmt: skip
    stages, divisions = into_s.shape
    found = np.full(divisions, np.inf)
    for name in names:
        simulator, waits = simulator_of(name, count, stages // chunks, chunks)
        passes = apart if waits else whole
        once = {Kind.OPTIMIZER: tasks.once_s}
        least_s = sum(passes.values())
        more_s = np.maximum(tasks.micro_s - least_s, 0.0)
        ratio = 1 + np.divide(more_s, least_s, out=np.zeros_like(more_s), where=least_s > 0)
        longer = {kind: ratio * seconds for kind, seconds in passes.items()}
        bound_s = np.zeros(divisions)
        for each in (passes, longer):
            _, counts, moved = simulator.paths(each | once, into_s)
            fewest = np.min([counts[kind] for kind in passes], axis=0)
            if waits:  # the first stage has no input gradient to send
                fewest[0] = np.minimum(counts[Kind.FORWARD][0], counts[Kind.WEIGHT_GRADIENT][0])
            along_s = moved * into_s + fewest * more_s
            for kind, seconds in (passes | once).items():
                along_s += counts[kind] * seconds
            bound_s = np.maximum(bound_s, along_s.sum(axis=0))
        found = np.minimum(found, bound_s)
    return found


@cache
def simulator_of(name: str, count: int, groups: int, chunks: int) -> tuple[Simulator, bool]:
    """The simulator of a schedule with updates, and whether weight gradients are apart in it."""
    table = with_optimizer(table_of(name, count, ("none",) * groups * chunks, chunks))
    return Simulator(table), _waits(table)


def _waits(table: Schedule) -> bool:
    """Whether weight gradients are apart in a schedule."""
    return any(Kind.WEIGHT_GRADIENT in rows[:, 0] for rows in table.tables)


def _counts(simulator: Simulator, costs: StageCosts) -> Floats:
    """Passes, updates and transfers of each stage on the critical path."""
    timeline = simulator.run(costs, UNIT)
    rows, moved = timeline.rows, timeline.graph.transfers
    found, count = np.zeros((costs.stages, _TRANSFER + 1)), len(rows.kind)
    for node, share in timeline.critical_nodes():
        if node < count:
            found[rows.chunk[node], _COLUMN[Kind(int(rows.kind[node]))]] += share
        elif node < count + len(moved.source):
            k = node - count
            sender = moved.target[k] if moved.is_gradient[k] else moved.source[k]
            found[rows.chunk[sender] + 1, _TRANSFER] += share
    return found


def _along(
    counts: Floats, passes: Sequence[Floats], moved_s: Floats, empty: NDArray[np.bool_]
) -> Floats:
    """Seconds of every run on a path, [stage, first place, last place]."""
    found = np.einsum("sk,kij->sij", counts[:, :_TRANSFER], np.array(passes))
    found = found + (counts[:, _TRANSFER, None] * moved_s)[:, :, None]
    found[:, empty] = np.inf
    return found


def _least(each: Floats) -> tuple[Floats, tuple[int, ...]]:
    """Least seconds from each stage and place on, and the division that has them."""
    stages, n, _ = each.shape
    rest = np.full((stages + 1, n), np.inf)
    rest[stages, n - 1] = 0.0
    choice = np.zeros((stages, n), dtype=np.intp)
    for s in reversed(range(stages)):
        total = each[s] + rest[s + 1][None, :]
        choice[s] = total.argmin(axis=1)
        rest[s] = total.min(axis=1)
    places = [0]
    for s in range(stages):
        places.append(int(choice[s, places[-1]]))
    return rest, tuple(places)
