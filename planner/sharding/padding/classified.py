"""A program with its dimensions in classes, and which of them is padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ir import Graph
from ir.analysis import Classes, FlatProgram, Place, Specs, flatten

Sizes = Mapping[int, tuple[int, int]]  # class -> elements before and with padding


@dataclass(frozen=True)
class Padding:
    """A class of dimensions and the size that its padding gives it.

    place, number, dim: one of its dimensions: body, number of the value in it, dimension.
    size: elements of that dimension with padding.
    parts: of which sizes are multiples in the group of classes that differ by borders from it; 0
        for the class alone.
    """

    place: Place
    number: int
    dim: int
    size: int
    parts: int = 0


@dataclass
class Classified:
    """A program with its dimensions and factors in classes."""

    graph: Graph
    flat: FlatProgram = field(init=False)
    specs: Specs = field(init=False)
    classes: Classes = field(init=False)
    op_at: dict[Place, int] = field(init=False)
    maker: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.flat = flatten(self.graph)
        self.specs = Specs(self.flat)
        self.classes = Classes(self.flat, [self.specs.of(op) for op in self.flat.ops])
        self.op_at = {op.place: i for i, op in enumerate(self.flat.ops)}
        self.maker = {v: i for i, op in enumerate(self.flat.ops) for v in op.outputs}

    def dims(self, place: Place, number: int, wanted: Sizes) -> dict[int, int]:
        """Dimensions of a value that are of some classes, with their padded sizes."""
        v = self.flat.names.get((place, number))
        if v is None:
            return {}
        found: dict[int, int] = {}
        for d, n in enumerate(self.flat.values[v].type.shape):
            if n > 1 and (sizes := wanted.get(self.classes.of_dim(v, d))) is not None:
                found[d] = n // sizes[0] * sizes[1]
        return found
