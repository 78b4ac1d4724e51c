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
a stage that computes more takes less: all this is the least over the kinds of recomputation with
which a stage may fit (`unit_bytes.py`), also with values that wait on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel

from ..sharding.cost.least_seconds import border_s, least_each_s
from .cut.opened_loss import cut_of
from .cut.stage_training_step import StageTrainingStep
from .divide.run_costs import Shares
from .kind_floors import Bools, Floats, KindFloors, Run, kind_floors, phases_of, raise_bound
from .stage_planner import AMPLE, Ask, StagePlanner
from .stage_units import Unit, all_sent, borders_of, ops_of, unit_of
from .unit_bytes import UnitBytes, bytes_of, on_host

# Work of tracing an op beside that of solving it, the square of the stage's devices: 0.5 ms, and
# 0.3 ms on 2 devices (random steps of `benchmarks fuzz --pipelines`); and ops that take as long as
# what a stage takes whatever it is.
TRACED, AT_LEAST = 8, 100
ROUNDING = 1e-9  # of bytes that plans may have above the limit


@dataclass(frozen=True)
class LeastOfRuns:
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


_FIELDS = (
    "forward_s", "back_s", "floor_s", "step_s", "begun_s", "rest_s", "input_s", "weight_s",
    "once_s", "passes_s", "sent_s",
)  # fmt: skip


