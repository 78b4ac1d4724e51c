"""Forward and backward pass of a body, and the loops of both that belong together.

The backward pass is what JAX marks as such when it differentiates (`Binding.backward`). A node is
*late* if it is marked or reads a result of a late one, as the optimizer does; all others are the
forward pass. A loop over layers becomes two loops: one of the forward pass, which stacks up what
each layer saves, and one of the backward pass, which takes a slice of these stacks in each
iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

from ir import GROUPED
from ir.trace import Program

from .draft import Draft, Item

HEAVY = frozenset({"conv_general_dilated", "cond", "dot_general", GROUPED, "scan", "while"})


@dataclass(frozen=True, eq=False)
class Pair:
    """A loop of the forward pass, and the loop of the backward pass that reads its stacks."""

    forward: Item
    backward: Item


def late_values(draft: Draft) -> set[int]:
    """Inputs of the backward pass, results of marked nodes, and what depends on these."""
    values = set(draft.late)
    for item in draft.items:
        if item.backward or not values.isdisjoint(item.reads):
            values.update(item.outs)
    return values


def pairs_of(draft: Draft) -> list[Pair]:
    """Loops over layers of the forward pass with those of the backward pass, in order of these.

    What a loop over layers takes slices of is given: parameters or their casts. A loop over slices
    of activations, such as one over blocks of attention, is one operation of its layer.
    """
    makers, late, light = draft.makers(), late_values(draft), _light_values(draft)
    found: list[Pair] = []
    for item in draft.items:
        if item.op != "scan" or not item.backward:
            continue
        sources: list[Item] = []
        for v in item.wiring().operands(item.ins)[2]:
            source = makers.get(v) if isinstance(v, int) else None
            if source is not None and _stacks(source, item, v) and late.isdisjoint(source.outs):
                sources.append(source)
        if sources:
            source = max(sources, key=sources.count)
            _, _, xs = source.wiring().operands(source.ins)
            if all(v in light for v in xs if isinstance(v, int)):
                found.append(Pair(source, item))
    return found


def _stacks(forward: Item, backward: Item, v: object) -> bool:
    """Whether a value is a stack that the first loop makes, as long as the second loop."""
    return (
        forward.op == "scan"
        and forward.node.attr("length") == backward.node.attr("length")
        and v in forward.outs[forward.wiring().carries :]
    )


def _light_values(draft: Draft) -> set[int]:
    """Inputs, and what is computed of them without products and loops."""
    light = {v for v, _ in draft.inputs}
    for item in draft.items:
        if item.op not in HEAVY and light.issuperset(item.reads):
            light.update(item.outs)
    return light


def bodies_with_passes(draft: Draft) -> list[tuple[int, int, Draft]]:
    """Bodies that hold both passes, such as that of a loop over micro-batches: (node, body)."""
    return [
        (i, b, draft.body(item, b))
        for i, item in enumerate(draft.items)
        for b, program in enumerate(item.binding.bodies)
        if not item.backward and differentiates(program)
    ]


def differentiates(program: Program) -> bool:
    """Whether a program, or a body in it, has a backward pass."""
    return any(one.backward or any(map(differentiates, one.bodies)) for one in program.bindings)
