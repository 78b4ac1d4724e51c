"""How much work the verdict on one rule may take, in counts that no machine changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the proof of one rule; above them the verdict is `unknown`.

    steps: of about a microsecond, for proofs, and as many for numbers; published rules take
        700,000.
    elements: that a proof reads or writes; published rules need 800.
    monomials: of one value.
    orders: of summed labels that are tried for the least text of a monomial.
    pieces: into which joints cut an output.
    joints: of one dimension.
    cases: of how the degrees of a rule depend on each other.
    kernels: sizes of kernels that are enlarged; published rules have 9.
    questions: to z3 of one rule that it may leave unanswered; after these, the answer is no.
    names: in all monomials of a question to z3, which counts too few steps for larger ones.
    z3_steps: of one question, about 0.3 s; published rules take a sixth.
    """

    steps: int = 3_000_000
    elements: int = 30_000
    monomials: int = 4096
    orders: int = 5040
    pieces: int = 64
    joints: int = 128
    cases: int = 8
    kernels: int = 64
    questions: int = 4
    names: int = 60
    z3_steps: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Costs:
    """Steps that work takes, measured on one core: a step is about a microsecond.

    element: a symbolic element that is read or written out.
    draw: sizes that are tried.
    instance: numbers that are tried.
    op: an op on numbers.
    monomials: that are made in the time of an element.
    numbers: that are computed in one step.
    z3: steps of z3 in one step.
    """

    element: int = 40
    draw: int = 60
    instance: int = 300
    op: int = 20
    monomials: int = 8
    numbers: int = 30
    z3: int = 3


LIMITS, COSTS = Limits(), Costs()


class SpentError(Exception):
    """The work on a rule was given up."""


@dataclass
class Effort:
    """The steps that are left."""

    left: int = LIMITS.steps

    def spend(self, steps: int) -> None:
        """Counts steps.

        Raises:
            SpentError: if none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise SpentError(f"given up after {LIMITS.steps} steps")
