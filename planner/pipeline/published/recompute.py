"""Which layers of a stage run forward again: the selections that a search chooses from.

Of layers that save the same bytes the cheapest come first, so a selection is how many of each such
class recompute. All selections are listed where they are few; else those of Piper's greedy order,
seconds per byte saved, ascending.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .graph import LayerGraph, Variant

MOST_SELECTIONS = 600
MOST_GREEDY = 48

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Selections:
    """How layers may be chosen to recompute, for every stage at once.

    chosen: per selection, the layers that recompute if they are in the stage, by class; each entry
        is (layers of the class in order, how many of them).
    exact: whether these are all that matter.
    counted: whether a stage must have as many layers of a class as the selection names; otherwise
        it takes those it has.
    """

    chosen: tuple[tuple[tuple[tuple[int, ...], int], ...], ...]
    exact: bool
    counted: bool = False

    def layers(self, selection: int, stage: Bools) -> frozenset[int]:
        """Layers of a stage that recompute."""
        found: set[int] = set()
        for members, count in self.chosen[selection]:
            found.update([v for v in members if stage[v]][:count])
        return frozenset(found)


def choices(variants: tuple[Variant, ...]) -> dict[str, Variant]:
    """Variants by name."""
    return {variant.recompute: variant for variant in variants}


def _trades(graphs: Mapping[str, LayerGraph], layer: int, degree: int) -> bool:
    """Whether recomputing the layer saves anything that costs something."""
    for graph in graphs.values():
        by = choices(graph.layers[layer].at(degree))
        if len(by) < 2 or by["full"].flight_bytes >= by["none"].flight_bytes:
            return False
    return True


def selections(graphs: Mapping[str, LayerGraph], degree: int, *, greedy: bool) -> Selections:
    """Selections at a tensor-parallel degree.

    Args:
        graphs: by device kind.
        degree: tensor-parallel degree, measured for every layer.
        greedy: only Piper's order, even where all would be few.
    """
    first = next(iter(graphs.values()))
    classes: dict[tuple[tuple[float, float], ...], list[int]] = {}
    for v in range(len(first.layers)):
        if _trades(graphs, v, degree):
            key = tuple(_saves(graph, v, degree) for graph in graphs.values())
            classes.setdefault(key, []).append(v)
    for members in classes.values():
        members.sort(key=lambda v: (_extra_s(first, v, degree), v))
    groups = [tuple(members) for members in classes.values()]
    size = int(np.prod([len(members) + 1 for members in groups], dtype=float)) if groups else 1
    if size <= MOST_SELECTIONS and not greedy:
        counts = itertools.product(*(range(len(members) + 1) for members in groups))
        chosen = tuple(tuple(zip(groups, count, strict=True)) for count in counts)
        return Selections(chosen, exact=len(graphs) == 1 or size == 1, counted=True)
    return Selections(tuple(_greedy(first, groups, degree)), exact=size == 1)


def _saves(graph: LayerGraph, v: int, degree: int) -> tuple[float, float]:
    """Bytes of a micro-batch in flight, and bytes always held."""
    by = choices(graph.layers[v].at(degree))
    plain, again = by["none"], by["full"]
    return plain.flight_bytes - again.flight_bytes, plain.fixed_bytes - again.fixed_bytes


def _extra_s(graph: LayerGraph, v: int, degree: int) -> float:
    by = choices(graph.layers[v].at(degree))
    return by["full"].seconds - by["none"].seconds


def _greedy(
    graph: LayerGraph, groups: list[tuple[int, ...]], degree: int
) -> Iterator[tuple[tuple[tuple[int, ...], int], ...]]:
    def price(v: int) -> float:
        return _extra_s(graph, v, degree) / _saves(graph, v, degree)[0]

    order = sorted((v for members in groups for v in members), key=lambda v: (price(v), v))
    steps = np.unique(np.linspace(0, len(order), MOST_GREEDY).round().astype(int))
    for count in steps:
        yield ((tuple(order[:count]), int(count)),)


def mask(found: Selections, selection: int, stages: Bools) -> tuple[Bools, npt.NDArray[np.bool_]]:
    """Layers that recompute in each stage, [stages, layers], and where that is possible."""
    again = np.zeros_like(stages)
    possible = np.ones(len(stages), dtype=bool)
    for members, count in found.chosen[selection]:
        columns = np.array(members, dtype=int)
        inside = stages[:, columns]
        rank = inside.cumsum(axis=1)
        again[:, columns] |= inside & (rank <= count)
        if found.counted and count:
            possible &= rank[:, -1] >= count
    return again, possible
