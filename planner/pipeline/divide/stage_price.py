"""Costs of a stage: seconds of its phases for one micro-batch, and memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir import Graph, LoweredPlan, TensorType, flops_of, lookup, replicated
from ir.analysis import FlatProgram, Place, operand_types

from ...sharding.cost.account import held_at
from ...sharding.search.context import Candidate
from .cost_profile import NO_PASSING, Passing, passing

PRODUCTS = ("contraction", "convolution")  # families of ops
ADD = ("add", "add_any")


@dataclass(frozen=True, slots=True)
class StagePrice:
    """Costs of a stage on each of its devices.

    forward_s, input_gradient_s, weight_gradient_s: of one micro-batch, with exposed collectives.
    once_s: once a step: sums of gradients, optimizer update, all-gathers of parameters.
    held_bytes: peak memory with one micro-batch in flight.
    static_bytes: the part of it for parameters, optimizer state and accumulated gradients.
    update_bytes: peak memory outside the micro-batches, most often in the update.
    sums_s: the part of `weight_gradient_s` that accumulates gradients.
    forward, back: how the seconds of the two passes accumulate along the program, without `sums_s`.
    activation_bytes: memory of each further micro-batch in flight.
    boundary_bytes: the same if the whole stage is recomputed.
    host_bytes: memory of the host that each micro-batch in flight takes.
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    once_s: float
    held_bytes: float
    activation_bytes: float
    boundary_bytes: float
    static_bytes: float = 0.0
    update_bytes: float = 0.0
    sums_s: float = 0.0
    forward: Passing = NO_PASSING
    back: Passing = NO_PASSING
    host_bytes: float = 0.0

    @property
    def microbatch_s(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward_s + self.input_gradient_s + self.weight_gradient_s

    def paced_s(self, recompute: str) -> float:
        """`microbatch_s` with recomputation."""
        return self.microbatch_s + (recompute == "stage") * self.forward_s

    def faster(self, ratio: float) -> StagePrice:
        """The price with all seconds times a ratio."""
        return replace(
            self, forward_s=ratio * self.forward_s, input_gradient_s=ratio * self.input_gradient_s,
            weight_gradient_s=ratio * self.weight_gradient_s, once_s=ratio * self.once_s,
            sums_s=ratio * self.sums_s,
        )  # fmt: skip

    def more_bytes(self, recompute: str) -> float:
        """Bytes of each further micro-batch in flight."""
        return self.boundary_bytes if recompute == "stage" else self.activation_bytes

    def needed_bytes(self, recompute: str, flight: int) -> float:
        """Peak memory with `flight` micro-batches in flight."""
        return self.held_bytes + (flight - 1) * self.more_bytes(recompute)


@dataclass(frozen=True)
class Phases:
    """Nodes and values of a stage's loop over micro-batches, by phase.

    loop: node of the stage's step that runs the micro-batches.
    forward, input_gradient, weight_gradient: nodes of the loop's body.
    saved, takes: values of the body that live from the forward to the backward pass.
    sums: values of the body that are accumulated gradients.
    own: positions of the inputs that are parameters or optimizer state.
    """

    loop: int
    forward: Collection[int]
    input_gradient: Collection[int]
    weight_gradient: Collection[int]
    saved: Sequence[int]
    takes: Sequence[int]
    sums: Sequence[int] = ()
    own: Sequence[int] = ()


def price_of(best: Candidate, phases: Phases, body: Graph, count: int) -> StagePrice:
    """Costs of a stage under its plan.

    Args:
        best: the plan.
        phases: phases of the stage's program.
        body: program of one micro-batch.
        count: number of micro-batches in the step.
    """
    flat, choice = best.builder.flat, best.solution.choice
    totals = {"forward": 0.0, "input": 0.0, "weight": 0.0, "sums": 0.0, "once": 0.0, "": 0.0}
    sums = _sums(phases, body)
    each = [0.0] * len(flat.ops)
    members = Counter(best.built.op_node.values())
    starts: list[int] = []
    names: list[str] = []
    for i, op in enumerate(flat.ops):
        phase = _phase(op.place, phases, sums)
        starts.append(op.time)
        names.append(phase)
        node = best.built.op_node.get(i)
        if node is not None:
            each[i] = float(best.built.work[node][choice[node]]) / members[node]
            totals[phase] += each[i]
    totals["once"] += best.built.taking_s(choice)
    plan, inside = best.decided.plan, (phases.loop, 0)
    for moved, seconds in zip(plan.reshards, best.account.exposed, strict=True):
        time, _ = held_at(best.builder.facts, moved)
        at = max(bisect_right(starts, time) - 1, 0)
        phase = names[at] if moved.weight >= count or count == 1 else "once"
        totals[phase] += seconds
        each[at] += seconds * (phase != "once")
    away = best.builder.facts.on_host
    here = [v for v in phases.saved if flat.names.get((inside, v)) not in away]
    saved, takes, static = (
        _bytes(values, body.types, plan, inside) for values in (here, phases.takes, phases.sums)
    )
    for k in phases.own:
        node = best.built.value_node[flat.inputs[k]]
        static += float(best.built.live_intervals.usage[node][choice[node]])
    peak = float(
        (best.account.memory - best.built.live_intervals.held_bytes(choice)).max(initial=0.0)
    )
    return StagePrice(
        totals["forward"] / count, totals["input"] / count,
        (totals["weight"] + totals["sums"]) / count,
        totals["once"], max(peak, saved + takes), saved + takes, takes, min(static, peak),
        _outside(best, phases), totals["sums"] / count,
        _passing(flat, names, each, ("forward",)), _passing(flat, names, each, ("input", "weight")),
        best.account.host_bytes,
    )  # fmt: skip


def _passing(
    flat: FlatProgram, names: Sequence[str], seconds: Sequence[float], wanted: Sequence[str]
) -> Passing:
    """How the seconds of some phases accumulate, in the order of the program.

    Args:
        flat: the program.
        names: phase of each op.
        seconds: seconds of each op.
        wanted: phases to include; the backward pass runs through the program from its end.
    """
    blocks: dict[int, tuple[float, float]] = {}  # by op of a micro-batch, or loop in it
    for op, name, spent in zip(flat.ops, names, seconds, strict=True):
        if name in wanted:
            record, flops = lookup(op.node.op), 0.0
            if record.family in PRODUCTS:
                flops = flops_of(record, op.node, operand_types(flat, op)) * op.weight
            before = blocks.get(op.place[2], (0.0, 0.0))
            blocks[op.place[2]] = before[0] + flops, before[1] + spent
    rows = list(blocks.values())
    return passing(rows if "forward" in wanted else rows[::-1])


def _outside(best: Candidate, phases: Phases) -> float:
    """Peak memory before and after the micro-batches."""
    inside = [op.time for op in best.builder.flat.ops if op.place[:2] == (phases.loop, 0)]
    memory = best.account.memory
    if not inside:
        return float(memory.max(initial=0.0))
    rest = np.concatenate((memory[: min(inside)], memory[max(inside) + 1 :]))
    return float(rest.max(initial=0.0))


def _sums(phases: Phases, body: Graph) -> set[int]:
    """Nodes that accumulate gradients, and conversions of the type of such gradients."""
    known, added, found = set(phases.sums), set[int](), set[int]()
    for i in reversed(range(len(body.nodes))):
        node = body.nodes[i]
        reads = {v for v in node.inputs if isinstance(v, int)}
        adds = node.op in ADD and not known.isdisjoint(reads)
        if adds or (node.op == "convert_element_type" and not added.isdisjoint(body.values_of(i))):
            found.add(i)
            added |= reads - known
    return found


def _phase(place: tuple[int, ...], phases: Phases, sums: Collection[int]) -> str:
    """Phase of an op; empty for ops that only keep results alive.

    `sums` are the nodes of the weight gradient that accumulate gradients.
    """
    if place[:2] != (phases.loop, 0):
        return "once"
    if place[2] in phases.forward:
        return "forward"
    if place[2] in phases.input_gradient:
        return "input"
    if place[2] in phases.weight_gradient:
        return "sums" if place[2] in sums else "weight"
    return ""


def _bytes(
    values: Sequence[int], types: Sequence[TensorType], plan: LoweredPlan, body: Place
) -> float:
    """Bytes of a body's values on one device."""
    states = ((plan.state(body, v) or replicated(types[v].rank), types[v]) for v in values)
    return sum(float(state.local_bytes(type_, plan.mesh)) for state, type_ in states)
