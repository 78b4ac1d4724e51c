"""Arguments in groups: equal arguments of all layers are one row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..analysed_plan import AnalysedPlan

_NUMBER = re.compile(r"(?<![^/._])\d+(?![^/._])")


@dataclass(frozen=True, slots=True)
class Group:
    """Arguments that differ only in a number in their names.

    name: with `*` for the layer's number; node: the first member's node in the problem.
    """

    name: str
    count: int
    type: str
    role: str
    sharding: str
    local: str
    local_bytes: float  # of all together, on one device
    node: int


def groups(analysed: AnalysedPlan, names: Mapping[str, str] = {}) -> tuple[Group, ...]:
    """Groups of arguments, the largest first; `names` replace the program's own."""
    found: dict[tuple[str, str, str, str], list[tuple[float, int, str, str]]] = {}
    for own, type_, role, sharding, local, size, node in _each(analysed):
        name = names.get(own, own)
        key = (_NUMBER.sub("*", name), type_, role, sharding)
        found.setdefault(key, []).append((size, node, local, name))
    made = [
        Group(
            _common([name for *_, name in members]), len(members), key[1], key[2], key[3],
            members[0][2], sum(size for size, *_ in members), members[0][1],
        )
        for key, members in found.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda g: (-g.local_bytes, g.name)))


def _common(names: list[str]) -> str:
    """One name for all, with `*` for the numbers in which they differ."""
    numbers = [_NUMBER.findall(name) for name in names]
    same = [len(set(column)) == 1 for column in zip(*numbers, strict=True)]
    kept = iter(zip(same, numbers[0], strict=True))

    def shown(_: re.Match[str]) -> str:
        alike, number = next(kept)
        return number if alike else "*"

    return _NUMBER.sub(shown, names[0])


def _each(analysed: AnalysedPlan) -> Iterator[tuple[str, str, str, str, str, float, int]]:
    mesh = analysed.decisions.mesh
    for item, v, state in zip(
        analysed.graph.inputs, analysed.flat.inputs, analysed.decisions.inputs, strict=True
    ):
        local = "x".join(map(str, state.local_shape(item.type.shape, mesh))) or "scalar"
        yield (
            item.name, str(item.type), item.role, str(state), local,
            float(state.local_bytes(item.type, mesh)), analysed.built.value_node[v],
        )  # fmt: skip
