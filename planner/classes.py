"""Which dimensions of a program belong together: the batch, the sequence, the experts.

Dimensions that a factor joins are one class. Hand-written plans speak of such classes ("split the
batch"), and so do the baselines.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir import FactorSpec, Literal, lookup

from .flatten import FlatProgram

Dim = tuple[int, int]  # flat value, dimension
Factor = tuple[int, str]  # flat op, factor


class Classes:
    """Union of dimensions and factors over a flat program."""

    def __init__(self, flat: FlatProgram, specs: Sequence[FactorSpec]) -> None:
        self.parent: dict[object, object] = {}
        self.flat = flat
        for i, (op, spec) in enumerate(zip(flat.ops, specs, strict=True)):
            tensors = list(zip(op.inputs, spec.operands, strict=True))
            tensors += list(zip(op.outputs, spec.results, strict=True))
            for value, dims in tensors:
                if isinstance(value, Literal):
                    continue
                for d, dim in enumerate(dims):
                    if dim:
                        # of a compound only the major factor: what is split of it comes first
                        self._join(("v", value, d), ("f", i, dim[0]))
        for link in flat.links:
            for d in range(flat.values[link.target].type.rank):
                self._join(("v", link.source, d + link.lift), ("v", link.target, d))
        for outer, port in flat.stacked.items():
            for d in range(flat.values[port].type.rank):
                self._join(("v", outer, d + 1), ("v", port, d))

    def _find(self, key: object) -> object:
        root = key
        while (up := self.parent.get(root, root)) != root:
            root = up
        while (up := self.parent.get(key, key)) != root:
            self.parent[key] = root
            key = up
        return root

    def _join(self, a: object, b: object) -> None:
        ra, rb = self._find(a), self._find(b)
        if ra != rb:
            self.parent[rb] = ra

    def of_dim(self, value: int, dim: int) -> object:
        return self._find(("v", value, dim))

    def of_factor(self, op: int, factor: str) -> object:
        return self._find(("f", op, factor))


class Kinds:
    """Which dimensions are of the batch, of the sequence, of the experts.

    Attributes:
        batch: classes of the first dimensions of batch arguments.
        sequence: classes of their second dimensions.
        experts: classes of batch dimensions of products one operand of which is a parameter, cast
            or reshaped.
    """

    def __init__(
        self, classes: Classes, specs: Sequence[FactorSpec], batch: Sequence[int],
        parameters: Sequence[int],
    ) -> None:  # fmt: skip
        """Takes the classes, the factors of every op, and arguments by role (flat values)."""
        self.classes = classes
        flat = classes.flat
        ranked = [(v, flat.values[v].type.rank) for v in batch]
        self.batch = {classes.of_dim(v, 0) for v, rank in ranked if rank > 0}
        self.sequence = {classes.of_dim(v, 1) for v, rank in ranked if rank > 1} - self.batch
        experts = _expert_classes(classes, specs, _weights(flat, parameters))
        self.experts = experts - self.batch - self.sequence
        groups = (("batch", self.batch), ("sequence", self.sequence), ("experts", self.experts))
        self._names = {member: name for name, members in groups for member in members}

    def of_dim(self, value: int, dim: int) -> str:
        """batch, sequence, experts or nothing."""
        return self._names.get(self.classes.of_dim(value, dim), "")

    def of_factor(self, op: int, factor: str) -> str:
        """The same for a factor."""
        return self._names.get(self.classes.of_factor(op, factor), "")


def _expert_classes(
    classes: Classes, specs: Sequence[FactorSpec], weights: set[int]
) -> set[object]:
    found: set[object] = set()
    for i, (op, spec) in enumerate(zip(classes.flat.ops, specs, strict=True)):
        if op.node.op == "dot_general" and any(v in weights for v in op.inputs):
            lhs, rhs = ({f for dim in dims for f in dim} for dims in spec.operands)
            out = {f for dim in spec.results[0] for f in dim}
            found.update(classes.of_factor(i, f) for f in lhs & rhs & out)
    return found


def _weights(flat: FlatProgram, parameters: Sequence[int]) -> set[int]:
    """Parameters and values made of parameters alone without arithmetic between them."""
    weights = set(parameters)
    entering = {link.target: link.source for link in flat.links}
    for op in flat.ops:
        for value in op.inputs:
            if isinstance(value, int) and entering.get(value) in weights:
                weights.add(value)
        sources = [v for v in op.inputs if isinstance(v, int)]
        simple = lookup(op.node.op).family in ("elementwise", "layout") and len(sources) == 1
        if simple and sources[0] in weights:
            weights.update(op.outputs)
    return weights
