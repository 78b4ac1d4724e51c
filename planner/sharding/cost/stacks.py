"""Stacks of loops as a compiler keeps them: in another order of dimensions, or one for two.

An all-gather writes shard after shard. Where it splits another dimension than the first, XLA lays
that dimension first; what a loop takes a slice of and gathers is then an argument's stack in
another order of its dimensions, which is written once and kept until the last such loop ends.

Two stacks of one value, such as a result and the same under a name, are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ir import Reshard, ReshardStep, TensorType

from ..lower import Decided
from ..problem.facts import Facts

Span = tuple[int, int, int]
RENAMED = ("name", "stop_gradient", "optimization_barrier", "copy_p")


def is_strided(step: ReshardStep, type_: TensorType) -> bool:
    """Whether a step writes shard after shard in another order than that of the elements."""
    return step.kind == "all-gather" and math.prod(type_.shape[: step.dim]) > 1


def turned_stacks(decided: Decided) -> Iterator[Span]:
    """Moments [start, end) and bytes of stacks of arguments that are kept in another order too."""
    facts, plan = decided.builder.facts, decided.plan
    flat = facts.flat
    arguments = set(flat.inputs)
    links = {link.target: link for link in flat.links if link.lift and link.source in arguments}
    found: dict[int, Span] = {}
    for moved in plan.reshards:
        link = links.get(_sliced(facts, moved.passage.value)) if _turns(moved) else None
        if link is None:
            continue
        port, state = flat.values[link.target], plan.states[link.target]
        assert state is not None
        slices = flat.values[link.source].type.size // port.type.size
        size = state.local_bytes(port.type, plan.mesh) * slices
        start, end, _ = found.get(link.source, (link.time, 0, 0))
        found[link.source] = min(start, link.time), max(end, port.region_end + 1), size
    yield from found.values()


def _turns(moved: Reshard) -> bool:
    steps = moved.change.steps
    return bool(steps) and is_strided(steps[0], moved.change.type)


def _sliced(facts: Facts, v: int) -> int:
    """The value of which one is a cast."""
    while (op := facts.flat.made_by(v)) is not None and op.node.op == "convert_element_type":
        v = op.reads[0]
    return v


def merged_stacks(decided: Decided) -> Iterator[Span]:
    """Moments [start, end) and bytes of stacks that hold the slices of an earlier one."""
    facts, plan = decided.builder.facts, decided.plan
    flat = facts.flat
    first: dict[tuple[int, int], int] = {}
    for link in flat.links:
        port = link.target
        if port not in facts.stack_of or not facts.buffers(port):
            continue
        earlier = first.setdefault((_unnamed(facts, link.source), link.time), port)
        state = plan.states[port]
        if earlier != port and state is not None and plan.states[earlier] == state:
            (a, b), (c, d) = facts.spans[earlier], facts.spans[port]
            size = state.local_bytes(flat.values[port].type, plan.mesh) * facts.buffers(port)
            yield max(a, c), min(b, d), size


def _unnamed(facts: Facts, v: int) -> int:
    """The value that one is by another name."""
    while (op := facts.flat.made_by(v)) is not None and op.node.op in RENAMED:
        if len(op.outputs) != 1 or not op.reads:
            break
        v = op.reads[0]
    return v
