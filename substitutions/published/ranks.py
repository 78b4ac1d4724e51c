"""How many dimensions each input of a rule has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..graph import Ref, Side
from ..ops import OPS

Key = tuple[int, Ref]  # the side; inputs are on side 0


def infer_ranks(
    sides: Sequence[Side], stated: Mapping[Key, int], usual: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Ranks of the inputs, from the ops that read them, else as is usual for their numbers.

    Args:
        sides: the two graphs.
        stated: ranks that the file gives for values.
        usual: rank of each input by name. Values of one rank take the largest usual one.
    """
    groups = _groups(sides)
    known = {_find(groups, key): rank for key, rank in stated.items()}
    for s, side in enumerate(sides):
        for i, op in enumerate(side):
            dims = OPS[op.kind].dims
            if dims is not None:
                for key in (*_keys(s, op.inputs), (s, Ref(i))):
                    known.setdefault(_find(groups, key), dims)
    names = sorted({ref.name for side in sides for op in side for ref in op.inputs if ref.op < 0})
    largest: dict[Key, int] = {}
    for name in names:
        group = _find(groups, (0, Ref(-1, 0, name)))
        largest[group] = max(largest.get(group, 0), usual[name])
    found: list[tuple[str, int]] = []
    for name in names:
        group = _find(groups, (0, Ref(-1, 0, name)))
        found.append((name, known.get(group, largest[group])))
    return tuple(found)


def _keys(side: int, refs: Sequence[Ref]) -> Iterator[Key]:
    for ref in refs:
        yield (0 if ref.op < 0 else side, ref)


def _groups(sides: Sequence[Side]) -> dict[Key, Key]:
    """Values of equal rank, as a union-find forest."""
    parent: dict[Key, Key] = {}
    for s, side in enumerate(sides):
        for i, op in enumerate(side):
            made = [(s, Ref(i)), (s, Ref(i, 1))]
            tensors = op.inputs[: len(op.inputs) - OPS[op.kind].scalars]
            same = [*_keys(s, tensors), *made]
            for key in same:
                parent.setdefault(key, key)
            for key in same[1:]:
                parent[_find(parent, key)] = _find(parent, same[0])
            for key in _keys(s, op.inputs):
                parent.setdefault(key, key)
    return parent


def _find(parent: Mapping[Key, Key], key: Key) -> Key:
    while parent.get(key, key) != key:
        key = parent[key]
    return key
