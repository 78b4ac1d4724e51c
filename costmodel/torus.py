"""Collectives on a torus: each device has a link to the next and to the last one on every axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiles import CollectiveKind, Link

Floats = NDArray[np.float64]
# For each axis of the torus: members of a group on it, and the distance between them.
Spans = tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=256)
def torus_shape(devices: int, axes: int) -> tuple[int, ...]:
    """Sides of a slice of this number of devices, shortest first, the longest as short as can be.

    The slices that are offered have this form: 2 x 4, 4 x 4, 4 x 8, 16 x 16 on two axes, 2 x 4 x 4,
    4 x 4 x 8 on three.

    Source: shapes of Cloud TPU slices, docs.cloud.google.com/tpu/docs/v5e, v5p and v6e.
    """
    if axes == 1:
        return (devices,)
    found = [
        (*torus_shape(devices // side, axes - 1), side)
        for side in range(1, devices + 1)
        if devices % side == 0 and torus_shape(devices // side, axes - 1)[-1] <= side
    ]
    return min(found, key=lambda shape: (shape[-1], shape[::-1]))


def spans_of(shape: tuple[int, ...], members: Sequence[int]) -> Spans:
    """How a group lies on a torus whose devices are numbered row by row.

    Members that are no grid count as one line of neighbours, which has a single link each way.
    """
    places = np.unravel_index(np.asarray(members), shape)
    found: list[tuple[int, int]] = []
    for axis in places:
        there = np.unique(axis)
        found.append((len(there), int(np.diff(there).min()) if len(there) > 1 else 1))
    if math.prod(count for count, _ in found) != len(members):
        return ((len(members), 1),) + ((1, 1),) * (len(shape) - 1)
    return tuple(found)


def torus_seconds(
    kind: CollectiveKind,
    spans: Spans,
    shape: tuple[int, ...],
    link: Link,
    rate: float,
    full_bytes: Floats,
    wire_bytes: Floats,
) -> Floats:
    """Seconds of a collective, all groups of its kind running at once.

    On an axis with w byte/s for each link and direction, a group whose members are s apart shares
    links with s - 1 others. All-gather and reduce-scatter:

        hops * latency + wire / (axes * least of the axes' rates)
        rate of an axis = 2 w / s where the axis closes into a ring, w / s where it is a line

    since a ring sends both ways at once, the last device of a line is reached over one link, and
    several axes work on parts of the data at the same time. An all-reduce is both. In an all-to-all
    half of what n devices hold crosses the middle of an axis each way, over two links of a ring or
    one of a line:

        hops * latency + greatest of the axes' n s full / (8 w) of a ring, / (4 w) of a line

    A permute sends to the next member over s links.

    Args:
        kind: of the collective.
        spans: of a group, from `spans_of`.
        shape: sides of the torus.
        link: all links of a device.
        rate: bytes that a device sends in a second over all its links together.
        full_bytes: as in `CollectiveModel.seconds`.
        wire_bytes: what each device sends, by `wire_fraction`.

    Source: Austin et al., How to Scale Your Model (2025), chapters 2 and 3: links, wrap-around,
    collectives over several axes, all-to-all of a ring.
    """
    w = rate / (2 * len(shape))
    live = [
        (count, apart, count * apart == side and side >= link.ring_from)
        for (count, apart), side in zip(spans, shape, strict=True)
        if count > 1
    ]
    if kind == "collective-permute":
        furthest = max(apart for _, apart, _ in live)
        return furthest * (link.latency_s + full_bytes / w)
    hops = sum(apart * (count // 2 if closed else count - 1) for count, apart, closed in live)
    latency = hops * link.latency_s
    if kind == "all-to-all":
        worst = max(count * apart / (8 if closed else 4) for count, apart, closed in live)
        return latency + worst * full_bytes / w
    least = min((2 if closed else 1) * w / apart for _, apart, closed in live)
    rounds = 2 if kind == "all-reduce" else 1
    return rounds * latency + wire_bytes / (len(live) * least)
