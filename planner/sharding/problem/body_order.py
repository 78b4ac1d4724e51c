"""The ops and regions of a body as a graph: what needs what, and the longest way through it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ir.analysis import Place

Ints = NDArray[np.intp]
MOST = 0.95  # share of a body's work for which its largest ops are counted
SLACK = 0.001  # share of the longest way by which the longest way through an op may be shorter


@dataclass
class Body:
    """Ops and regions of a body in order, as a graph.

    units: flat numbers of ops, -1 for regions; readers, made: units by flat value.
    size: work of each op; length: that, or of a region the work of all its rounds.
    large: units of the largest ops; bit n of a mask stands for the n-th of them.
    leads, follows: unit -> mask of what leads to it or follows from it, and itself.
    critical: mask of the largest ops that are on a longest way through the body, or near one.
    """

    place: Place
    units: list[int] = field(default_factory=list[int])
    size: list[float] = field(default_factory=list[float])
    length: list[float] = field(default_factory=list[float])
    large: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    reads: list[Sequence[int]] = field(default_factory=list[Sequence[int]])
    made: dict[int, int] = field(default_factory=dict[int, int])
    readers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    leads: list[int] = field(default_factory=list[int])
    follows: list[int] = field(default_factory=list[int])
    scalars: list[int] = field(default_factory=list[int])
    critical: int = 0

    def add(
        self, op: int, size: float, length: float, reads: Iterable[int], makes: Iterable[int]
    ) -> int:
        unit = len(self.units)
        self.units.append(op)
        self.size.append(size)
        self.length.append(length)
        self.reads.append(tuple(reads))
        for v in self.reads[-1]:
            self.readers.setdefault(v, []).append(unit)
        self.made.update(dict.fromkeys(makes, unit))
        return unit

    def close(self) -> None:
        """Works out what leads to each unit, what follows from it, and the longest way."""
        count = len(self.units)
        order = np.argsort(-np.array(self.size), kind="stable")
        total = np.cumsum(np.array(self.size)[order])
        needed = int(np.searchsorted(total, MOST * float(total[-1]))) + 1 if count else 0
        self.large = np.sort(order[:needed])
        bits = [0] * count
        for n, unit in enumerate(self.large.tolist()):
            bits[unit] = 1 << n
        to = [0.0] * count  # longest way to the end of each unit, and from its start
        for unit, reads in enumerate(self.reads):
            mask, longest = bits[unit], 0.0
            for v in reads:
                maker = self.made.get(v, unit)
                if maker < unit:
                    mask |= self.leads[maker]
                    longest = max(longest, to[maker])
            self.leads.append(mask)
            to[unit] = longest + self.length[unit]
        made_by: list[list[int]] = [[] for _ in range(count)]
        for v, unit in self.made.items():
            made_by[unit].append(v)
        self.follows, least = [0] * count, (1.0 - SLACK) * max(to, default=0.0)
        onward = [0.0] * count
        for unit in reversed(range(count)):
            mask, longest = bits[unit], 0.0
            for reader in (r for v in made_by[unit] for r in self.readers.get(v, ()) if r > unit):
                mask |= self.follows[reader]
                longest = max(longest, onward[reader])
            self.follows[unit] = mask
            onward[unit] = longest + self.length[unit]
            if to[unit] + longest >= least:
                self.critical |= bits[unit]

    @cached_property
    def large_ops(self) -> Ints:
        """Flat number of each of the largest ops."""
        return np.array([self.units[unit] for unit in self.large.tolist()], dtype=np.intp)

    @property
    def everything(self) -> int:
        return (1 << len(self.large)) - 1

    def needed(self, v: int) -> frozenset[int]:
        """The units that a value needs."""
        found, path = set[int](), [v]
        while path:
            unit = self.made.get(path.pop(), -1)
            if unit >= 0 and unit not in found:
                found.add(unit)
                path.extend(self.reads[unit])
        return frozenset(found)

    def before(self, v: int) -> int:
        """Mask of what leads to a value."""
        return self.leads[self.made[v]] if v in self.made else 0

    def after(self, v: int) -> int:
        """Mask of what follows from a value."""
        mask, maker = 0, self.made.get(v, -1)
        for reader in self.readers.get(v, ()):
            if reader > maker:
                mask |= self.follows[reader]
        return mask

    def members(self, mask: int) -> Ints:
        """Numbers of the bits of a mask."""
        count = len(self.large)
        data = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(data, bitorder="little", count=count))
