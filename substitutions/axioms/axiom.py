"""An equation of ops, and in which directions it may be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..rule import Rule
from ..text import rule_of_text

# Letters stand for degrees; any two different numbers do.
LETTERS = {"k": 2, "m": 3}
RANKS = {"matrix": 2, "image": 4}


# Axioms that hold in one direction only; tests check that no other does, and that these do.
ONE_WAY = {
    "conv-add-weight": ">", "conv-add-input": ">", "concat-0-add": ">", "concat-1-add": ">",
    "concat-0-mul": ">", "concat-1-mul": ">", "split-0-of-rows": ">", "split-1-of-rows": ">",
    "split-0-of-cols": ">", "split-1-of-cols": ">", "combine-partition-1": ">",
    "combine-partition-2": ">", "partition-combine-1": ">", "partition-combine-2": ">",
    "concat-2-add": ">", "concat-2-mul": ">", "split-0-of-2": ">", "split-1-of-2": ">",
    "linear-inner": ">", "concat-matmul-inner": "<",
    "concat-conv-batch": "<",
}  # fmt: skip
CONDITIONAL = (
    "conv-enlarge", "concat-geometry", "concat-conv-outputs", "concat-conv-inner",
    "linear-concat-inner",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axiom:
    """An equation; `kind` is what its variables are: matrix, image, any (of both) or parallel.

    Variables w, v are kernels or weights, s and t scalars.
    """

    name: str
    left: str
    right: str
    kind: str = "any"

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the variables may be; axis 0 of a parallel tensor is no data."""
        if self.kind != "any":
            return (self.kind,)
        plain = "[0]" in self.left or "scale" in self.left or "ones" in self.left
        return ("matrix", "image") if plain else ("matrix", "image", "parallel")

    @property
    def ways(self) -> str:
        """The directions that hold wherever the first side is well-typed: `>`, `<`, both or none.

        The rest hold under conditions on sizes, such as that both kernels are equally large.
        """
        return "" if self.name in CONDITIONAL else ONE_WAY.get(self.name, "<>")

    def rules(self, way: str = ">") -> Iterator[Rule]:
        """The axiom as rules in one direction, one for each kind of tensor."""
        left, right = (self.left, self.right) if way == ">" else (self.right, self.left)
        kinds = self.kinds
        for kind in kinds:
            rank = RANKS.get(kind, 2)
            ranks = dict.fromkeys("xyzuwv", rank) | {"s": 0, "t": 0}
            parallel = kind == "parallel"
            yield rule_of_text(
                f"{self.name}/{kind}", left, right, ranks, parallel=parallel, letters=LETTERS
            )
