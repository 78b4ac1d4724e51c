"""A choice of what a program computes again, with its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .variants import Variant


class Found(Protocol):
    """Result of a search."""

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        ...

    @property
    def bound_s(self) -> float:
        """Lower bound of the step over all plans of the variant [s]."""
        ...


T = TypeVar("T", bound=Found)
T_co = TypeVar("T_co", bound=Found, covariant=True)


class Rough(Protocol):
    """Plans of variants on the mesh of a plan, without a proof."""

    @property
    def known_s(self) -> float:
        """Predicted seconds of a step of that plan."""
        ...

    def step_s(self, variant: Variant, cutoff_s: float = float("inf")) -> float:
        """Predicted seconds of a step; infinite if no plan that fits is found.

        The search ends once none is below the cutoff; the step is then that of any plan.
        """
        ...

    def saving_s(self) -> float:
        """Seconds of a step by which the plan would be faster without a memory limit."""
        ...


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """The variant to plan.

    found: its plan.
    bound_s: lower bound of the step over all variants that were planned [s].
    notes: what the bound does not cover.
    """

    variant: Variant
    found: T
    bound_s: float
    notes: tuple[str, ...] = ()
