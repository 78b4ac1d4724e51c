"""A row of the catalogue: a rule for every rank, axis and degree that its letters stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..rule import Rule
from ..text import rule_of_text
from ..worth import Worth

DEGREES = {"k": 2, "m": 3}
LARGEST_RANK = 4


@dataclass(frozen=True, slots=True)
class Row:
    """`left` may be replaced by `right`.

    Letters k and m stand for any degrees. With `generic`, letters a and b stand for any two
    different axes of tensors with two to four dimensions.

    ranks: dimensions of variables that are no matrices; for a generic row, how many fewer than
        the others they have.
    worth: that of its weakest rule, as `judge_row(row).worth()` derives it; None in a row that is
        only judged.
    searched: whether `plan` tries it in programs of one device. False for rules that change nothing
        that a plan is priced by: those that only move elementwise work, casts and transposes
        inside one fusion, which the compiler does by itself, and a searched rule read the other
        way round (`merge-rows` is `merge-projections`).
    """

    name: str
    left: str
    right: str
    ranks: tuple[tuple[str, int], ...] = ()
    parallel: bool = False
    generic: bool = False
    worth: Worth | None = None
    searched: bool = False

    def rules(self) -> Iterator[Rule]:
        """A rule for every rank and choice of axes."""
        for rank in range(2, LARGEST_RANK + 1) if self.generic else (2,):
            for letters in self._axes(rank):
                ranks = {f"{name}": rank for name in "xyzuvw"} | {"s": 0, "t": 0}
                ranks |= {n: rank - r if self.generic else r for n, r in self.ranks}
                shown = ",".join(f"{key}={value}" for key, value in letters.items())
                name = f"{self.name}[{rank}:{shown}]" if self.generic else self.name
                yield rule_of_text(
                    name, self.left, self.right, ranks, parallel=self.parallel,
                    letters={**DEGREES, **letters},
                )  # fmt: skip

    def _axes(self, rank: int) -> Iterator[Mapping[str, int]]:
        first = 1 if self.parallel else 0
        axes = range(first, rank + first)
        text = self.left + self.right
        names = [name for name in "ab" if f"[{name}]" in text or f"[{name}," in text]
        for chosen in itertools.permutations(axes, len(names)) if self.generic else ((),):
            yield dict(zip(names, chosen, strict=False))
