"""What a stage may compute again, and send to the host: programs, each made once in a search.

Divisions have many stages in common, and so have choices: a stage that computes the same values
again, with others on the host, is traced once, whatever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from ir import IRError, check, digest
from ir.trace import Traced

from ..sharding.plan_traced import program_for
from ..sharding.recompute.choices import choices
from ..sharding.recompute.frontier import SecondsOf, work_s
from ..sharding.recompute.node_seconds import host_copy_seconds, node_seconds
from ..sharding.recompute.saved import layers_of
from ..sharding.recompute.variants import kept_by, variant_of, with_values_on_host
from .alike_stages import NamedStage
from .cut.replaced import late_inputs, traced_joint, with_program
from .cut.stage_gradient import Joint
from .cut.stage_training_step import StageTrainingStep, training_step_of
from .stage_edits import StageEdits
from .stage_hosts import HostedWay, Recomputation, Waiting, hosted_ways, waiting_values
from .stage_planner import StagePlanner

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """A choice in a stage.

    edits: what is computed again, and what of the rest waits on the host.
    is_written: whether that is the stage as the program is written.
    stage: the stage with it, and the digest of its program.
    """

    edits: StageEdits
    is_written: bool
    stage: NamedStage


@dataclass
class _Read(Generic[T]):
    """What an iterator gives, kept as far as it was read."""

    rest: Iterator[T]
    made: list[T] = field(default_factory=list[T])

    def __iter__(self) -> Iterator[T]:
        yield from self.made
        for one in self.rest:
            self.made.append(one)
            yield one


@dataclass
class StageWork:
    """The choices of a stage that keeps everything, on some devices.

    step: the stage.
    count: number of micro-batches.
    size: devices.
    """

    planner: StagePlanner
    step: StageTrainingStep
    count: int
    size: int
    _ways: dict[int, list[HostedWay]] = field(default_factory=dict[int, "list[HostedWay]"])
    _hosted: dict[object, Choice | None] = field(default_factory=dict[object, "Choice | None"])

    @cached_property
    def works(self) -> list[Recomputation]:
        """What is computed again in distinct programs, the least work first."""
        traced = traced_joint(self.step.joint)
        late = self._late(traced)
        kept = kept_by(traced, late)
        layers = layers_of(kept.program, late)
        if not any(node.read for layer in layers for node in layer.nodes):
            return []
        seen, found = set[str](), list[tuple[float, int, Recomputation]]()
        for n, values in enumerate(choices(layers, self._seconds_of(kept))):
            variant = variant_of(kept, values, late)
            key = digest(variant.traced.graph)
            if key not in seen:
                seen.add(key)
                seconds = self._seconds_of(variant.traced)
                work = Recomputation(variant, seconds, work_s(variant.traced, seconds))
                found.append((work.work_s, n, work))
        return [work for _, _, work in sorted(found, key=lambda one: one[:2])]

    @cached_property
    def kept(self) -> _Read[Choice]:
        """The same as training steps, with the rest on the devices."""
        return _Read(self._kept())

    @cached_property
    def waiting(self) -> list[tuple[Recomputation, Sequence[Waiting]]]:
        """What of each may wait on the host."""
        return [(work, waiting_values(work, self.step.joint)) for work in self.works]

    @cached_property
    def held_bytes(self) -> int:
        """Bytes of parameters and their states, of all devices together."""
        types = self.step.traced.graph.types
        return sum(types[v].nbytes for v in (*self.step.params, *self.step.states))

    def ways(self, flight: int) -> list[HostedWay]:
        """Ways to have values on the host, the least seconds first."""
        if flight not in self._ways:
            copy_s = host_copy_seconds(self.planner.machine.subset(self.size))
            self._ways[flight] = hosted_ways(self.waiting, flight, copy_s)
        return self._ways[flight]

    def hosted(self, way: HostedWay) -> Choice | None:
        """A way to have values on the host as a training step; None if it cannot be one."""
        key = way.work.variant.rows, way.keys
        if key not in self._hosted:
            late = self._late(way.work.variant.traced)
            variant = with_values_on_host(way.work.variant, way.keys, late)
            edits = StageEdits(variant.rows or (), variant.hosted)
            self._hosted[key] = self._choice(variant.traced, edits)
        return self._hosted[key]

    def _late(self, traced: Traced) -> range:
        return late_inputs(self.step.joint, traced)

    def _kept(self) -> Iterator[Choice]:
        written = digest(traced_joint(self.step.joint).graph) if self.works else ""
        for work in self.works:
            again, edits = work.variant.traced, StageEdits(work.variant.rows or ())
            made = self._choice(again, edits, is_written=digest(again.graph) == written)
            if made is not None:
                yield made

    def _seconds_of(self, traced: Traced) -> SecondsOf:
        machine = self.planner.machine.subset(self.size)
        options = replace(self.planner.options, pins=(), forbidden=())
        return node_seconds(program_for(traced, options, machine).facts, machine)

    def _choice(
        self, traced: Traced, edits: StageEdits, *, is_written: bool = False
    ) -> Choice | None:
        optimizer = self.planner.training.optimizer
        step = _step_of(self.step.joint, traced, self.count, optimizer)
        return None if step is None else Choice(edits, is_written, step)


@dataclass
class StageWorks:
    """The choices of all stages of a search.

    known: those of a stage, by the number of micro-batches, its name and its devices.
    moved: choices of other stages that are alike, by their number, name, and that of the choice.
    """

    planner: StagePlanner
    known: dict[tuple[int, str, int], StageWork] = field(
        default_factory=dict[tuple[int, str, int], StageWork]
    )
    moved: dict[tuple[int, str, str], Choice] = field(
        default_factory=dict[tuple[int, str, str], Choice]
    )

    def of(self, stage: NamedStage, count: int, size: int) -> StageWork:
        """The choices of a stage that keeps everything.

        Args:
            stage: the first of all that are alike.
            count: number of micro-batches.
            size: devices.
        """
        key = count, stage[1], size
        if key not in self.known:
            self.planner.say("what stages compute again")
            self.known[key] = StageWork(self.planner, stage[0], count, size)
        return self.known[key]

    def in_stage(self, choice: Choice, own: NamedStage, count: int) -> Choice:
        """What is chosen in a stage, in another that is alike."""
        key = count, own[1], choice.stage[1]
        if key not in self.moved:
            joint, edits = own[0].joint, choice.edits
            optimizer = self.planner.training.optimizer
            step = _step_of(joint, edits.applied(joint, "a stage"), count, optimizer)
            assert step is not None
            self.moved[key] = replace(choice, stage=step)
        return self.moved[key]


def _step_of(joint: Joint, traced: Traced, count: int, optimizer: Any) -> NamedStage | None:
    """A stage with another program, as a training step; None if it cannot be one."""
    try:
        check(traced.graph, after="choosing what a stage computes again")
        step = training_step_of(with_program(joint, traced), count, optimizer)
    except IRError:
        return None
    return step, digest(step.traced.graph)
