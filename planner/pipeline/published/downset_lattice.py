"""Downsets of a layer graph: the sets of layers that a pipeline may still have to run.

A suffix set holds with each layer all that come after it. A stage is the difference of two, so a
pipeline is a chain of suffix sets from the whole graph to nothing.

Source: Tarnawski et al., "Piper", NeurIPS 2021, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...common.errors import PlanError
from .graph import LayerGraph

MOST_SETS = 1500

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lattice:
    """Suffix sets by size, the empty one first, and the pairs that leave a stage between them.

    member: [sets, layers].
    outer, inner: [pairs], the set before and after a stage is taken away.
    pair: [sets, sets], index of a pair or -1.
    """

    member: Bools
    outer: Ints
    inner: Ints
    pair: Ints

    @property
    def stages(self) -> Bools:
        """Layers of the stage between each pair, [pairs, layers]."""
        return self.member[self.outer] & ~self.member[self.inner]


def lattice_size(graph: LayerGraph, most: int) -> int:
    """Suffix sets of a graph, counted until there are more than `most`."""
    return len(_suffix_sets(graph, most))


def _suffix_sets(graph: LayerGraph, most: int) -> list[int]:
    """Suffix sets as bits, by size; more than `most` means that counting stopped."""
    count = len(graph.layers)
    successors = [0] * count
    for edge in graph.edges:
        successors[edge.source] |= 1 << edge.target
    found: dict[int, None] = {0: None}
    layer = [0]
    while layer and len(found) <= most:
        grown: dict[int, None] = {}
        for held in layer:
            for v in range(count - 1, -1, -1):
                if not held >> v & 1 and successors[v] & ~held == 0:
                    grown[held | 1 << v] = None
        found |= grown
        layer = list(grown)
    return list(found)


def lattice(graph: LayerGraph) -> Lattice:
    """All suffix sets of a graph.

    Raises:
        PlanError: if there are more than `MOST_SETS`.
    """
    count = len(graph.layers)
    found = _suffix_sets(graph, MOST_SETS)
    if len(found) > MOST_SETS:
        raise PlanError(
            f"has more than {MOST_SETS} ways to cut its branches", kind="too-branchy",
            where=graph.name, remedy="merge layers of parallel branches into one",
        )  # fmt: skip
    member = np.array([[held >> v & 1 for v in range(count)] for held in found], dtype=bool)
    inside = (member.astype(np.int32) @ (~member).T.astype(np.int32)) == 0
    # inside[a, b]: set a lies in set b.
    np.fill_diagonal(inside, False)
    inner, outer = np.nonzero(inside)
    order = np.lexsort((inner, outer))
    outer, inner = outer[order].astype(np.int64), inner[order].astype(np.int64)
    pair = np.full((len(found), len(found)), -1, dtype=np.int64)
    pair[outer, inner] = np.arange(len(outer))
    return Lattice(member, outer, inner, pair)
