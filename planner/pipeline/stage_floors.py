# pyright: basic
"""Lower bounds of the seconds of stages, from the work of their ops and from solves without limits.

A stage of slots i to j takes at least the seconds of the runs between places that it consists of,

    T(i, j)  >=  sum over k of  T(k, k + 1)

each op split in its own best way over the devices of the stage or a part of them, with nothing paid
for values that enter or leave a run, since ops on both sides of a place may be fused. Parameters
that several runs read count in the forward pass alone: their gradients may be summed at once. The
forward pass has the ops that a run's results depend on; before its gradients are sent back, those
run too that they depend on, in the runs of which all gradients lead to values from before the
stage. A stage also takes at least what the solver proves for it as if a device had memory for all
of it. Where it takes longer to store a value than to make it twice, a stage that computes more
takes less: all this is the least over the kinds of recomputation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel
from ir.analysis import FlatProgram

from ..common.errors import PlanError
from ..sharding.cost.least_seconds import border_s, least_each_s, least_inside_s
from .cut.equations import is_float
from .cut.forward_backward import nodes_behind, values_after
from .cut.opened_loss import cut_of
from .cut.stage import Staged
from .cut.stage_training_step import StageTrainingStep
from .divide.run_costs import Shares
from .stage_planner import AMPLE, THOROUGH, Ask, StagePlanner

Floats = NDArray[np.float64]
# Work of tracing an op beside that of solving it, the square of the stage's devices: 0.5 ms, and
# 0.3 ms on 2 devices (random steps of `benchmarks fuzz --pipelines`); and ops that take as long as
# what a stage takes whatever it is.
TRACED, AT_LEAST = 8, 100
Run = tuple[int, int]
# Seconds of a run's forward pass, of its input gradient, of all of a micro-batch, and once a step;
# of its forward program, which may do more than its results need, and of those of both gradients.
Phases = tuple[float, float, float, float, float, float, float]


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


@dataclass(frozen=True)
class Unit:
    """A run between neighbouring places.

    ops: number of its ops.
    phases: devices -> its least seconds.
    passes: for each gradient that it sends and each that comes in, whether one depends on the
        other.
    """

    ops: int
    phases: dict[int, Phases]
    passes: tuple[tuple[bool, ...], ...]


@dataclass
class StageFloors:
    """Lower bounds of all stages of a program.

    sizes: devices of the sub-meshes to choose from.
    kinds: kinds of recomputation to choose from, by layer or none; that of a whole stage only adds
        a forward pass.
    proved: (micro-batches, devices, kind) -> bounds of stages that were solved.
    """

    planner: StagePlanner
    shares: Shares
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    _units: dict[tuple[int, str], Unit] = field(default_factory=dict[tuple[int, str], "Unit"])
    _least: dict[tuple[int, int], Least] = field(default_factory=dict[tuple[int, int], Least])
    _steps: dict[tuple[int, int], dict[str, Floats]] = field(
        default_factory=dict[tuple[int, int], "dict[str, Floats]"]
    )
    _ops: dict[int, Floats] = field(default_factory=dict[int, Floats])
    _known: dict[object, tuple[float, ...]] = field(
        default_factory=dict[object, "tuple[float, ...]"]
    )
    proved: dict[tuple[int, int, str], dict[Run, float]] = field(
        default_factory=dict[tuple[int, int, str], dict[Run, float]]
    )

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
        return float(self._steps[count, size][kind][run])

    def prove(self, count: int, size: int, at: Run) -> None:
        """Solves a stage without a limit of memory, and raises its bound and that of equal ones.

        That is done under the kind of recomputation with the least bound of those not solved. The
        bounds of stages that contain it rise too: their other ops take time of their own, but for
        what they save at its borders.
        """
        least, run = self.least(count, size), self.shares.alike(at)[0]
        steps = self._steps[count, size]
        kind = self._unproved(count, size, run)
        if kind is None:
            return
        bound_s, border_s = self._proof_s(count, size, run, kind)
        self.proved.setdefault((count, size, kind), {})[run] = bound_s
        for i, j in self.shares.alike(at):
            around = steps[kind][: i + 1, j:]
            np.maximum(around, bound_s - border_s, out=around)
            steps[kind][i, j] = max(steps[kind][i, j], bound_s)
        np.min([*steps.values()], axis=0, out=least.step_s)

    def _unproved(self, count: int, size: int, run: Run) -> str | None:
        """The kind with the least bound of a stage, unless the stage was solved under it."""
        steps = self._steps[count, size]
        kind = min(self.kinds, key=lambda kind: float(steps[kind][run]))
        return None if run in self.proved.get((count, size, kind), {}) else kind

    def _proof_s(self, count: int, size: int, run: Run, kind: str) -> tuple[float, float]:
        """Lower bound of a stage under a kind of recomputation, by the solver [s].

        Also the most that it would save as a part of a larger stage, with its borders inside.
        """
        loss = self.planner.loss(count)
        low, high = (self.shares.places[k] for k in run)
        cuts = tuple(dict.fromkeys((0, low, high, len(loss.chain.slots))))
        s = cuts.index(low)
        kinds = tuple(kind if r == s else "none" for r in range(len(cuts) - 1))
        stage, name = self.planner.training_step(
            loss, cut_of(loss, cuts, kinds), s, (low, high), kind
        )  # fmt: skip
        found = self.planner.planned_within(
            count, stage, name, Ask(s, size, AMPLE, effort=THOROUGH)
        )
        if isinstance(found, PlanError):
            raise found
        return found[0].lower_bound_s - self._seen_s(stage, name), self._border_s(stage, name)

    def _border_s(self, stage: StageTrainingStep, name: str) -> float:
        """Most seconds that the ops of a stage save where what it takes and gives is fused."""
        facts = self.planner.searched(stage, name).facts
        own, _ = _ops(stage, facts.flat)
        return border_s(facts, ComputeModel(self.planner.machine), own, _borders(stage, facts.flat))

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
        self.least(count, size)
        return self._unproved(count, size, self.shares.alike(at)[0]) is None

    def _seen_s(self, stage: StageTrainingStep, name: str) -> float:
        """Most seconds of the ops that only keep a stage's outputs alive, which no price counts."""
        facts = self.planner.searched(stage, name).facts
        _, seen = _ops(stage, facts.flat)
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
        sent = _all_sent(whole, [unit.passes for unit in units["none"]])
        for size in self.sizes:
            rows = {kind: _phases(each, size, shared) for kind, each in units.items()}
            steps = dict[str, Floats]()
            for kind, row in rows.items():
                sums = _runs(row[:, 2] * count + row[:, 3])
                sums[empty] = np.inf
                steps[kind] = sums
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
            self._steps[count, size] = steps
            self._least[count, size] = Least(
                forward, forward + back, micro, micro + once, np.min([*steps.values()], axis=0),
                begun, rest, inward, weight, once,
            )  # fmt: skip

    def _units_of(self, count: int, kind: str) -> list[Unit]:
        """The runs between neighbouring places under a kind of recomputation."""
        loss, places = self.planner.loss(count), self.shares.places
        cut, found = cut_of(loss, places, (kind,) * (len(places) - 1)), list[Unit]()
        for k in range(len(places) - 1):
            stage, name = self.planner.training_step(loss, cut, k, places[k : k + 2], kind)
            if (count, name) not in self._units:
                self._units[count, name] = self._unit(stage, name, count)
            found.append(self._units[count, name])
        return found

    def _unit(self, stage: StageTrainingStep, name: str, count: int) -> Unit:
        """A run between neighbouring places."""
        facts, program = self.planner.searched(stage, name).facts, stage.program
        flat, inside, graph = facts.flat, (stage.loop, 0), program.program.graph
        own, _ = _ops(stage, flat)
        gives = program.parts.forward.makes[: len(program.stage.gives)]
        slopes = program.parts.input_gradient.makes[: len(program.outgoing)]
        forward, parts = nodes_behind(graph, graph.maker, gives), program.parts
        programs = [
            {*part.nodes} for part in (parts.forward, parts.input_gradient, parts.weight_gradient)
        ]
        back = nodes_behind(graph, graph.maker, slopes) - forward
        borders = _borders(stage, flat)
        compute, sums = ComputeModel(self.planner.machine), np.zeros((7, len(self.sizes)))
        least = least_inside_s(facts, compute, self.sizes, own, borders, self._known)
        for i, seconds in least.items():
            op = flat.ops[i]
            if op.place[:2] != inside:
                sums[3] += np.array(seconds) * op.weight
                continue
            each = np.array(seconds) * op.weight / count
            sums[2] += each
            sums[1] += each * (op.place[2] in back)
            sums[0] += each * (op.place[2] in forward)
            sums[4 + next(k for k in range(3) if op.place[2] in programs[k])] += each
        found = {
            size: cast("Phases", tuple(each))
            for size, each in zip(self.sizes, sums.T.tolist(), strict=True)
        }
        after = [values_after(graph, (v,)) for v in program.args["slopes"]]
        passes = tuple(tuple(o in values for values in after) for o in slopes)
        return Unit(len(flat.ops), found, passes)


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


