"""Lower bounds of the seconds of stages, from the work of their ops and from the solver.

A stage of slots i to j takes at least the seconds of the runs between places that it consists of,

    T(i, j)  >=  sum over k of  T(k, k + 1)

each op split in its own best way over the devices of the stage or a part of them, with nothing paid
for values that enter or leave a run, since ops on both sides of a place may be fused. Parameters
that several runs read count in the forward pass alone: their gradients may be summed at once. The
forward pass has the ops that a run's results depend on; before its gradients are sent back, those
run too that they depend on, in the runs of which all gradients lead to values from before the
stage. A stage also takes at least what the solver proves for it, or for one micro-batch of it, as
if a device had memory for all of it. Where it takes longer to store a value than to make it twice,
a stage that computes more takes less: all this is the least over the kinds of recomputation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel

from ..sharding.cost.least_seconds import border_s, least_each_s
from .cut.opened_loss import cut_of
from .cut.stage_training_step import StageTrainingStep
from .divide.run_costs import Shares
from .stage_planner import AMPLE, Ask, StagePlanner
from .stage_units import Unit, all_sent, borders_of, ops_of, unit_of

Floats = NDArray[np.float64]
# Work of tracing an op beside that of solving it, the square of the stage's devices: 0.5 ms, and
# 0.3 ms on 2 devices (random steps of `benchmarks fuzz --pipelines`); and ops that take as long as
# what a stage takes whatever it is.
TRACED, AT_LEAST = 8, 100
Run = tuple[int, int]


@dataclass(frozen=True)
class Least:
    """Least seconds of every run of slots as a stage, shape [first place, last place].

    forward_s: forward pass of one micro-batch.
    both_s: forward pass and input gradient of one micro-batch.
    micro_s: forward and backward of one micro-batch.
    one_s: one micro-batch, and what is done once a step.
    step_s: all micro-batches, and what is done once a step.
    begun_s, back_s: the forward program of one micro-batch, and the rest of it.
    input_s, weight_s: the part of the rest before its gradients are sent back, and after that.
    once_s: once a step.
    passes_s: forward and backward of one micro-batch, no less than `micro_s`.
    sent_s: what comes before its gradients are sent back, no less than `begun_s` and `input_s`.
    """

    forward_s: Floats
    both_s: Floats
    micro_s: Floats
    one_s: Floats
    step_s: Floats
    begun_s: Floats
    back_s: Floats
    input_s: Floats
    weight_s: Floats
    once_s: Floats
    passes_s: Floats
    sent_s: Floats


@dataclass(frozen=True)
class _OfKind:
    """Least seconds of every run under a kind of recomputation, [first place, last place].

    passes_s: forward and backward of one micro-batch; floor_s: the same by its ops alone.
    sent_s, early_s: the same of what comes before its gradients are sent back.
    late_s: the rest of the backward pass.
    once_s: once a step.
    step_s: all micro-batches, and what is done once a step.
    """

    passes_s: Floats
    floor_s: Floats
    sent_s: Floats
    early_s: Floats
    late_s: Floats
    once_s: Floats
    step_s: Floats


@dataclass
class StageFloors:
    """Lower bounds of all stages of a program.

    sizes: devices of the sub-meshes to choose from.
    kinds: kinds of recomputation to choose from, by layer or none; that of a whole stage only adds
        a forward pass.
    proved: (micro-batches, devices, kind) -> stages that were bounded by the solver.
    passed: the same of stages whose micro-batches were.
    """

    planner: StagePlanner
    shares: Shares
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    _units: dict[tuple[int, str], Unit] = field(default_factory=dict[tuple[int, str], "Unit"])
    _least: dict[tuple[int, int], Least] = field(default_factory=dict[tuple[int, int], Least])
    _kinds: dict[tuple[int, int], dict[str, _OfKind]] = field(
        default_factory=dict[tuple[int, int], "dict[str, _OfKind]"]
    )
    _ops: dict[int, Floats] = field(default_factory=dict[int, Floats])
    _sent: dict[int, NDArray[np.bool_]] = field(default_factory=dict[int, NDArray[np.bool_]])
    _known: dict[object, tuple[float, ...]] = field(
        default_factory=dict[object, "tuple[float, ...]"]
    )
    proved: dict[tuple[int, int, str], set[Run]] = field(
        default_factory=dict[tuple[int, int, str], set[Run]]
    )
    passed: dict[tuple[int, int, str], set[Run]] = field(
        default_factory=dict[tuple[int, int, str], set[Run]]
    )
    _done: dict[tuple[int, int], dict[Run, bool]] = field(
        default_factory=dict[tuple[int, int], dict[Run, bool]]
    )
    _alone_s: dict[object, float] = field(default_factory=dict[object, float])

    @cached_property
    def distinct(self) -> int:
        """Runs between neighbouring places that differ."""
        return len({self.shares.alike((k, k + 1))[0] for k in range(self.shares.count - 1)})

    def least(self, count: int, size: int) -> Least:
        """Bounds for `count` micro-batches on `size` devices.

        Raises:
            IndivisibleError: if the loss cannot be divided so.
        """
        if (count, size) not in self._least:
            self._price(count)
        return self._least[count, size]

    def of_kind_s(self, count: int, size: int, run: Run, kind: str) -> float:
        """Least seconds of a stage under a kind of recomputation, all micro-batches and update."""
        self.least(count, size)
        return float(self._kinds[count, size][kind].step_s[run])

    def prove(self, count: int, size: int, at: Run) -> None:
        """Bounds a stage without a limit of memory, and raises its bound and that of equal ones.

        That is done under the kind of recomputation with the least bound of those not solved. The
        bounds of stages that contain it rise too: their other ops take time of their own, but for
        what they save at its borders.
        """
        kind = self._unproved(count, size, at)
        if kind is None:
            return
        least, run = self.least(count, size), self.shares.alike(at)[0]
        s, stage, name = self._alone(count, run, kind)
        bound_s = self.planner.least_step_s(stage, name, Ask(s, size, AMPLE))
        bound_s -= self._seen_s(stage, name)
        self.proved.setdefault((count, size, kind), set()).add(run)
        own = self._kinds[count, size][kind]
        floor_s = count * own.floor_s + own.once_s
        for i, j in self.shares.alike(at):
            around = own.step_s[: i + 1, j:]
            more_s = floor_s[: i + 1, j:] - floor_s[i, j] - self._border_s(stage, name)
            np.maximum(around, bound_s + more_s, out=around)
            own.step_s[i, j] = max(own.step_s[i, j], bound_s)
        rows = self._kinds[count, size].values()
        np.min([row.step_s for row in rows], axis=0, out=least.step_s)

    def prove_passes(self, count: int, size: int, at: Run) -> None:
        """Raises the bound of a micro-batch of a stage, and those of stages like it.

        That is done under the kind of recomputation with the least bound of those not solved, of
        the rounds of its loop over layers, if it has one. With k rounds, the best one takes

            T(k)  =  min over plans x of  k b(x) + e(x)

        which is concave in k, and no less than 0 at 0: the run with the most rounds, n, is solved,
        and T(k) >= k / n T(n). Ops outside take time of their own, but for what they save at the
        borders. The backward pass of a loop comes before gradients are sent back, where they are:
        then the bound is one of that, and the rest of it takes time of its own.
        """
        kind = self._unpassed(count, size, at)
        if kind is None:
            return
        least, core = self.least(count, size), self.shares.core(at)
        family = self.shares.family(core)
        most = max(family)
        passed = self.passed.setdefault((count, size, kind), set())
        sent = self._sent[count]
        is_sent = most > 1 and all(sent[i, i:j].all() for runs in family.values() for i, j in runs)
        most_s, border_s = self._passes_s(count, size, family[most][0], kind, is_sent=is_sent)
        own = self._kinds[count, size][kind]
        self._done.pop((count, size), None)
        for k, runs in family.items():
            bound_s = k / most * most_s
            for i, j in runs:
                passed.add((i, j))
                if is_sent:
                    rows = [r for r in range(i + 1) if sent[r, i:j].all()]
                    _raise(own.sent_s, own.early_s, (i, j), rows, bound_s, border_s)
                late_s = own.late_s[i, j] if is_sent else 0.0
                _raise(own.passes_s, own.floor_s, (i, j), range(i + 1), bound_s + late_s, border_s)
        np.maximum(own.step_s, count * own.passes_s + own.once_s, out=own.step_s)
        rows = self._kinds[count, size].values()
        np.min([row.passes_s for row in rows], axis=0, out=least.passes_s)
        np.min([row.sent_s for row in rows], axis=0, out=least.sent_s)
        np.min([row.step_s for row in rows], axis=0, out=least.step_s)

    def is_passed(self, count: int, size: int, at: Run) -> bool:
        """Whether `prove_passes` cannot raise the bound of a stage further."""
        done = self._done.setdefault((count, size), {})
        if at not in done:
            done[at] = self._unpassed(count, size, at) is None
        return done[at]

    def _unpassed(self, count: int, size: int, at: Run) -> str | None:
        """The kind with the least bound of a micro-batch, unless it was solved under it."""
        self.least(count, size)
        rows = self._kinds[count, size]
        kind = min(self.kinds, key=lambda kind: float(rows[kind].passes_s[at]))
        return None if self.shares.core(at) in self.passed.get((count, size, kind), ()) else kind

    def _passes_s(
        self, count: int, size: int, run: Run, kind: str, *, is_sent: bool
    ) -> tuple[float, float]:
        """Lower bound of a micro-batch of a stage, and what its borders may save [s]."""
        s, stage, name = self._alone(count, run, kind)
        ask = Ask(s, size, AMPLE)
        bound_s = self.planner.least_passes_s(stage, name, ask, is_sent=is_sent) / count
        return bound_s, self._border_s(stage, name) / count

    def _unproved(self, count: int, size: int, at: Run) -> str | None:
        """The kind with the least bound of a stage, unless the stage was solved under it."""
        self.least(count, size)
        rows, run = self._kinds[count, size], self.shares.alike(at)[0]
        kind = min(self.kinds, key=lambda kind: float(rows[kind].step_s[at]))
        return None if run in self.proved.get((count, size, kind), ()) else kind

    def _alone(self, count: int, run: Run, kind: str) -> tuple[int, StageTrainingStep, str]:
        """Number, program and digest of a stage, with all before it and all after as others."""
        loss = self.planner.loss(count)
        low, high = (self.shares.places[k] for k in run)
        cuts = tuple(dict.fromkeys((0, low, high, len(loss.chain.slots))))
        s = cuts.index(low)
        kinds = tuple(kind if r == s else "none" for r in range(len(cuts) - 1))
        cut = cut_of(loss, cuts, kinds)
        return s, *self.planner.told(loss, cut, s, ("alone", run, kind))

    def _border_s(self, stage: StageTrainingStep, name: str) -> float:
        """Most seconds that the ops of a stage save where what it takes and gives is fused."""
        facts = self.planner.searched(stage, name).facts
        own, _ = ops_of(stage, facts.flat)
        borders = borders_of(stage, facts.flat)
        return border_s(facts, ComputeModel(self.planner.machine), own, borders, self._alone_s)

    def work(self, count: int, size: int, at: Run) -> float:
        """Work of tracing and solving a stage: (`AT_LEAST` + ops) (`TRACED` + devices squared).

        Args:
            count: number of micro-batches.
            size: devices of the stage.
            at: places of the stage.
        """
        self.least(count, size)  # which counts the ops
        numbers = [slot.number for slot in self.planner.loss(count).chain.slots]
        loops = [numbers[place] for place in self.shares.places[at[0] : at[1]]]
        ops = dict(zip(loops, self._ops[count][slice(*at)], strict=True))  # rounds of a loop once
        return float(AT_LEAST + sum(ops.values())) * (TRACED + size**2)

    def is_proved(self, count: int, size: int, at: Run) -> bool:
        """Whether a solve without a limit of memory cannot raise the bound of a stage further."""
        return self._unproved(count, size, at) is None

    def _seen_s(self, stage: StageTrainingStep, name: str) -> float:
        """Most seconds of the ops that only keep a stage's outputs alive, which no price counts."""
        facts = self.planner.searched(stage, name).facts
        _, seen = ops_of(stage, facts.flat)
        compute = ComputeModel(self.planner.machine)
        found = least_each_s(facts, compute, 1, seen)
        return sum(facts.flat.ops[i].weight * seconds for i, seconds in found.items())

    def _price(self, count: int) -> None:
        n, whole = self.shares.count, cut_of(self.planner.loss(count), self.shares.places)
        readers = Counter(use for stage in whole.stages for use in stage.params)
        shared = [any(readers[use] > 1 for use in stage.params) for stage in whole.stages]
        units = {kind: self._units_of(count, kind) for kind in self.kinds}
        self._ops[count] = np.array([unit.ops for unit in units["none"]])
        empty = np.tril(np.ones((n, n), dtype=bool))
        sent = all_sent(whole, [unit.passes for unit in units["none"]])
        self._sent[count] = np.asarray(sent, dtype=np.bool_)
        for size in self.sizes:
            rows = {kind: _phases(each, size, shared) for kind, each in units.items()}
            kinds = dict[str, _OfKind]()
            for kind, row in rows.items():
                floor_s, once_s = _runs(row[:, 2]), _runs(row[:, 3])
                passes_s = np.where(empty, np.inf, floor_s)
                early_s = _runs(row[:, 4])
                early_s[:-1, 1:] += np.cumsum(sent * row[:, 5], axis=1)
                kinds[kind] = _OfKind(
                    passes_s, floor_s, np.where(empty, np.inf, early_s), early_s, _runs(row[:, 6]),
                    once_s, count * passes_s + once_s,
                )  # fmt: skip
            each = np.min([*rows.values()], axis=0)
            forward, micro, once, begun, inward, weight = (
                _runs(each[:, k]) for k in (0, 2, 3, 4, 5, 6)
            )
            rest = inward + weight
            weight[0] = rest[0]  # the first stage sends no gradients
            for runs in (forward, micro, once, begun, rest, weight):
                runs[empty] = np.inf
            back, inward = np.zeros((n, n)), np.zeros((n, n))
            back[:-1, 1:] = np.cumsum(sent * each[:, 1], axis=1)
            inward[:-1, 1:] = np.cumsum(sent * each[:, 5], axis=1)
            self._kinds[count, size] = kinds
            step_s = np.min([row.step_s for row in kinds.values()], axis=0)
            passes_s = np.min([row.passes_s for row in kinds.values()], axis=0)
            self._least[count, size] = Least(
                forward, forward + back, micro, micro + once, step_s, begun, rest, inward, weight,
                once, passes_s, np.min([row.sent_s for row in kinds.values()], axis=0),
            )  # fmt: skip

    def _units_of(self, count: int, kind: str) -> list[Unit]:
        """The runs between neighbouring places under a kind of recomputation."""
        loss, places = self.planner.loss(count), self.shares.places
        cut, found = cut_of(loss, places, (kind,) * (len(places) - 1)), list[Unit]()
        compute = ComputeModel(self.planner.machine)
        for k in range(len(places) - 1):
            stage, name = self.planner.told(loss, cut, k, ("between", k, kind))
            if (count, name) not in self._units:
                facts = self.planner.searched(stage, name).facts
                self._units[count, name] = unit_of(
                    stage, facts, compute, count, self.sizes, self._known
                )  # fmt: skip
            found.append(self._units[count, name])
        return found


