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
of it, whatever it computes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel
from ir.analysis import FlatProgram

from ..common.errors import PlanError
from ..sharding.cost.least_seconds import least_each_s, least_inside_s
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
# Seconds of a run's forward pass, of its input gradient, of all of a micro-batch, and once a step.
Phases = tuple[float, float, float, float]


@dataclass(frozen=True)
class Least:
    """Least seconds of every run of slots as a stage, shape [first place, last place].

    forward_s: forward pass of one micro-batch.
    both_s: forward pass and input gradient of one micro-batch.
    micro_s: forward and backward of one micro-batch.
    one_s: one micro-batch, and what is done once a step.
    step_s: all micro-batches, and what is done once a step.
    """

    forward_s: Floats
    both_s: Floats
    micro_s: Floats
    one_s: Floats
    step_s: Floats


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
    """

    planner: StagePlanner
    shares: Shares
    sizes: tuple[int, ...]
    _units: dict[tuple[int, str], Unit] = field(default_factory=dict[tuple[int, str], "Unit"])
    _least: dict[tuple[int, int], Least] = field(default_factory=dict[tuple[int, int], Least])
    _ops: dict[int, Floats] = field(default_factory=dict[int, Floats])
    proved: dict[tuple[int, int], dict[Run, float]] = field(
        default_factory=dict[tuple[int, int], dict[Run, float]]
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

    def prove(self, count: int, size: int, at: Run) -> None:
        """Solves a stage without a limit of memory, and raises its bound and that of equal ones."""
        loss, run = self.planner.loss(count), self.shares.alike(at)[0]
        low, high = (self.shares.places[k] for k in run)
        cuts = tuple(dict.fromkeys((0, low, high, len(loss.chain.slots))))
        s = cuts.index(low)
        stage, name = self.planner.training_step(
            loss, cut_of(loss, cuts), s, (low, high), "none"
        )  # fmt: skip
        found = self.planner.planned_within(
            count, stage, name, Ask(s, size, AMPLE, effort=THOROUGH)
        )
        if isinstance(found, PlanError):
            raise found
        bound_s = found[0].lower_bound_s - self._seen_s(stage, name)
        least = self.least(count, size)
        self.proved.setdefault((count, size), {})[run] = bound_s
        for same in self.shares.alike(at):
            least.step_s[same] = max(least.step_s[same], bound_s)

    def work(self, count: int, size: int, at: Run) -> float:
        """Work of tracing and solving a stage: (`AT_LEAST` + ops) (`TRACED` + devices squared).

        Args:
            count: number of micro-batches.
            size: devices of the stage.
            at: places of the stage.
        """
        self.least(count, size)  # which counts the ops
        ops = self._ops[count]
        return float(AT_LEAST + ops[at[1]] - ops[at[0]]) * (TRACED + size**2)

    def is_proved(self, count: int, size: int, at: Run) -> bool:
        """Whether a stage, or an equal one, was solved without a limit of memory."""
        return self.shares.alike(at)[0] in self.proved.get((count, size), {})

    def _seen_s(self, stage: StageTrainingStep, name: str) -> float:
        """Most seconds of the ops that only keep a stage's outputs alive, which no price counts."""
        facts = self.planner.searched(stage, name).facts
        _, seen = _ops(stage, facts.flat)
        compute = ComputeModel(self.planner.machine)
        found = least_each_s(facts, compute, 1, seen)
        return sum(facts.flat.ops[i].weight * seconds for i, seconds in found.items())

    def _price(self, count: int) -> None:
        loss, n = self.planner.loss(count), self.shares.count
        cut = cut_of(loss, self.shares.places)
        readers = Counter(use for stage in cut.stages for use in stage.params)
        rows: list[dict[int, Phases]] = []
        units: list[Unit] = []
        for k in range(n - 1):
            ends = self.shares.places[k : k + 2]
            stage, name = self.planner.training_step(loss, cut, k, ends, "none")
            if (count, name) not in self._units:
                self._units[count, name] = self._unit(stage, name, count)
            units.append(self._units[count, name])
            row = units[-1].phases
            if any(readers[use] > 1 for use in cut.stages[k].params):
                row = {d: (forward, 0.0, forward, 0.0) for d, (forward, *_) in row.items()}
            rows.append(row)
        self._ops[count] = np.cumsum([0, *(unit.ops for unit in units)])
        empty = np.tril(np.ones((n, n), dtype=bool))
        sent = _all_sent(cut, [unit.passes for unit in units])
        for size in self.sizes:
            each = np.array([row[size] for row in rows])
            sums = np.concatenate((np.zeros((1, 4)), np.cumsum(each, axis=0)))
            runs = np.maximum(sums[None, :, :] - sums[:, None, :], 0.0)
            runs[empty] = np.inf
            forward, _, micro, once = (runs[..., k] for k in range(4))
            back = np.zeros((n, n))
            back[:-1, 1:] = np.cumsum(sent * each[:, 1], axis=1)
            self._least[count, size] = Least(
                forward, forward + back, micro, micro + once, count * micro + once
            )

    def _unit(self, stage: StageTrainingStep, name: str, count: int) -> Unit:
        """A run between neighbouring places."""
        facts, program = self.planner.searched(stage, name).facts, stage.program
        flat, inside, graph = facts.flat, (stage.loop, 0), program.program.graph
        own, seen = _ops(stage, flat)
        gives = program.parts.forward.makes[: len(program.stage.gives)]
        slopes = program.parts.input_gradient.makes[: len(program.outgoing)]
        forward = nodes_behind(graph, graph.maker, gives)
        back = nodes_behind(graph, graph.maker, slopes) - forward
        taken = (flat.names.get((inside, v)) for kind in ("takes", "slopes")
                 for v in program.args[kind])  # fmt: skip
        borders = {v for v in taken if v is not None}
        borders.update(v for i in seen for v in flat.ops[i].reads)
        compute, found = ComputeModel(self.planner.machine), dict[int, Phases]()
        for size in self.sizes:
            sums = [0.0, 0.0, 0.0, 0.0]
            least = least_inside_s(facts, compute, size, own, borders)
            for i, seconds in least.items():
                op = flat.ops[i]
                if op.place[:2] != inside:
                    sums[3] += seconds * op.weight
                    continue
                each = seconds * op.weight / count
                sums[2] += each
                sums[1] += each * (op.place[2] in back)
                sums[0] += each * (op.place[2] in forward)
            found[size] = (sums[0], sums[1], sums[2], sums[3])
        after = [values_after(graph, (v,)) for v in program.args["slopes"]]
        passes = tuple(tuple(o in values for values in after) for o in slopes)
        return Unit(len(flat.ops), found, passes)


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
