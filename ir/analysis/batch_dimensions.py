"""Which dimension of each argument is the batch, found from what becomes of it.

People put the batch first, with two exceptions: time may come first, for loops over time or by
convention, and features may, for products from the left. The first dimension is the batch unless it
is one of these and another dimension takes part in as much of the work:

- a parameter or a state has it, too: features;
- a loop takes its rounds from it: time;
- a value has it twice, as attention's scores have time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..opdef import flops_of
from ..table import lookup
from .dimension_classes import Classes
from .flat_program import operand_types


def batch_dimensions(classes: Classes, batch: Sequence[int], kept: Sequence[int]) -> dict[int, int]:
    """The batch dimension of each argument that has dimensions.

    Args:
        classes: the classes of the program's dimensions.
        batch: arguments that are no parameters or states (flat values).
        kept: parameters and states.
    """
    values = classes.flat.values
    ranked = [v for v in batch if values[v].type.rank > 0]
    no_batch = _NoBatch(classes, kept)
    if not any(no_batch.has(v, 0) for v in ranked):
        return dict.fromkeys(ranked, 0)
    work = _work(classes)
    found: dict[int, int] = {}
    for v in ranked:
        each = [work[classes.of_dim(v, d)] for d in range(values[v].type.rank)]
        usual = [d for d, n in enumerate(each) if n >= each[0] and not no_batch.has(v, d)]
        found[v] = max(usual, key=lambda d: each[d], default=0) if no_batch.has(v, 0) else 0
    return found


def features(classes: Classes, kept: Sequence[int]) -> set[int]:
    """Classes of dimensions of parameters and states, and of those that a value has twice."""
    found = {c for v in kept for c in _of_value(classes, v)}
    for v in range(len(classes.flat.values)):
        each = _of_value(classes, v)
        if len(set(each)) < len(each):
            found.update(c for c, n in Counter(each).items() if n > 1)
    return found


class _NoBatch:
    """Dimensions of features and of time."""

    def __init__(self, classes: Classes, kept: Sequence[int]) -> None:
        self.classes, flat = classes, classes.flat
        self.members = features(classes, kept)
        stacked = {*(link.source for link in flat.links if link.lift), *flat.stacked}
        self.rounds = {(classes.of_dim(v, 0), flat.values[v].type.shape[0]) for v in stacked}

    def has(self, value: int, dim: int) -> bool:
        """Whether a dimension of an argument is one of these.

        A batch of which loops take parts has the class of their rounds, but is longer.
        """
        of_dim = self.classes.of_dim(value, dim)
        size = self.classes.flat.values[value].type.shape[dim]
        return of_dim in self.members or (of_dim, size) in self.rounds


def _of_value(classes: Classes, value: int) -> list[int]:
    return classes.members()[slice(*classes.dims(value))]


def _work(classes: Classes) -> Counter[int]:
    """Floating-point operations of the ops with a factor of each class."""
    flat, found = classes.flat, Counter[int]()
    for i, op in enumerate(flat.ops):
        flops = op.weight * flops_of(lookup(op.node.op), op.node, operand_types(flat, op))
        for c in set(classes.members()[slice(*classes.factors(i))]):
            found[c] += int(flops)
    return found
