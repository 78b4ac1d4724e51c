"""Kernels of a program and the blocks of memory that they read and write."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One thing that runs: a fusion, a library call, a collective, a loop.

    moment: of the flat program.
    reads, writes: blocks of its body.
    overwrites: may write over a block of the same size that it is the last to read.
    extra_bytes: that it needs while it runs.
    inner: bodies that it runs.
    joins: equal ones that do not depend on each other run as one.
    """

    moment: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: bool = False
    extra_bytes: int = 0
    inner: tuple[Body, ...] = ()
    joins: Hashable = None


@dataclass(eq=False)
class Body:
    """Kernels in the order of the program, and bytes of the blocks.

    sources: arguments and ports -> blocks that are there from the start and count elsewhere.
    held: blocks that live to the end.
    """

    kernels: list[Kernel] = field(default_factory=list[Kernel])
    sizes: list[int] = field(default_factory=list[int])
    sources: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    held: set[int] = field(default_factory=set[int])

    def block(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def source(self, of: Hashable) -> int:
        if of not in self.sources:
            self.sources[of] = self.block(0)
        return self.sources[of]
