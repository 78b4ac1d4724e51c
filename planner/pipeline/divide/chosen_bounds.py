"""Estimates of stages that choose value by value what they keep.

Such a stage may need as little memory as under the kind of recomputation that needs least, and is
seldom faster than one that computes nothing again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .run_costs import Costs, Shares, Whole
from .stage_bounds import Known, Run, StageBounds, StageKind

NONE = "none"


@dataclass
class ChosenBounds:
    """Seconds of stages that compute nothing again, where they fit under any kind.

    limited: estimates under the limit of memory.
    kinds: kinds of recomputation.
    """

    limited: StageBounds
    kinds: tuple[str, ...]
    shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self.shares = self.limited.shares

    @property
    def known(self) -> dict[StageKind, dict[Run, list[Known]]]:
        """Planned stages."""
        return self.limited.known

    @cached_property
    def _free(self) -> StageBounds:
        return replace(self.limited, limit_bytes=float("inf"), short=[], _costs={})

    def whole(self, count: int, size: int) -> Whole:
        """See `StageBounds`."""
        return self.limited.whole(count, size)

    def costs(self, kind: StageKind, flight: int, *, late: bool) -> Costs:
        """See `StageBounds`; the kind of recomputation does not count."""
        each = [replace(kind, recompute=name) for name in self.kinds]
        paces = [self.limited.costs(one, flight, late=late).pace_s for one in each]
        fits = np.isfinite(paces).any(axis=0)
        free = self._free.costs(replace(kind, recompute=NONE), flight, late=late)
        return Costs(*(np.where(fits, seconds, np.inf) for seconds in (free.pace_s, free.fill_s)))