def _raise(
    seconds: Floats, floor_s: Floats, at: Run, rows: Sequence[int], bound_s: float, border_s: float
) -> None:
    """Raises the bound of a run, and of those that contain it, by their ops outside of it.

    Args:
        seconds: bounds of all runs.
        floor_s: the same by ops alone.
        at: the run.
        rows: first places of the runs that contain it.
        bound_s: its bound [s].
        border_s: most that ops save at its borders [s].
    """
    i, j = at
    around = np.ix_(rows, range(j, seconds.shape[1]))
    more_s = floor_s[around] - floor_s[i, j] - border_s
    seconds[around] = np.maximum(seconds[around], bound_s + more_s)
    seconds[i, j] = max(seconds[i, j], bound_s)


def _phases(units: Sequence[Unit], size: int, shared: Sequence[bool]) -> Floats:
    """Least seconds of some runs, [run, phase].

    Args:
        units: the runs.
        size: devices.
        shared: whether others read parameters of a run too, so that only its forward pass counts.
    """
    rows = [unit.phases[size] for unit in units]
    return np.array([
        (row[0], 0.0, row[0], 0.0, row[0], 0.0, 0.0) if is_shared else row
        for row, is_shared in zip(rows, shared, strict=True)
    ])  # fmt: skip


def _runs(each: Floats) -> Floats:
    """Sums over all runs of neighbours, [first place, last place]."""
    sums = np.concatenate(((0.0,), np.cumsum(each)))
    return np.maximum(sums[None, :] - sums[:, None], 0.0)
