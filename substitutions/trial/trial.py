"""Every rewrite on numbers, before it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ir import Graph, IRError

from ..catalogue import worth_of_row
from ..rewrite.region import Region
from .compare import difference
from .sizes import KeptError, shortened

_UNTRIED = (IRError, ArithmeticError, IndexError, TypeError, ValueError)
MOST_ELEMENTS = 1 << 22  # of all values of both sides


@dataclass
class Trial:
    """Evaluates both sides where a rule is to be applied; places that compute alike once.

    refused: (rule, source line, reason) of rewrites that were not made.
    """

    refused: dict[tuple[str, str, str], None] = field(
        default_factory=dict[tuple[str, str, str], None]
    )
    known: dict[tuple[str, Graph], str] = field(default_factory=dict[tuple[str, Graph], str])

    def __call__(self, region: Region) -> bool:
        """Whether a rewrite may be made."""
        graph = region.graph
        if graph is None:
            reason = "its two sides do not begin at the same values"
        else:
            key = region.rule, graph
            if key not in self.known:
                self.known[key] = _reason(region.rule, graph)
            reason = self.known[key]
        if reason:
            self.refused.setdefault((region.rule, region.where, reason))
        return not reason

    def warnings(self) -> tuple[str, ...]:
        """What to tell the user."""
        return tuple(
            f"the rewrite {rule} was not made{f' at {where}' if where else ''}: {reason}"
            for rule, where, reason in self.refused
        )


def _reason(rule: str, graph: Graph) -> str:
    """Why a rule must not be applied; empty if it may."""
    half = len(graph.outputs) // 2
    before, after = ([graph.type_of(o) for o in part] for part in
                     (graph.outputs[:half], graph.outputs[half:]))  # fmt: skip
    if before != after:
        return "its sides are of different types"
    try:
        small = shortened(graph)
    except KeptError:
        small = graph
    if sum(math.prod(t.shape) for t in small.types) > MOST_ELEMENTS:
        return "it is too large to be tried on numbers"
    try:
        found = difference(small, worth_of_row(rule))
    except _UNTRIED as error:
        return f"it cannot be tried on numbers: {error}"
    return f"tried on numbers, it gives {found}" if found else ""
