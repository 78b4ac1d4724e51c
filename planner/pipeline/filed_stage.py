"""The phases of a stage, read from the program in its plan, so that no function is needed.

The program is that of `cut/stage_training_step.py`: a loop over micro-batches, whose body returns
the stage's sums of gradients and, of each of its outputs and outgoing gradients, one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir import Graph, IRError, Literal, Node, Operand, Scan, captured, dtype_kind
from ir.trace import Binding, Program

from ..sharding.problem.program import InFlight
from .cut.forward_backward import split
from .divide.stage_price import Phases

KINDS = ("params", "state", "batch", "takes", "slopes")  # of the arguments


@dataclass(frozen=True)
class FiledStage:
    """A stage's program, as its plan has it.

    graph: a step of all micro-batches.
    phases: the nodes and values of one of them by phase.
    """

    graph: Graph
    phases: Phases

    @property
    def body(self) -> Graph:
        """One micro-batch."""
        return self.graph.nodes[self.phases.loop].bodies[0]

    def in_flight(self, flight: int, *, whole: bool) -> InFlight:
        """What is held of other micro-batches.

        Args:
            flight: micro-batches in flight.
            whole: whether each keeps the inputs of the stage alone.
        """
        kept = self.phases.takes if whole else (*self.phases.saved, *self.phases.takes)
        return InFlight(self.phases.loop, tuple(kept), flight - 1)


def filed_stage(graph: Graph, roles: Sequence[str], microbatches: int) -> FiledStage:
    """A stage from its plan.

    Args:
        graph: of the plan.
        roles: of its inputs.
        microbatches: in a step.

    Raises:
        IRError: if the program is not that of a stage.
    """
    args: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for v, (item, role) in enumerate(zip(graph.inputs, roles, strict=True)):
        kind = item.name.partition("/")[0]
        if role != "constant" and kind in args:
            args[kind].append(v)
    sums = sum(_is_float(graph, v) for v in args["params"])
    loop = _loop(graph.nodes, sums, microbatches)
    node = graph.nodes[loop]
    return FiledStage(graph, _phases(graph, node, loop, args))


def _loop(nodes: Sequence[Node], carried: int, count: int) -> int:
    """Number of the loop over micro-batches: the first with `count` rounds and `carried` sums."""
    for i, node in enumerate(nodes):
        if node.op == "scan" and (Scan.of(node).carries, node.attr("length")) == (carried, count):
            return i
    raise IRError("the program has no loop over its micro-batches")


def _phases(graph: Graph, node: Node, loop: int, args: dict[str, list[int]]) -> Phases:
    body, wiring = node.bodies[0], Scan.of(node)
    heads = captured(body)
    fixed, sums, _ = wiring.operands(range(heads, heads + len(node.inputs)))
    position = {o: v for v, o in zip(fixed, node.inputs, strict=False) if isinstance(o, int)}
    takes, slopes = ([position[v] for v in args[kind] if v in position]
                     for kind in ("takes", "slopes"))  # fmt: skip
    new_sums, returned = wiring.results(body.outputs)
    outgoing = sum(_is_float(graph, v) for v in args["takes"])
    last = max((body.maker.get(o, -1) for o in new_sums if isinstance(o, int)), default=-1)
    gives = len(returned) - outgoing
    seen = [_unseen(body, o, last if k < gives else len(body.nodes))
            for k, o in enumerate(returned)]  # fmt: skip
    # only its nodes and values are read, not what they would run
    read = Program(body, (Binding(None, {}),) * len(body.nodes), (None,) * heads)
    parts = split(read, seen[:gives], seen[gives:], new_sums, (*slopes, *sums))
    return Phases(
        loop, frozenset(parts.forward.nodes), frozenset(parts.input_gradient.nodes),
        frozenset(parts.weight_gradient.nodes), parts.saved, takes, tuple(sums),
        (*args["params"], *args["state"]),
    )  # fmt: skip


def _unseen(body: Graph, output: Operand, last: int) -> Operand:
    """The value of which the body returns a number; conversions after node `last` are for that."""
    if isinstance(output, Literal) or output not in body.maker:
        raise IRError("a result of the loop over micro-batches is made by none of its nodes")
    value = body.nodes[body.maker[output]].inputs[0]
    for op in ("convert_element_type", "random_unwrap"):
        at = body.maker.get(value, -1) if isinstance(value, int) else -1
        if at > last and body.nodes[at].op == op:
            value = body.nodes[at].inputs[0]
    return value


def _is_float(graph: Graph, v: int) -> bool:
    return dtype_kind(graph.types[v].dtype) in ("float", "complex")
