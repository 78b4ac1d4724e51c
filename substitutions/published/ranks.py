"""How many dimensions each input of a rule has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ir.analysis import find

from ..graph import Ref, Side
from ..ops import OPS

Key = tuple[int, Ref]  # the side; inputs are on side 0


def infer_ranks(
    sides: Sequence[Side], stated: Mapping[Key, int], usual: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Ranks of the inputs, from the ops that read them, else the usual ones.

    Args:
        sides: the two graphs.
        stated: ranks that the file gives for values.
        usual: rank of each input by name. Values of one rank take the largest usual one.
    """
    group = _groups(sides)
    known = {group(key): rank for key, rank in stated.items()}
    for s, side in enumerate(sides):
        for i, op in enumerate(side):
            dims = OPS[op.kind].dims
            if dims is not None:
                for key in (*_keys(s, op.inputs), (s, Ref(i))):
                    known.setdefault(group(key), dims)
    names = sorted({ref.name for side in sides for op in side for ref in op.inputs if ref.op < 0})
    groups = {name: group((0, Ref(-1, 0, name))) for name in names}
    largest: dict[int, int] = {}
    for name, number in groups.items():
        largest[number] = max(largest.get(number, 0), usual[name])
    return tuple((name, known.get(number, largest[number])) for name, number in groups.items())


def _keys(side: int, refs: Sequence[Ref]) -> Iterator[Key]:
    for ref in refs:
        yield (0 if ref.op < 0 else side, ref)


def _groups(sides: Sequence[Side]) -> Callable[[Key], int]:
    """Numbers of values, equal for those of equal rank."""
    number: dict[Key, int] = {}
    parent: list[int] = []

    def group(key: Key) -> int:
        if key not in number:
            number[key] = len(parent)
            parent.append(len(parent))
        return find(parent, number[key])

    for s, side in enumerate(sides):
        for i, op in enumerate(side):
            tensors = op.inputs[: len(op.inputs) - OPS[op.kind].scalars]
            first, *same = [*_keys(s, tensors), (s, Ref(i)), (s, Ref(i, 1))]
            for key in same:
                parent[group(key)] = group(first)
    return group
