"""Lower bounds of divisions in which groups of devices take turns, from critical paths.

A schedule has a fixed order, so that its step is the longest path through its tasks and transfers.
Any one path bounds the step of every division from below: with n the number of tasks of stage s on
it, f, b and o the least seconds of its forward pass, backward pass and update, and c those of its
transfers,

    T  >=  sum over s of  n_f f_s + n_b b_s + n_o o_s + n_c c_s

and so does a mean of paths. Where both passes of a micro-batch take no less than f + b + d
together, min(n_f, n_b) d comes on top, whatever part of d each pass has. Where weight gradients, w,
are apart, and f + b takes d' more, f + b + w d more, that is

    min(n_f, n_b) d'  +  min(n_f, n_b, n_w) max(d - d', 0)

since it costs least to add d' to one of the first two, and the rest to any.  The sum is least for a
division that dynamic programming finds, which bounds all divisions at once; the more so the better
the mean is chosen. That is a game between paths and divisions. A linear programme solves it for
those known so far; the best answers to both of its mixtures come to them, the longest path and the
division with the least sum, until these are worth nearly the same (double oracle).

Source: McMahan, Gordon, Blum, Planning in the presence of cost functions controlled by an
adversary, ICML 2003.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import highspy
import numpy as np
from numpy.typing import NDArray

from substitutions import QuietHighs

from ..schedule import Kind, Links, Schedule, Simulator, StageCosts, with_optimizer
from .dynamic_programme import least_most
from .simulated import table_of

Floats = NDArray[np.float64]
T = TypeVar("T")
ROUNDS, NEAR = 60, 0.005  # of the game, and what may be left between both answers
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
    sent_s: what comes before gradients are sent back, likewise.
    """

    forward_s: T
    back_s: T
    once_s: T
    input_s: T
    weight_s: T
    micro_s: T
    sent_s: T


class Counts(NamedTuple):
    """Paths of a schedule, whatever its tasks take.

    each: passes, updates and transfers of each stage on a path, [stage, column].
    shares: of each path in the mean that bounds divisions best.
    """

    each: tuple[Floats, ...]
    shares: Floats


@dataclass(frozen=True)
class Paths:
    """Paths of one schedule, and the least that they allow.

    simulator: of the schedule, updates included; its stages are those of the divisions.
    counts: of the paths.
    passes: least seconds, by column of `_COLUMN`.
    moved_s: seconds of one transfer into each stage, at each place, [stage, place].
    each: seconds of every run on each path, [path, stage, first place, last place].
    rest: least seconds of all that follows, [path, stage, first place]; the last path is the mean.
    least_s: lower bound of all divisions [s].
    """

    simulator: Simulator
    counts: Counts
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


def paths_of(
    simulator: Simulator, tasks: Tasks[Floats], moved_s: Floats, limit_s: float,
    known: Counts | None = None,
) -> Paths:  # fmt: skip
    """Paths of a schedule, found until they bound all divisions by a limit.

    Args:
        simulator: of the schedule.
        tasks: least seconds.
        moved_s: as of `Paths`.
        limit_s: the limit [s].
        known: paths that were found for other seconds.
    """
    counts = counts_of(simulator, tasks, moved_s, limit_s, known.each if known else ())
    return paths_along(simulator, counts, tasks, moved_s)


def counts_of(
    simulator: Simulator, tasks: Tasks[Floats], moved_s: Floats, limit_s: float,
    known: Sequence[Floats],
) -> Counts:  # fmt: skip
    """The game that finds paths, from known ones on; arguments as of `paths_of`."""
    each = _Passes(tasks, _waits(simulator.schedule))
    places, _ = least_most([tasks.forward_s + tasks.back_s] * len(moved_s))
    divisions, mix = [places], np.ones(1)
    found, best = [*known], (0.0, np.ones(1))
    along = [each.along_s(one, moved_s) for one in known]
    sums = np.array([[_sum(path, places)] for path in along]).reshape(-1, 1)
    worth_s, is_known = math.inf, bool(known)
    while len(found) < ROUNDS + len(known):
        if not is_known:
            rows = [_seconds(each.longer_s, moved_s, one) for one in divisions]
            mean = [np.einsum("d,ds->s", mix, np.array(some)) for some in zip(*rows, strict=True)]
            found.append(_counts(simulator, _costs(*mean)))
            along.append(each.along_s(found[-1], moved_s))
            sums = np.vstack([sums, [_sum(along[-1], one) for one in divisions]])
            worth_s = float(sums[-1] @ mix)
        is_known = False
        shares, mix = _mixtures(sums)
        rest, places = _least(_mean(along, shares))
        if rest[0, 0] > best[0]:
            best = float(rest[0, 0]), shares
        if best[0] >= min(limit_s, worth_s * (1 - NEAR)):
            break
        if places not in divisions:
            divisions.append(places)
            sums = np.hstack([sums, [[_sum(path, places)] for path in along]])
            mix = np.append(mix, 0.0)
    shares = np.append(best[1], np.zeros(len(found) - len(best[1])))
    return Counts(tuple(found), shares)


