"""Arguments in groups: equal arguments of all layers are one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...common.layer_names import common_name, without_numbers
from ..analysed_plan import AnalysedPlan


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
        key = (without_numbers(name), type_, role, sharding)
        found.setdefault(key, []).append((size, node, local, name))
    made = [
        Group(
            common_name([name for *_, name in members]), len(members), key[1], key[2], key[3],
            members[0][2], sum(size for size, *_ in members), members[0][1],
        )
        for key, members in found.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda g: (-g.local_bytes, g.name)))


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
