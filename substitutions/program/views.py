"""Views: a tensor of the program seen with fewer, grouped dimensions.

A rule speaks of matrices, a program of arrays with any number of dimensions. A view gives every
axis of the rule an ordered group of the array's dimensions; it stands for the array transposed to
the order of the groups and each group laid out flat. Dimensions of size one may be in no group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir import TensorType

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

    single: whether each part has no such dimension, so that a split removes it.
    """

    lengths: tuple[int, int]
    single: tuple[bool, bool]


def renumbered(groups: Partial, to: Mapping[int, int]) -> Partial | None:
    """Groups with other numbers for the dimensions; None if one has none."""
    if any(d not in to for group in groups for d in group or ()):
        return None
    return tuple(None if g is None else tuple(to[d] for d in g) for g in groups)


def unify(left: Partial | None, right: Partial | None) -> Partial | None:
    """Both together; None if they contradict. An unknown axis contradicts nothing."""
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
