"""Rough plans of the choices of what a program computes again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ir.trace import Traced

from ..rewrite.price import Pricer
from .choose import SLOWED
from .least_work import WORTH
from .variants import Variant

NO_LIMIT = 2**62  # bytes; more than any device has


@dataclass(frozen=True)
class RoughPlans:
    """Plans on the mesh of the plan of the program as it is written, without a proof.

    written: that program.
    pricer: plans programs on this mesh.
    limit_bytes: memory limit of a device [bytes].
    multipliers: of windows, of the last plan found: those of similar programs are near.
    """

    written: Traced
    pricer: Callable[[Traced], Pricer]
    limit_bytes: float
    multipliers: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    @property
    def known_s(self) -> float:
        """Predicted seconds of a step of the plan on whose mesh these are."""
        return self.pricer(self.written).best.account.step_s

    def step_s(self, variant: Variant, cutoff_s: float = float("inf")) -> float:
        """Predicted seconds of a step; infinite if no plan that fits is found.

        Args:
            variant: a choice.
            cutoff_s: step below which plans are wanted [s].
        """
        graph = variant.traced.graph
        found = self.pricer(variant.traced).anew(graph, cutoff_s, tuple(self.multipliers))
        if found is not None:
            self.multipliers[:] = found.solution.multipliers
        fits = found is not None and found.account.peak_bytes <= self.limit_bytes
        return found.account.step_s if found is not None and fits else float("inf")

    def saving_s(self) -> float:
        """Seconds of a step by which the plan would be faster without a memory limit.

        The search ends once it shows that these are less than a share of `WORTH` of the step; what
        is returned is then less than that, too.
        """
        pricer = self.pricer(self.written)
        known, multipliers = pricer.best.account, pricer.best.solution.multipliers
        if known.peak_bytes <= SLOWED * self.limit_bytes:
            return 0.0
        free = replace(pricer, options=replace(pricer.options, memory_bytes=NO_LIMIT))
        found = free.anew(self.written.graph, known.step_s * (1 - WORTH), multipliers)
        return 0.0 if found is None else known.step_s - found.account.step_s
