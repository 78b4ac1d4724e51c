"""The mesh axes along which a compiled collective sends."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'(?:=(\d+))?")


def axes_of(line: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Axes along which the members of some group of a collective differ.

    Args:
        line: an instruction whose devices are numbered along the mesh in row-major order.
        sizes: of the mesh.
    """
    groups = _groups(line, math.prod(sizes))
    places = np.stack(np.unravel_index(np.concatenate(groups), tuple(sizes)))
    starts = np.cumsum([0, *(len(group) for group in groups)])
    return tuple(
        axis for axis, row in enumerate(places)
        if any((row[a:b] != row[a]).any() for a, b in pairwise(starts))
    )  # fmt: skip


def _groups(line: str, devices: int) -> list[np.ndarray]:
    """Devices of each group; of a permute those of each pair."""
    everyone = np.arange(devices)
    listed = _LISTED.search(line)
    if listed is not None:
        groups = listed.group(1).strip("{}").split("},{")
        return [np.array([int(n) for n in group.split(",")]) for group in groups]
    iota = _IOTA.search(line)
    if iota is not None:
        shape, dims, order = (_numbers(text or "") for text in iota.groups())
        table = everyone.reshape(dims)
        table = table.transpose(order) if order else table
        return list(table.reshape(-1, shape[-1]))
    mesh = _MESH.search(line)
    if mesh is not None:
        axes = [(name, int(size)) for name, size in _AXIS.findall(mesh.group(1))]
        along = {name for name, _ in _AXIS.findall(mesh.group(2))}
        order = sorted(range(len(axes)), key=lambda n: axes[n][0] in along)
        size = math.prod(size for name, size in axes if name in along)
        table = everyone.reshape([size for _, size in axes]).transpose(order)
        return list(table.reshape(-1, size))
    return [everyone]


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]