@dataclass
class StageFloors:
    """Lower bounds of all stages of a program.

    sizes: devices of the sub-meshes to choose from.
    kinds: kinds of recomputation to choose from, by layer or none; that of a whole stage only adds
        a forward pass.
    hosts: whether all that stages save may wait in the memory of the host.
    proved: (micro-batches, devices, kind) -> stages that were bounded by the solver.
    passed: the same of stages whose micro-batches were.
    """

    planner: StagePlanner
    shares: Shares
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    hosts: bool = False
    _units: dict[tuple[int, str], Unit] = field(default_factory=dict[tuple[int, str], "Unit"])
    _bytes: dict[tuple[int, str, bool], UnitBytes] = field(
        default_factory=dict[tuple[int, str, bool], UnitBytes]
    )
    _least: dict[tuple[int, int], dict[bytes, LeastOfRuns]] = field(
        default_factory=dict[tuple[int, int], "dict[bytes, LeastOfRuns]"]
    )
    _kinds: dict[tuple[int, int], dict[str, KindFloors]] = field(
        default_factory=dict[tuple[int, int], "dict[str, KindFloors]"]
    )
    _fits: dict[tuple[int, int, int, int], dict[str, Bools]] = field(
        default_factory=dict[tuple[int, int, int, int], "dict[str, Bools]"]
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
    _done: dict[tuple[int, int], dict[tuple[Run, int, int], bool]] = field(
        default_factory=dict[tuple[int, int], dict[tuple[Run, int, int], bool]]
    )
    _alone_s: dict[object, float] = field(default_factory=dict[object, float])

    def with_hosts(self) -> StageFloors:
        """The same of stages with values on the host; what is proved of either holds for both."""
        kinds = {
            key: {kind: row.on_host() for kind, row in rows.items() if kind != "stage"}
            for key, rows in self._kinds.items()
        }
        return replace(self, hosts=True, _kinds=kinds, _fits={}, _done={})

    @cached_property
    def distinct(self) -> int:
        """Runs between neighbouring places that differ."""
        return len({self.shares.alike((k, k + 1))[0] for k in range(self.shares.count - 1)})

    def least(self, count: int, size: int, flight: int = 1, chunks: int = 1) -> LeastOfRuns:
        """Bounds for `count` micro-batches on `size` devices.

        Args:
            count: number of micro-batches.
            size: devices of a stage.
            flight: micro-batches in flight at least.
            chunks: stages on its devices, which share their memory evenly.

        Raises:
            IndivisibleError: if the loss cannot be divided so.
        """
        rows, fits = self._of_kinds(count, size), self._fitting(count, size, flight, chunks)
        known = self._least.setdefault((count, size), {})
        key = b"".join(each.tobytes() for each in fits.values())
        if key not in known:
            each = [(rows[kind], fits[kind]) for kind in rows]
            found = (
                np.min([np.where(fit, getattr(row, name), np.inf) for row, fit in each], axis=0)
                for name in _FIELDS
            )
            forward, back, micro, step, begun, rest, inward, weight, once, passes, sent = found
            known[key] = LeastOfRuns(
                forward, forward + back, micro, micro + once, step, begun, rest, inward, weight,
                once, passes, sent,
            )  # fmt: skip
        return known[key]

    def of_kind(
        self, count: int, size: int, kind: str, flight: int, chunks: int
    ) -> tuple[KindFloors, Bools]:
        """Bounds under a kind of recomputation, and where these fit; arguments as of `least`."""
        return (
            self._of_kinds(count, size)[kind], self._fitting(count, size, flight, chunks)[kind],
        )  # fmt: skip

    def _of_kinds(self, count: int, size: int) -> dict[str, KindFloors]:
        """Floors of each kind; that of a whole stage is the last."""
        if (count, size) not in self._kinds:
            self._price(count)
        rows = self._kinds[count, size]
        if "stage" not in rows:
            rows["stage"] = rows["none"].again(count)
        return rows

    def _fitting(self, count: int, size: int, flight: int, chunks: int) -> dict[str, Bools]:
        """For each kind, the runs that may fit."""
        key = count, size, flight, chunks
        if key not in self._fits:
            room = self.planner.limit_bytes * (1 + ROUNDING) * size / chunks
            empty = np.tril(np.ones((self.shares.count, self.shares.count), dtype=np.bool_))
            self._fits[key] = {
                kind: (row.needed_bytes(flight) <= room) & ~empty
                for kind, row in self._of_kinds(count, size).items()
            }  # fmt: skip
        return self._fits[key]

    def _rose(self, count: int, size: int) -> None:
        """Forgets what follows from bounds that have risen."""
        self._least.pop((count, size), None)
        self._kinds[count, size].pop("stage", None)

    def of_kind_s(self, count: int, size: int, run: Run, kind: str) -> float:
        """Least seconds of a stage under a kind of recomputation, all micro-batches and update."""
        return float(self._of_kinds(count, size)[kind].step_s[run])

    def prove(self, count: int, size: int, at: Run, flight: int = 1, chunks: int = 1) -> None:
        """Bounds a stage without a limit of memory, and raises its bound and that of equal ones.

        That is done under the kind of recomputation with the least bound of those that may fit. The
        bounds of stages that contain it rise too: their other ops take time of their own, but for
        what they save at its borders. Arguments as of `least`, and places of the stage.
        """
        kind = self._unproved(count, size, at, flight, chunks)
        if kind is None:
            return
        run = self.shares.alike(at)[0]
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
        self._rose(count, size)

    def prove_passes(
        self, count: int, size: int, at: Run, flight: int = 1, chunks: int = 1
    ) -> None:
        """Raises the bound of a micro-batch of a stage, and those of stages like it.

        That is done under the kind of recomputation with the least bound of those that may fit, of
        the rounds of its loop over layers, if it has one. With k rounds, the best one takes

            T(k)  =  min over plans x of  k b(x) + e(x)

        which is concave in k, and no less than 0 at 0: the run with the most rounds, n, is solved,
        and T(k) >= k / n T(n). Ops outside take time of their own, but for what they save at the
        borders. The backward pass of a loop comes before gradients are sent back, where they are:
        then the bound is one of that, and the rest of it takes time of its own.
        """
        kind = self._unpassed(count, size, at, flight, chunks)
        if kind is None:
            return
        core = self.shares.core(at)
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
                    raise_bound(own.sent_s, own.early_s, (i, j), rows, bound_s, border_s)
                passes_s = bound_s + (own.late_s[i, j] if is_sent else 0.0)
                raise_bound(
                    own.passes_s, own.floor_s, (i, j), range(i + 1), passes_s, border_s
                )  # fmt: skip
        np.maximum(own.step_s, count * own.passes_s + own.once_s, out=own.step_s)
        self._rose(count, size)

    def is_passed(self, count: int, size: int, at: Run, flight: int = 1, chunks: int = 1) -> bool:
        """Whether `prove_passes` cannot raise the bound of a stage further."""
        done, key = self._done.setdefault((count, size), {}), (at, flight, chunks)
        if key not in done:
            done[key] = self._unpassed(count, size, at, flight, chunks) is None
        return done[key]

    def _unpassed(self, count: int, size: int, at: Run, flight: int, chunks: int) -> str | None:
        """The kind with the least bound of a micro-batch, unless it was solved under it."""
        kind = self._least_kind(count, size, at, flight, chunks, "passes_s")
        is_passed = self.shares.core(at) in self.passed.get((count, size, kind), ())
        return None if is_passed or not kind else kind

    def _least_kind(
        self, count: int, size: int, at: Run, flight: int, chunks: int, name: str
    ) -> str:
        """The kind of recomputation by layer with the least bound, of those that may fit.

        Empty if there is none. What computes a whole stage again has the bounds of none.
        """
        rows, fits = self._of_kinds(count, size), self._fitting(count, size, flight, chunks)
        able = [kind for kind in rows if fits[kind][at]]
        kind = min(able, key=lambda kind: float(getattr(rows[kind], name)[at]), default="")
        return "none" if kind == "stage" else kind

    def _passes_s(
        self, count: int, size: int, run: Run, kind: str, *, is_sent: bool
    ) -> tuple[float, float]:
        """Lower bound of a micro-batch of a stage, and what its borders may save [s]."""
        s, stage, name = self._alone(count, run, kind)
        ask = Ask(s, size, AMPLE)
        bound_s = self.planner.least_passes_s(stage, name, ask, is_sent=is_sent) / count
        return bound_s, self._border_s(stage, name) / count

    def _unproved(self, count: int, size: int, at: Run, flight: int, chunks: int) -> str | None:
        """The kind with the least bound of a stage, unless the stage was solved under it."""
        kind = self._least_kind(count, size, at, flight, chunks, "step_s")
        is_proved = self.shares.alike(at)[0] in self.proved.get((count, size, kind), ())
        return None if is_proved or not kind else kind

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
        self._of_kinds(count, size)  # which counts the ops
        numbers = [slot.number for slot in self.planner.loss(count).chain.slots]
        loops = [numbers[place] for place in self.shares.places[at[0] : at[1]]]
        ops = dict(zip(loops, self._ops[count][slice(*at)], strict=True))  # rounds of a loop once
        return float(AT_LEAST + sum(ops.values())) * (TRACED + size**2)

    def is_proved(self, count: int, size: int, at: Run, flight: int = 1, chunks: int = 1) -> bool:
        """Whether a solve without a limit of memory cannot raise the bound of a stage further."""
        return self._unproved(count, size, at, flight, chunks) is None

    def _seen_s(self, stage: StageTrainingStep, name: str) -> float:
        """Most seconds of the ops that only keep a stage's outputs alive, which no price counts."""
        facts = self.planner.searched(stage, name).facts
        _, seen = ops_of(stage, facts.flat)
        compute = ComputeModel(self.planner.machine)
        found = least_each_s(facts, compute, 1, seen)
        return sum(facts.flat.ops[i].weight * seconds for i, seconds in found.items())

    def _price(self, count: int) -> None:
        whole = cut_of(self.planner.loss(count), self.shares.places)
        readers = Counter(use for stage in whole.stages for use in stage.params)
        shared = [any(readers[use] > 1 for use in stage.params) for stage in whole.stages]
        units = {kind: self._units_of(count, kind, shared) for kind in self.kinds}
        self._ops[count] = np.array([unit.ops for unit in units["none"][0]])
        sent = all_sent(whole, [unit.passes for unit in units["none"][0]])
        self._sent[count] = np.asarray(sent, dtype=np.bool_)
        for size in self.sizes:
            rows = {kind: phases_of(each, shared, size) for kind, (each, _) in units.items()}
            least = np.min([*rows.values()], axis=0)
            self._kinds[count, size] = {
                kind: kind_floors(each, least, units[kind][1], self._sent[count], count)
                for kind, each in rows.items()
            }

    def _units_of(
        self, count: int, kind: str, shared: Sequence[bool]
    ) -> tuple[list[Unit], list[UnitBytes]]:
        """The runs between neighbouring places under a kind of recomputation, and their bytes."""
        loss, places = self.planner.loss(count), self.shares.places
        cut, found = cut_of(loss, places, (kind,) * (len(places) - 1)), list[Unit]()
        compute, held = ComputeModel(self.planner.machine), list[UnitBytes]()
        for k, is_shared in enumerate(shared):
            stage, name = self.planner.told(loss, cut, k, ("between", k, kind))
            if (count, name) not in self._units:
                facts = self.planner.searched(stage, name).facts
                self._units[count, name] = unit_of(
                    stage, facts, compute, count, self.sizes, self._known
                )  # fmt: skip
            found.append(self._units[count, name])
            key = count, name, is_shared
            if key not in self._bytes:
                facts = self.planner.searched(stage, name).facts
                self._bytes[key] = bytes_of(stage, facts, is_shared=is_shared)
            own = self._bytes[key]
            held.append(on_host(own) if self.hosts else own)
        return found, held
