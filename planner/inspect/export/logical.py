"""Logical axes of parameters and the rules that map them to mesh axes, as Flax and MaxText use.

Dimensions that the program joins (the columns of one matrix and the rows of the next) are one
logical axis. A rule says for each logical axis which mesh axes split it; where arguments that
share an axis are split differently, the one that splits most bytes makes the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysed_plan import AnalysedPlan
from .specs import parameters


@dataclass(frozen=True, slots=True)
class Logical:
    """Logical axes.

    axes: parameter path -> a name for each dimension.
    rules: (logical axis, mesh axes), in the order in which Flax tries them.
    differ: parameters whose sharding by the rules is not the plan's.
    """

    axes: Mapping[str, tuple[str, ...]]
    rules: tuple[tuple[str, tuple[str, ...]], ...]
    differ: tuple[str, ...]


def logical(analysed: AnalysedPlan) -> Logical:
    """Names the classes of dimensions and derives the rules."""
    names = _Names(analysed)
    found = parameters(analysed)
    axes = {
        path: _once([names.of(analysed.flat.inputs[n], d) for d in range(len(state.dims))])
        for path, (n, state) in found.items()
    }
    votes: dict[str, dict[tuple[str, ...], float]] = {}
    for path, (n, state) in found.items():
        for name, split in zip(axes[path], state.dims, strict=True):
            weight = float(analysed.graph.inputs[n].type.nbytes)
            row = votes.setdefault(name, {})
            row[split] = row.get(split, 0.0) + weight
    _count_batch(analysed, names, votes)
    rules = tuple(
        (name, max(sorted(row), key=lambda split: row[split])) for name, row in votes.items()
    )
    differ = tuple(
        path for path, (_, state) in found.items() if apply_rules(axes[path], rules) != state.dims
    )
    return Logical(axes, rules, differ)


def _once(names: Sequence[str]) -> tuple[str, ...]:
    """Names of an array's dimensions, made distinct by numbers."""
    found: list[str] = []
    for name in names:
        count = sum(other == name or other.startswith(f"{name}.") for other in found)
        found.append(f"{name}.{count + 1}" if count else name)
    return tuple(found)


def _count_batch(
    analysed: AnalysedPlan, names: _Names, votes: dict[str, dict[tuple[str, ...], float]]
) -> None:
    """Dimensions of the batch get rules too: activations follow them."""
    for item, v, state in zip(
        analysed.graph.inputs, analysed.flat.inputs, analysed.decisions.inputs, strict=True
    ):
        if item.role == "batch":
            for d, split in enumerate(state.dims):
                row = votes.setdefault(names.of(v, d), {})
                row[split] = row.get(split, 0.0) + float(item.type.nbytes)


def apply_rules(
    names: Sequence[str], rules: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[tuple[str, ...], ...]:
    """Mesh axes of each dimension; an axis that an earlier dimension took is not taken again."""
    of = dict(rules)
    taken: set[str] = set()
    found: list[tuple[str, ...]] = []
    for name in names:
        wanted = of.get(name, ())
        free = () if taken & set(wanted) else wanted
        taken.update(free)
        found.append(free)
    return tuple(found)


class _Names:
    """A name for each class of dimensions, in the order in which they are met."""

    def __init__(self, analysed: AnalysedPlan) -> None:
        self.analysed = analysed
        self.known: dict[object, str] = {}

    def of(self, value: int, dim: int) -> str:
        kinds = self.analysed.kinds
        place = kinds.classes.of_dim(value, dim)
        if place not in self.known:
            kind = kinds.of_dim(value, dim)
            taken = set(self.known.values())
            name = kind if kind and kind not in taken else f"{kind or 'axis'}_{len(self.known)}"
            self.known[place] = name
        return self.known[place]
