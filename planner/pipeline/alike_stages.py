"""Stages that differ in the places of slices alone: one is planned, and its plan serves all.

Layers that take their entries from one array, such as keys of dropout that are split before a loop,
are the same program but for the numbers at which slices begin and end. Strategies and prices do not
depend on these, so that decisions of one hold for the other, op by op.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import structs

from ir import Graph

from ..sharding.planned_program import PlannedProgram
from .cut.opened_loss import Opened
from .cut.outline import anywhere
from .cut.stage import Staged
from .cut.stage_training_step import StageTrainingStep

NamedStage = tuple[StageTrainingStep, str]  # with the digest of its program


@dataclass
class AlikeStages:
    """The first of all stages that are alike, and its plans in terms of the others.

    firsts: the first stages and the digests of their programs.
    moved: plans, by their number and the digest of another stage's program; the plan is kept, so
        that its number stays its own.
    """

    firsts: dict[tuple[object, ...], list[NamedStage]] = field(
        default_factory=dict[tuple[object, ...], "list[NamedStage]"]
    )
    moved: dict[tuple[int, str], tuple[PlannedProgram, PlannedProgram]] = field(
        default_factory=dict[tuple[int, str], "tuple[PlannedProgram, PlannedProgram]"]
    )

    def first(self, loss: Opened, cut: Staged, s: int, own: NamedStage) -> NamedStage:
        """The stage that is planned in place of one.

        Args:
            loss: the loss.
            cut: its stages.
            s: index of the stage.
            own: the stage, and the digest of its program.
        """
        rows, *rest = cut.outline(s)
        seen = self.firsts.setdefault((loss.microbatches, anywhere(rows), *rest), [])
        graph = own[0].traced.graph
        for other in seen:
            if other[1] == own[1] or is_alike(other[0].traced.graph, graph):
                return other
        seen.append(own)
        return own

    def planned(self, plan: PlannedProgram, own: NamedStage) -> PlannedProgram:
        """The plan of a first stage, as one of another that is alike.

        Args:
            plan: the plan.
            own: the other stage, and the digest of its program.
        """
        traced, name = own[0].traced, own[1]
        if plan.program.graph_digest == name:
            return plan
        key = id(plan), name
        if key not in self.moved:
            program = structs.replace(plan.program, graph_digest=name, graph=traced.text)
            self.moved[key] = plan, replace(plan, program=program, traced=traced)
        return self.moved[key][1]


def is_alike(a: Graph, b: Graph) -> bool:
    """Whether two programs of one outline have the same ops on the same values."""
    if (a.inputs, a.outputs, len(a.nodes)) != (b.inputs, b.outputs, len(b.nodes)):
        return False
    return all(
        (m.op, m.inputs, m.outputs, len(m.bodies)) == (n.op, n.inputs, n.outputs, len(n.bodies))
        and all(map(is_alike, m.bodies, n.bodies))
        for m, n in zip(a.nodes, b.nodes, strict=True)
    )
