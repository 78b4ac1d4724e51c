# pyright: basic
"""The decisions of a stage's plan, in terms of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel import ReshardModel
from ir import Literal, Sharding, replicated
from ir.analysis import Decisions, ValueKey

from .stage_training_step import StageTrainingStep


@dataclass(frozen=True)
class Solved:
    """The decisions of a stage's plan.

    decisions: those of the program of one micro-batch.
    params: shardings of the parameters between steps, in the stage's order.
    states: shardings of the optimizer's state, by shape.
    """

    decisions: Decisions
    reshard: ReshardModel
    params: tuple[Sharding, ...]
    states: dict[tuple[int, ...], Sharding]


def finished(state: Sharding) -> Sharding:
    """The sharding with no axis partial."""
    return replace(state, partial=()) if state.partial else state


def solved_of(stage: StageTrainingStep, decisions: Decisions, reshard: ReshardModel) -> Solved:
    """Splits the decisions of a stage's training step into micro-batch and state between steps."""
    inside = (stage.loop, 0)
    values: dict[ValueKey, Sharding] = {
        (prefix[2:], v): state
        for (prefix, v), state in decisions.values.items()
        if prefix[:2] == inside
    }
    ops = {at[2:]: roles for at, roles in decisions.ops.items() if at[:2] == inside}
    graph = stage.body.graph
    keep = {*stage.program.args["sums"]}
    for v, item in enumerate(graph.inputs):
        state = values.get(((), v), replicated(item.type.rank))
        values[(), v] = state if v in keep else finished(state)
    for name in ("params", "batch", "takes", "slopes"):
        values.update(
            {((), v): decisions.inputs[-1 - v] for v in stage.program.args[name] if v < 0}
        )
    body = Decisions(
        decisions.mesh, ops, values, tuple(values[(), v] for v in range(len(graph.inputs))),
        tuple(_output(values, o) for o in graph.outputs),
        frozenset(
            site._replace(place=site.place[2:])
            for site in decisions.in_parts
            if site.place[:2] == inside
        ),
        {
            site._replace(place=site.place[2:]): count
            for site, count in decisions.chunks.items()
            if site.place[:2] == inside
        },
    )  # fmt: skip
    states: dict[tuple[int, ...], Sharding] = {}
    for v in stage.states:
        states.setdefault(stage.traced.graph.types[v].shape, decisions.inputs[v])
    return Solved(body, reshard, tuple(decisions.inputs[v] for v in stage.params), states)


def _output(values: dict[ValueKey, Sharding], o: int | Literal) -> Sharding:
    if isinstance(o, Literal):
        return Sharding(())
    return values.get(((), o), replicated(0))