def _all_sent(cut: Staged, passes: Sequence[tuple[tuple[bool, ...], ...]]) -> NDArray[np.bool_]:
    """Whether all gradients of a run lead to values from before a stage, [first run, run].

    Args:
        cut: the program, cut at every place.
        passes: of every run, as of `Unit`.
    """
    n = len(cut.stages)
    found = np.zeros((n, n), dtype=bool)
    makers = {key: k for k, stage in enumerate(cut.stages) for key in stage.gives}
    takes = [[key for key in stage.takes if is_float(cut.structs[key])] for stage in cut.stages]
    gives = [
        [key for key in stage.gives if is_float(cut.structs[key]) for _ in cut.readers(key)]
        for stage in cut.stages
    ]  # fmt: skip
    for first in range(1, n):
        leading = {key for key, k in makers.items() if k < first}
        for k in range(first, n):
            own = [key in leading for key in takes[k]]
            found[first, k] = bool(own) and all(own)
            for j, key in enumerate(gives[k]):
                if any(leads and row[j] for leads, row in zip(own, passes[k], strict=True)):
                    leading.add(key)
    return found


def _borders(stage: StageTrainingStep, flat: FlatProgram) -> set[int]:
    """Flat values that a stage takes from others, or gives to them."""
    inside, (_, seen) = (stage.loop, 0), _ops(stage, flat)
    taken = (flat.names.get((inside, v)) for kind in ("takes", "slopes")
             for v in stage.program.args[kind])  # fmt: skip
    found = {v for v in taken if v is not None}
    found.update(v for i in seen for v in flat.ops[i].reads)
    return found


def _ops(stage: StageTrainingStep, flat: FlatProgram) -> tuple[list[int], list[int]]:
    """Flat numbers of the ops of a stage, and of those that only keep its outputs alive."""
    parts = stage.program.parts
    nodes = {*parts.forward.nodes, *parts.input_gradient.nodes, *parts.weight_gradient.nodes}
    inside = (stage.loop, 0)
    own: list[int] = []
    seen: list[int] = []
    for i, op in enumerate(flat.ops):
        (own if op.place[:2] != inside or op.place[2] in nodes else seen).append(i)
    return own, seen
