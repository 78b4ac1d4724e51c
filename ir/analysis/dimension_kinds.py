"""Which dimensions are of the batch, of the sequence, of the experts.

Hand-written plans speak of these ("split the batch"), and so do the baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..factors import FactorSpec
from ..ops.attention import ATTENTION, ordered_parts
from ..ops.grouped import GROUPED, GROUPS
from ..table import lookup
from .batch_dimensions import batch_dimensions, features
from .batch_parts import batch_parts
from .dimension_classes import Classes
from .flat_program import FlatOp, FlatProgram


class Kinds:
    """Which dimensions are of the batch, of the sequence, of the experts.

    Attributes:
        batch: classes of the batch dimensions of batch arguments, and of their parts.
        sequence: classes of the first of their other dimensions, and of sequences in zigzag.
        experts: classes of batch dimensions of products one operand of which is a parameter, cast
            or reshaped, and of the groups of grouped products.
        weights: parameters, and values made of one each without arithmetic between them.
    """

    def __init__(
        self, classes: Classes, specs: Sequence[FactorSpec], batch: Sequence[int],
        parameters: Sequence[int], states: Sequence[int],
    ) -> None:  # fmt: skip
        """Takes the classes, the factors of every op, and arguments by role (flat values)."""
        self.classes = classes
        flat = classes.flat
        found = batch_dimensions(classes, batch, (*parameters, *states))
        given = {classes.of_dim(v, d) for v, d in found.items()}
        others = [(v, 1 if d == 0 else 0) for v, d in found.items() if flat.values[v].type.rank > 1]
        self.sequence = {classes.of_dim(v, d) for v, d in others} | _in_zigzag(classes, specs)
        self.sequence -= given
        self.weights = _weights(flat, parameters)
        experts = _expert_classes(classes, specs, self.weights)
        self.experts = experts - given - self.sequence
        no_batch = features(classes, (*parameters, *states)) | self.sequence | self.experts
        self.batch = batch_parts(classes, specs, found, no_batch)
        groups = (("batch", self.batch), ("sequence", self.sequence), ("experts", self.experts))
        self._names = {member: name for name, members in groups for member in members}
        self._named = [self._names.get(member, "") for member in classes.members()]

    def of_dim(self, value: int, dim: int) -> str:
        """batch, sequence, experts or nothing."""
        return self._names.get(self.classes.of_dim(value, dim), "")

    def of_value(self, value: int) -> tuple[str, ...]:
        """The same for all dimensions of a value."""
        return tuple(self._named[slice(*self.classes.dims(value))])

    def of_op(self, op: int) -> tuple[str, ...]:
        """The same for all factors of an op."""
        return tuple(self._named[slice(*self.classes.factors(op))])

    def of_factor(self, op: int, factor: str) -> str:
        """The same for a factor."""
        return self._names.get(self.classes.of_factor(op, factor), "")


def _in_zigzag(classes: Classes, specs: Sequence[FactorSpec]) -> set[int]:
    """Classes of sequences that an edited program has put into the order of zigzag."""
    return {
        classes.of_factor(i, "t")
        for i, (op, spec) in enumerate(zip(classes.flat.ops, specs, strict=True))
        if op.node.op in ATTENTION and "t" in spec.names and ordered_parts(dict(op.node.attrs))
    }


def _expert_classes(classes: Classes, specs: Sequence[FactorSpec], weights: set[int]) -> set[int]:
    found: set[int] = set()
    for i, (op, spec) in enumerate(zip(classes.flat.ops, specs, strict=True)):
        if op.node.op == "dot_general" and any(v in weights for v in op.inputs):
            lhs, rhs = ({f for dim in dims for f in dim} for dims in spec.operands)
            out = {f for dim in spec.results[0] for f in dim}
            found.update(classes.of_factor(i, f) for f in lhs & rhs & out)
        elif op.node.op == GROUPED and GROUPS in spec.names and op.inputs[1] in weights:
            found.add(classes.of_factor(i, GROUPS))
    return found


def has_experts(flat: FlatProgram, spec: Callable[[FlatOp], FactorSpec]) -> bool:
    """Whether a product multiplies each group of rows by a matrix of an argument of its own.

    Args:
        flat: the program.
        spec: factors of an op.
    """
    weights = _weights(flat, flat.inputs)
    for op in flat.ops:
        if op.node.op == "dot_general" and any(v in weights for v in op.inputs):
            named = spec(op)
            lhs, rhs, out = (
                {f for dim in dims for f in dim} for dims in (*named.operands, named.results[0])
            )
            if lhs & rhs & out:
                return True
    return False


def _weights(flat: FlatProgram, parameters: Sequence[int]) -> set[int]:
    """Parameters and values made of parameters alone without arithmetic between them."""
    weights = set(parameters)
    entering: dict[int, int] = {}
    for link in flat.links:  # before what later rounds of a loop carry
        entering.setdefault(link.target, link.source)

    def is_weight(value: int | None) -> bool:
        """Also of what enters a loop in a loop, as over layers and over parts of a batch."""
        seen = set[int]()
        while value is not None and value not in weights and value not in seen:
            seen.add(value)
            value = entering.get(value)
        return value in weights

    for op in flat.ops:
        weights.update(v for v in op.inputs if isinstance(v, int) and is_weight(v))
        sources = [v for v in op.inputs if isinstance(v, int)]
        simple = lookup(op.node.op).family in ("elementwise", "layout") and len(sources) == 1
        if simple and sources[0] in weights:
            weights.update(op.outputs)
    return weights