def _mixtures(sums: Floats) -> tuple[Floats, Floats]:
    """The best shares of paths and of divisions in a game about seconds, [path, division]."""
    paths, divisions = sums.shape
    # the last row adds up shares, the last column is what the mixture is worth at least
    rows = np.vstack([np.hstack([sums.T / (sums.max() or 1.0), np.full((divisions, 1), -1.0)]),
                      np.append(np.ones(paths), 0.0)])  # fmt: skip
    solver: Any = QuietHighs()
    solver.setOptionValue("threads", 1)
    solver.passModel(
        paths + 1, divisions + 1, rows.size, int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMaximize), 0.0, np.append(np.zeros(paths), 1.0),
        np.append(np.zeros(paths), -np.inf), np.full(paths + 1, np.inf),
        np.append(np.zeros(divisions), 1.0), np.append(np.full(divisions, np.inf), 1.0),
        np.arange(0, rows.size, paths + 1, dtype=np.int32),
        np.tile(np.arange(paths + 1, dtype=np.int32), divisions + 1), rows.ravel(),
        np.zeros(paths + 1, dtype=np.int32),
    )  # fmt: skip
    solver.run()
    found = solver.getSolution()
    return _shares(np.array(found.col_value[:-1])), _shares(-np.array(found.row_dual[:-1]))


def _shares(found: Floats) -> Floats:
    """Shares that are none below 0, and add up to 1, beyond the tolerance of a solver."""
    shares = np.maximum(found, 0.0)
    return shares / shares.sum()


def _mean(each: Sequence[Floats], shares: Floats) -> Floats:
    """The mean of some paths."""
    found = np.zeros_like(each[0])
    for along, share in zip(each, shares.tolist(), strict=False):
        if share > 0:  # runs that no stage can be are infinite
            found = found + share * along
    return found


def _sum(along: Floats, places: Sequence[int]) -> float:
    """Seconds of a division on a path."""
    return float(sum(along[s, i, j] for s, (i, j) in enumerate(pairwise(places))))


def paths_along(
    simulator: Simulator, counts: Counts, tasks: Tasks[Floats], moved_s: Floats
) -> Paths:
    """What divisions take along given paths; arguments as of `paths_of`."""
    each = _Passes(tasks, _waits(simulator.schedule))
    found = [each.along_s(one, moved_s) for one in counts.each]
    found.append(_mean(found, counts.shares))
    rests = np.array([_least(along)[0] for along in found])
    least_s = float(rests[:, 0, 0].max())
    return Paths(simulator, counts, each.least_s, moved_s, np.array(found), rests, least_s)


class _Passes:
    """Least seconds of passes of every run of slots, by column of `_COLUMN`.

    least_s: of each pass; longer_s: with its share of what all take longer together.
    """

    def __init__(self, tasks: Tasks[Floats], waits: bool) -> None:
        self.empty, self.waits = np.isinf(tasks.forward_s), waits
        finite = Tasks(*(np.where(self.empty, 0.0, each) for each in tasks))
        backward = finite.input_s if waits else finite.back_s
        weight = finite.weight_s if waits else np.zeros_like(finite.weight_s)
        self.least_s = finite.forward_s, backward, finite.once_s, weight
        self.more_s = _more(finite, waits)
        forward, backward, weight = _longer((finite.forward_s, backward, weight), self.more_s)
        self.longer_s = forward, backward, finite.once_s, weight

    def along_s(self, counts: Floats, moved_s: Floats) -> Floats:
        """Seconds of every run on a path, [stage, first place, last place]."""
        found = np.einsum("sk,kij->sij", counts[:, :_TRANSFER], np.array(self.least_s))
        found = found + (counts[:, _TRANSFER, None] * moved_s)[:, :, None]
        found[:, self.empty] = np.inf
        passes = [counts[:, k, None, None] for k in ((0, 1, 3) if self.waits else (0, 1))]
        return found + _least_more(passes, self.more_s)


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


def _more(tasks: Tasks[Floats], waits: bool) -> tuple[Floats, Floats]:
    """What passes take longer together than each: those before gradients are sent, and the rest."""
    if not waits:
        more_s = np.maximum(tasks.micro_s - tasks.forward_s - tasks.back_s, 0.0)
        return np.zeros_like(more_s), more_s
    sent_s = tasks.forward_s + tasks.input_s
    early_s = np.maximum(tasks.sent_s - sent_s, 0.0)
    return early_s, np.maximum(tasks.micro_s - sent_s - tasks.weight_s - early_s, 0.0)


def _longer(passes: Sequence[Floats], more_s: tuple[Floats, Floats]) -> list[Floats]:
    """Passes with their share of what they take longer together."""
    found = [*passes]
    for count, more in zip((2, len(passes)), more_s, strict=True):
        sum_s = sum(found[:count], np.zeros_like(more))
        ratio = 1 + np.divide(more, sum_s, out=np.zeros_like(more), where=sum_s > 0)
        found[:count] = [ratio * each for each in found[:count]]
    return found


def _least_more(counts: Sequence[Floats], more_s: tuple[Floats, Floats]) -> Floats:
    """The least that a path is longer for what passes take longer together.

    Args:
        counts: passes of each kind on the path, weight gradients last where they are apart, [stage,
            ...].
        more_s: as of `_more`.
    """
    early_s, late_s = more_s
    fewest = np.min(counts, axis=0)
    if len(counts) > 2:  # the first stage has no input gradient to send
        fewest[0] = np.minimum(counts[0][0], counts[2][0])
    return np.minimum(counts[0], counts[1]) * early_s + fewest * late_s


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
        more_s = _more(tasks, waits)
        longer = dict(zip(passes, _longer((*passes.values(),), more_s), strict=False))
        bound_s = np.zeros(divisions)
        for each in (passes, longer):
            _, counts, moved = simulator.paths(each | once, into_s)
            along_s = moved * into_s + _least_more([counts[kind] for kind in passes], more_s)
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
