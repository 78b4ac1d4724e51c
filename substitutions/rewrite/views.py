"""Views: a tensor of the program seen with fewer, grouped dimensions.

A rule speaks of matrices, a program of arrays with any number of dimensions. A view gives every
axis of the rule an ordered group of the array's dimensions; it stands for the array transposed to
the order of the groups and each group laid out flat. Dimensions of size one may be in no group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir import TensorType

from ..text import Term
from .net import Source

Group = tuple[int, ...]
Groups = tuple[Group, ...]
Partial = tuple[Group | None, ...]  # some axes not known yet


@dataclass(frozen=True, slots=True)
class View:
    """A value with a group of its dimensions for every axis of the rule.

    only_shape: the rule reads its shape and not its elements.
    """

    source: Source
    groups: Groups
    only_shape: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Where two parts of an axis meet: their lengths along its first dimension.

    single: whether each part had no such dimension before, so that it is taken off again.
    """

    lengths: tuple[int, int]
    single: tuple[bool, bool]


def unify(left: Partial | None, right: Partial | None) -> Partial | None:
    """What both say; None if they contradict. An unknown is no contradiction."""
    if left is None or right is None:
        return left if right is None else right
    if len(left) != len(right):
        return None
    found: list[Group | None] = []
    for a, b in zip(left, right, strict=True):
        if a is not None and b is not None and a != b:
            return None
        found.append(b if a is None else a)
    return tuple(found)


def filled(groups: Partial, type_: TensorType) -> Groups:
    """Unknown axes completed: the last takes all dimensions that are left, the others none."""
    known = {d for group in groups if group is not None for d in group}
    rest = tuple(d for d in range(type_.rank) if d not in known)
    unknown = [axis for axis, group in enumerate(groups) if group is None]
    found = [group or () for group in groups]
    if unknown:
        found[unknown[-1]] = rest
    return tuple(found)


def covers(groups: Groups, type_: TensorType) -> bool:
    """Whether every dimension of more than one element is in exactly one group."""
    flat = [d for group in groups for d in group]
    rest = [d for d in range(type_.rank) if d not in flat]
    return len(set(flat)) == len(flat) and all(type_.shape[d] == 1 for d in rest)


def sizes(group: Sequence[int], type_: TensorType) -> tuple[int, ...]:
    """Lengths of the dimensions of a group."""
    return tuple(type_.shape[d] for d in group)


def rank_of(term: Term, ranks: dict[str, int]) -> int:
    """Axes of a term's value."""
    match term.kind:
        case "":
            return ranks[term.name]
        case "batch-matmul":
            return 3
        case "conv":
            return 4
        case "sum" | "max":
            return rank_of(term.args[0], ranks) - 1
        case "along":
            return rank_of(term.args[1], ranks)
        case "expand":
            return rank_of(term.args[0], ranks) + 1
        case "matmul" | "gather" | "transpose":
            return 2
        case _:
            return rank_of(term.args[0], ranks)
