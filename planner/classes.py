"""Which dimensions of a program belong together: the batch, the sequence, the experts.

Dimensions that a factor joins are one class. Hand-written plans speak of such classes ("split the
batch"), and so do the baselines.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir import FactorSpec, Literal

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
