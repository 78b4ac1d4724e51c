"""Results of a program that need a sharding constraint for XLA to choose the plan's collectives.

These are what products read and make, which shardings propagate from, every value that changes its
state, and what is read or made by an op at which one does. The rest follows by propagation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ir import REGIONS, Graph, Literal, LoweredPlan, Sharding, TensorType
from ir.analysis import Place

_PRODUCTS = ("conv_general_dilated", "dot_general", "ragged_dot_general")
# The module skips placements of the user's own.
_PLACEMENTS = ("device_put", "mesh_cast", "reshard", "sharding_constraint")


@dataclass(slots=True)
class Constrained:
    """Equal results with one state.

    op, type: the primitive and the type of the result; `scan input` are inputs of its body.
    numbers: which of all results of this primitive and type, in the order in which the program
        runs, bodies before what they belong to.
    total: how many of these there are.
    sources: lines of the user's code.
    """

    op: str
    type: str
    state: Sharding
    total: int = 0
    numbers: list[int] = field(default_factory=list[int])
    sources: list[str] = field(default_factory=list[str])

    @property
    def which(self) -> str:
        """The numbers as text, such as `0,3,8-20:4 of 24`."""
        return f"{','.join(map(_span, _spans(self.numbers)))} of {self.total}"


def constrained(plan: LoweredPlan) -> list[Constrained]:
    """The rows, in the order in which the program first comes to them."""
    wanted, seen = _wanted(plan), dict[tuple[str, str], int]()
    rows: dict[tuple[str, str, Sharding], Constrained] = {}
    for place, number, op, type_, source in _results(plan.flat.graph, ()):
        key = op, type_text(type_)
        seen[key] = seen.get(key, 0) + 1
        v = plan.flat.names.get((place, number))
        state = None if v is None else plan.states[v]
        if v not in wanted or state is None or state.partial or op in _PLACEMENTS:
            continue
        row = rows.setdefault((*key, state), Constrained(*key, state))
        row.numbers.append(seen[key] - 1)
        if source and source not in row.sources:
            row.sources.append(source)
    for row in rows.values():
        row.total = seen[row.op, row.type]
    return list(rows.values())


def type_text(type_: TensorType) -> str:
    """A type as the written module prints it."""
    return f"{type_.dtype}[{','.join(map(str, type_.shape))}]"


def _wanted(plan: LoweredPlan) -> set[int]:
    """Values of the flat program to constrain."""
    found: set[int] = set()
    for op in plan.flat.ops:
        if op.node.op in _PRODUCTS:
            found.update((*op.reads, *op.outputs))
    for reshard in plan.reshards:
        passage = reshard.passage
        found.add(passage.value)
        if passage.link >= 0:
            found.add(plan.flat.links[passage.link].target)
        if passage.op >= 0:
            op = plan.flat.ops[passage.op]
            found.update((*op.reads, *op.outputs))
    # what changes its state as it leaves a loop's body, slice by slice, is named by its stack
    found.update(stack for stack, part in plan.flat.stacked.items() if part in found)
    return found


def _results(graph: Graph, place: Place) -> Iterator[tuple[Place, int, str, TensorType, str]]:
    """Body, number, primitive, type and source line of every result and input of a body.

    What is made of literals alone is left out: JAX may fold it.
    """
    fixed: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if node.op in REGIONS:
            for b, body in enumerate(node.bodies):
                for number, item in enumerate(body.inputs):
                    if item.role != "constant":
                        yield (*place, i, b), number, f"{node.op} input", item.type, node.source
                yield from _results(body, (*place, i, b))
        elif node.op != "constant" and all(
            isinstance(x, Literal) or x in fixed for x in node.inputs
        ):
            fixed.update(graph.values_of(i))
            continue
        for number, type_ in zip(graph.values_of(i), node.outputs, strict=True):
            yield place, number, node.op, type_, node.source


def _spans(numbers: Sequence[int]) -> Iterator[range]:
    """Rising numbers as the fewest ranges that a greedy reading finds."""
    start = 0
    while start < len(numbers):
        end = start + 1
        step = numbers[end] - numbers[start] if end < len(numbers) else 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        if end - start == 2:  # two numbers are no pattern
            end, step = start + 1, 1
        yield range(numbers[start], numbers[end - 1] + 1, step)
        start = end


def _span(span: range) -> str:
    if len(span) == 1:
        return str(span[0])
    return f"{span[0]}-{span[-1]}" + (f":{span.step}" if span.step > 1 else "")
