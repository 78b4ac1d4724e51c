"""Memory of a plan as XLA's CPU compiler lays it out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from costmodel import Cluster

from ..intra.build import Builder
from ..intra.problem import Floats
from ..intra.records import Built
from .decided import Decided
from .order import laid_out
from .write import written

HOSTS = ("host",)  # machines that XLA's CPU compiler compiles for


def is_host(cluster: Cluster) -> bool:
    """Whether devices are CPUs."""
    return cluster.profile in HOSTS


def host_memory(builder: Builder, built: Built, choice: Sequence[int]) -> Floats:
    """Bytes at every moment of the flat program, arguments included.

    The fullest moment has what blocks take once they are packed; where nothing runs at a moment,
    what ran before counts.

    Args:
        builder: of the problem.
        built: the problem.
        choice: of its nodes.
    """
    program = Decided(builder, built, choice)
    place = {v: n for n, v in enumerate(builder.flat.inputs)}

    def rank(source: Hashable) -> int:
        return place.get(source, len(place) + source) if isinstance(source, int) else 0

    layout = laid_out(written(program), rank)
    moments = max(built.lives.horizon, 1)
    found = np.full(moments, -1.0)
    used = layout.in_use().astype(np.float64)
    np.maximum.at(found, np.minimum(layout.moments, moments - 1), used)
    peak = int(np.argmax(found))
    found[peak] = max(found[peak], float(layout.packed_bytes()))
    ran = np.maximum.accumulate(np.where(found >= 0.0, np.arange(len(found)), 0))
    held = built.lives.held_bytes(choice) if built.lives.horizon else 0.0
    return np.maximum(found[ran], 0.0) + _arguments(built, builder, choice) + held


def _arguments(built: Built, builder: Builder, choice: Sequence[int]) -> float:
    nodes = (built.value_node[v] for v in builder.flat.inputs)
    return sum(float(built.lives.usage[n][choice[n]]) for n in nodes)
