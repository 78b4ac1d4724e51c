"""A program with its dimensions in classes, and which of them is padded."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir import Graph
from ir.analysis import Classes, FlatProgram, Place, Specs, flatten


@dataclass(frozen=True)
class Padding:
    """A class of dimensions and the size that its padding gives it.

    place, number, dim: one of its dimensions: body, number of the value in it, dimension.
    size: elements of that dimension with padding.
    """

    place: Place
    number: int
    dim: int
    size: int


@dataclass
class Classified:
    """A program with its dimensions and factors in classes."""

    graph: Graph
    flat: FlatProgram = field(init=False)
    specs: Specs = field(init=False)
    classes: Classes = field(init=False)
    op_at: dict[Place, int] = field(init=False)

    def __post_init__(self) -> None:
        self.flat = flatten(self.graph)
        self.specs = Specs(self.flat)
        self.classes = Classes(self.flat, [self.specs.of(op) for op in self.flat.ops])
        self.op_at = {op.place: i for i, op in enumerate(self.flat.ops)}

    def dims(self, place: Place, number: int, wanted: int) -> tuple[int, ...]:
        """Dimensions of a value that are of a class."""
        v = self.flat.names.get((place, number))
        if v is None:
            return ()
        shape = self.flat.values[v].type.shape
        return tuple(
            d for d, size in enumerate(shape)
            if size > 1 and self.classes.of_dim(v, d) == wanted
        )  # fmt: skip
