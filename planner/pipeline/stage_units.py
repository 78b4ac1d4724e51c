"""Least seconds of the ops of a run between neighbouring places, by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel
from ir import lookup
from ir.analysis import FlatProgram, Place

from ..sharding.cost.least_seconds import least_inside_s
from ..sharding.problem.facts import Facts
from .cut.equations import is_float
from .cut.forward_backward import nodes_behind, values_after
from .cut.stage import Staged
from .cut.stage_training_step import StageTrainingStep
from .divide.stage_price import PRODUCTS

# Seconds of a run's forward pass, of its input gradient, of all of a micro-batch, and once a step;
# of its forward program, which may do more than its results need, and of those of both gradients.
Phases = tuple[float, float, float, float, float, float, float]


@dataclass(frozen=True)
class Unit:
    """A run between neighbouring places.

    ops: number of its ops.
    phases: devices -> its least seconds.
    shared: the same where other runs read parameters of it too: their gradients may be summed at
        once, and the sum be updated there, so that of what its input gradient does not need only
        products count.
    passes: for each gradient that it sends and each that comes in, whether one depends on the
        other.
    """

    ops: int
    phases: dict[int, Phases]
    shared: dict[int, Phases]
    passes: tuple[tuple[bool, ...], ...]


def unit_of(
    stage: StageTrainingStep, facts: Facts, compute: ComputeModel, count: int,
    sizes: Sequence[int], known: dict[object, tuple[float, ...]],
) -> Unit:  # fmt: skip
    """Bounds of a run between neighbouring places.

    Args:
        stage: the run as a stage.
        facts: facts of its program.
        compute: prices of ops on a device.
        count: number of micro-batches.
        sizes: devices of the sub-meshes to choose from.
        known: seconds of equal ops, of earlier calls.
    """
    program = stage.program
    flat, inside, graph = facts.flat, (stage.loop, 0), program.program.graph
    own, _ = ops_of(stage, flat)
    gives = program.parts.forward.makes[: len(program.stage.gives)]
    slopes = program.parts.input_gradient.makes[: len(program.outgoing)]
    forward, parts = nodes_behind(graph, graph.maker, gives), program.parts
    programs = [
        {*part.nodes} for part in (parts.forward, parts.input_gradient, parts.weight_gradient)
    ]
    back = nodes_behind(graph, graph.maker, slopes) - forward
    needed = forward | back
    borders = borders_of(stage, flat)
    sums, shared = np.zeros((7, len(sizes))), np.zeros((7, len(sizes)))
    least = least_inside_s(facts, compute, sizes, own, borders, known)
    for i, seconds in least.items():
        op = flat.ops[i]
        if op.place[:2] != inside:
            # stages share counters of steps, and what follows from them
            is_scalar = not any(flat.values[v].type.rank for v in op.outputs)
            sums[3] += np.array(seconds) * op.weight * (not is_scalar)
            continue
        each = np.array(seconds) * op.weight / count
        sums[2] += each
        sums[1] += each * (op.place[2] in back)
        sums[0] += each * (op.place[2] in forward)
        part = 4 + next(k for k in range(3) if op.place[2] in programs[k])
        sums[part] += each
        if op.place[2] in needed or lookup(op.node.op).family in PRODUCTS:
            shared[[2, part]] += each
    shared[:2] = sums[:2]
    found, alone = (
        {
            size: cast("Phases", tuple(each))
            for size, each in zip(sizes, rows.T.tolist(), strict=True)
        }
        for rows in (sums, shared)
    )
    after = [values_after(graph, (v,)) for v in program.args["slopes"]]
    passes = tuple(tuple(o in values for values in after) for o in slopes)
    return Unit(len(flat.ops), found, alone, passes)


def all_sent(cut: Staged, passes: Sequence[tuple[tuple[bool, ...], ...]]) -> NDArray[np.bool_]:
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


def borders_of(stage: StageTrainingStep, flat: FlatProgram) -> set[int]:
    """Flat values that a stage takes from others, or gives to them."""
    inside, (_, seen) = (stage.loop, 0), ops_of(stage, flat)
    taken = (flat.names.get((inside, v)) for kind in ("takes", "slopes")
             for v in stage.program.args[kind])  # fmt: skip
    found = {v for v in taken if v is not None}
    found.update(v for i in seen for v in flat.ops[i].reads)
    return found


def ops_of(stage: StageTrainingStep, flat: FlatProgram) -> tuple[list[int], list[int]]:
    """Flat numbers of the ops of a stage, and of those that only keep its outputs alive."""
    parts = stage.program.parts
    nodes = {*parts.forward.nodes, *parts.input_gradient.nodes, *parts.weight_gradient.nodes}
    inside = (stage.loop, 0)
    own: list[int] = []
    seen: list[int] = []
    for i, op in enumerate(flat.ops):
        (own if op.place[:2] != inside or op.place[2] in nodes else seen).append(i)
    return own, seen


def in_passes(stage: StageTrainingStep, is_sent: bool, place: Place) -> bool:
    """Whether the forward or a backward pass of a micro-batch has what is at a place."""
    parts = stage.program.parts
    nodes = {*parts.forward.nodes, *parts.input_gradient.nodes}
    nodes |= set() if is_sent else {*parts.weight_gradient.nodes}
    return place[:2] == (stage.loop, 0) and (len(place) < 3 or place[2] in nodes)
