"""When kernels run, how long blocks live, and how they are packed.

XLA's CPU compiler runs what is ready first in, first out: arguments and constants, then whatever
has all its operands. Blocks are packed largest first, or longest first, each where it fits best.
How long a block lives is counted in blocks that come and go meanwhile.

Source: `BFScheduler` and `GlobalDecreasingSizeBestFitHeap` of XLA.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .kernels import CONSTANT, Body, Kernel

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Blocks of a program over time: bytes, first and last time at which each is in use.

    moments: of the flat program, at each time.
    """

    sizes: Ints
    first: Ints
    last: Ints
    moments: Ints

    def in_use(self) -> Ints:
        """Bytes in use at each time."""
        change = np.zeros(len(self.moments) + 1, dtype=np.int64)
        np.add.at(change, self.first, self.sizes)
        np.add.at(change, self.last + 1, -self.sizes)
        return np.cumsum(change)[:-1]

    def packed_bytes(self) -> int:
        """Bytes that all blocks together take: the better of two orders."""
        long = self._changes()
        return min(
            self._best_fit(np.lexsort((self.first, -long, -self.sizes))),
            self._best_fit(np.lexsort((self.first, -self.sizes, -long))),
        )

    def _changes(self) -> Ints:
        """How many blocks come or go from the begin of each block to its end."""
        count = len(self.sizes)
        times, ends = np.concatenate((self.first, self.last)), np.repeat((0, 1), count)
        rank = np.empty(2 * count, dtype=np.int64)
        rank[np.lexsort((ends, times))] = np.arange(2 * count)
        return rank[count:] - rank[:count]

    def _best_fit(self, order: Ints) -> int:
        """Each block goes into the smallest gap that holds it, among those alive with it."""
        count = len(self.sizes)
        start, placed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
        top = 0
        for i in order.tolist():
            beside = placed & (self.first <= self.last[i]) & (self.last >= self.first[i])
            at = np.flatnonzero(beside)
            at = at[np.argsort(start[at], kind="stable")]
            ends = np.maximum.accumulate(start[at] + self.sizes[at]) if len(at) else start[:0]
            holes = np.concatenate(([0], ends))[:-1] if len(at) else start[:0]
            gaps = start[at] - holes
            fits = np.flatnonzero(gaps >= self.sizes[i])
            if len(fits):
                best = fits[np.argmin(gaps[fits])]
                start[i] = holes[best]
            elif len(at):
                start[i] = ends[-1]
            placed[i] = True
            top = max(top, int(start[i] + self.sizes[i]))
        return top


def laid_out(body: Body, rank: Callable[[Hashable], int]) -> Layout:
    """All blocks of a program, those of its loops included.

    Args:
        body: the program.
        rank: arguments in order.
    """
    rows: list[tuple[int, int, int]] = []
    moments: list[int] = []
    _run(body, rank, rows, moments)
    sizes, first, last = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Layout(sizes, first, last, np.array(moments, dtype=np.int64))


def _run(
    body: Body, rank: Callable[[Hashable], int], rows: list[tuple[int, int, int]],
    moments: list[int],
) -> None:  # fmt: skip
    """Appends the blocks of a body, from now on."""
    kernels = scheduled(body, rank)
    last: dict[int, int] = {}
    for n, kernel in enumerate(kernels):
        last |= dict.fromkeys((*kernel.reads, *kernel.writes), n)
    alive: dict[int, tuple[int, int]] = {}  # block -> size, since when
    for n, kernel in enumerate(kernels):
        now = len(moments)
        moments.append(kernel.moment)
        for inner in kernel.inner:
            _run(inner, rank, rows, moments)
        end = len(moments) - 1
        dying = [b for b in kernel.reads if last[b] == n and b not in body.held and b in alive]
        for block in sorted(kernel.writes, key=lambda b: -body.sizes[b]):
            size = body.sizes[block]
            over = next((b for b in dying if kernel.overwrites and alive[b][0] == size), None)
            since = now
            if over is not None:
                since = alive.pop(over)[1]
                dying.remove(over)
            alive[block] = size, since
        dying += [b for b in kernel.writes if last[b] == n and b not in body.held]
        for block in dying:
            size, since = alive.pop(block)
            if size:
                rows.append((size, since, end))
        if kernel.extra_bytes:
            rows.append((kernel.extra_bytes, now, end))
    end = len(moments) - 1
    rows += [(size, since, end) for size, since in alive.values() if size]


def scheduled(body: Body, rank: Callable[[Hashable], int]) -> list[Kernel]:
    """Kernels in the order in which they run; sources come first, constants last of them."""
    body.source(CONSTANT)
    names = sorted((s for s in body.sources if s != CONSTANT), key=rank)
    first = [Kernel(0, (), (body.sources[name],)) for name in [*names, CONSTANT]]
    kernels = [*first, *_joined(body.kernels)]
    maker = {block: n for n, kernel in enumerate(kernels) for block in kernel.writes}
    users: dict[int, list[int]] = defaultdict(list)
    waits = [0] * len(kernels)
    for n, kernel in enumerate(kernels):
        for m in {maker[block] for block in kernel.reads}:
            users[m].append(n)
            waits[n] += 1
    ready = deque(n for n in range(len(kernels)) if not waits[n])
    order: list[Kernel] = []
    while ready:
        n = ready.popleft()
        order.append(kernels[n])
        for user in users[n]:
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    return order


def _joined(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels of one kind that do not depend on each other as one."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for kind in {k.joins for k in kernels if k.joins is not None}:
        for n, depth in enumerate(_depths(kernels, kind)):
            if kernels[n].joins == kind:
                groups[kind, depth].append(n)
    found: list[Kernel | None] = list(kernels)
    for members in groups.values():
        parts = [kernels[n] for n in members]
        for n in members:
            found[n] = None
        found[members[-1]] = replace(
            parts[-1],
            reads=tuple(sorted({b for k in parts for b in k.reads})),
            writes=tuple(b for k in parts for b in k.writes),
        )
    return [kernel for kernel in found if kernel is not None]


def _depths(kernels: Sequence[Kernel], kind: Hashable) -> list[int]:
    """How many kernels of a kind each one waits for, one after the other."""
    maker: dict[int, int] = {}
    depths: list[int] = []
    for n, kernel in enumerate(kernels):
        before = [maker[b] for b in kernel.reads if b in maker]
        depths.append(max((depths[m] + (kernels[m].joins == kind) for m in before), default=0))
        maker |= dict.fromkeys(kernel.writes, n)
    return depths
