"""Ops that read an operand through a window, split along it: shards with borders of neighbours.

Along a dimension of such an op, two indices a and b of it meet the input at

    x * dilation = a * step + b * spread - low        0 <= a < many, 0 <= b < others

in which one of a and b is of the result and the other of the window. Where a is split into as
many parts as the input, and a part of a begins where that of the input does,

    many * step = size * dilation

every device needs the same number of elements before and behind its shard,

    before = floor(low / dilation)
    after = floor(((others - 1) * spread - low - step) / dilation) + 1

and runs the op on its shard with these, padded by what is left. A border that is wider than a shard
comes from several devices, one permute each. If a is of the result, each device
has its part of that (a convolution, its gradient by the input, a pool); if it is of the window, a
partial sum of all of it (the gradient of a convolution by its kernel). The joint factor of the
dimension says so.

Source: the spatial splits of Jia et al., OptCNN, ICML 2018, and Wang et al., Tofu, EuroSys 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..factors import FactorSpec


@dataclass(frozen=True, slots=True)
class Slide:
    """A dimension in which an op slides, and the factor that splits it.

    factor: its joint factor; parts: what the number of its parts must divide.
    members: factors of the dimension, that of the input first.
    number: of its entry in the op's attribute `padding`; -1 if it has none.
    operands: positions of the operands whose shards are extended.
    dim: of these.
    before, after: elements of the border on either side.
    padding: of the extended shard, low and high.
    sums: whether results are partial sums over it.
    returns: whether the result has the borders too, which go back to the neighbours and are added.
    shifts: whether the op only moves elements, by `before` or by minus `after`.
    wraps: whether what a shift moves beyond an end comes in at the other.
    beyond: elements behind the ring of such a shift; the last shard holds at least as many elements
        of the ring as it moves by.
    """

    factor: str
    parts: int
    members: tuple[str, ...]
    number: int
    operands: tuple[int, ...]
    dim: int
    before: int
    after: int
    padding: tuple[int, int]
    sums: bool = False
    returns: bool = False
    shifts: bool = False
    wraps: bool = False
    beyond: int = 0

    def permutes(self, parts: int, size: int) -> tuple[tuple[int, int], ...]:
        """What a device is sent: (device that sends it, counted backwards from its own; elements).

        Args:
            parts: of the dimension.
            size: elements of the whole dimension.
        """
        if parts < 2:
            return ()
        shard = size // parts
        found: list[tuple[int, int]] = []
        for sign, border in ((1, self.before), (-1, self.after)):
            far, near = divmod(border, shard)
            if self.shifts:
                rows = ((far, shard - near), (far + 1, near)) if border else ()
            else:
                rows = (*((k + 1, shard) for k in range(far)), (far + 1, near))
            found += [(sign * k, n) for k, n in rows if k and n and (k < parts or self.wraps)]
        return tuple(found)

    @property
    def border(self) -> tuple[int, int]:
        return self.before, self.after


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where two indices of an op meet the input along a dimension; letters as above."""

    size: int
    dilation: int
    low: int
    many: int
    step: int
    others: int
    spread: int

    @property
    def aligned(self) -> bool:
        return self.many * self.step == self.size * self.dilation and min(self.size, self.many) > 1

    @property
    def border(self) -> tuple[int, int]:
        """Elements that a device needs before its shard, and behind it."""
        reach = (self.others - 1) * self.spread - self.low - self.step
        return max(0, self.low // self.dilation), max(0, reach // self.dilation + 1)

    @property
    def padding(self) -> tuple[int, int]:
        """Padding of a shard with its borders, negative where elements are left out."""
        before, after = self.border
        low = self.low - before * self.dilation
        # what the op spans on a shard, less the shard itself: the same for every number of parts
        span = (self.others - 1) * self.spread - self.step
        return low, span - low - (before + after - 1) * self.dilation

    @property
    def parts(self) -> int:
        """What the number of shards must divide."""
        return math.gcd(self.size, self.many)


def splitting(spec: FactorSpec, slides: Sequence[Slide]) -> FactorSpec:
    """The spec of an op in which these dimensions are whole, with a joint factor for each."""
    if not slides:
        return spec
    return replace(
        spec,
        sizes=(*spec.sizes, *((each.factor, each.parts) for each in slides)),
        kinds=tuple(sorted((*spec.kinds, *((s.factor, "sum") for s in slides if s.sums)))),
        joint=tuple((each.factor, each.members) for each in slides),
    )
