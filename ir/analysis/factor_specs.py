"""Factors of the ops of a flat program; ops that are split and priced alike share one object."""

from __future__ import annotations

from ..factors import FactorSpec
from ..passing import factor_marks, passing_groups
from ..table import lookup
from .flat_program import FlatOp, FlatProgram, operand_types

Groups = tuple[tuple[int, ...], ...]


class Specs:
    """What the record of an op says of its operands and results, worked out once for equal ops.

    Slices and others (`OpDef.places`) are equal if their types and factors are, as layers written
    out take theirs from different places of one array.
    """

    def __init__(self, flat: FlatProgram) -> None:
        self.flat = flat
        self._at: dict[int, tuple[FactorSpec, Groups]] = {}  # by the op's place in time
        self._known: dict[object, tuple[FactorSpec, Groups]] = {}

    def of(self, op: FlatOp) -> FactorSpec:
        """Factors of an op."""
        return self._of(op)[0]

    def groups(self, op: FlatOp) -> Groups:
        """Operands through which partial sums may pass, together."""
        return self._of(op)[1]

    def _of(self, op: FlatOp) -> tuple[FactorSpec, Groups]:
        found = self._at.get(op.time)
        if found is None:
            node, types = op.node, operand_types(self.flat, op)
            key = (node.op, types, node.outputs, node.attrs, factor_marks(node))
            found = self._known.get(key)
            if found is None:
                record = lookup(node.op)
                spec = record.factors(types, node.outputs, dict(node.attrs))
                found = spec, passing_groups(node, types)
                if record.places:
                    found = self._known.setdefault((node.op, types, node.outputs, found), found)
                self._known[key] = found
            self._at[op.time] = found
        return found
