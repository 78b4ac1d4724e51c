"""What a rule that holds over the reals is worth in the arithmetic of machines."""

from __future__ import annotations

from dataclasses import dataclass

EXACT, REASSOCIATED, BOUNDED, UNBOUNDED = "exact", "reassociated", "bounded", "unbounded"
WORTHS = (EXACT, REASSOCIATED, BOUNDED, UNBOUNDED)  # the best first


@dataclass(frozen=True, slots=True)
class Worth:
    """How far the two sides of a rule may differ on a machine.

    exact: bit for bit, whatever the values (all NaNs are one value).
    reassociated: the same additions and multiplications in another order; NaN and infinities stay
        where they were, unless something overflows.
    bounded: other additions and multiplications of the same terms; where nothing overflows and all
        values are finite, results differ by at most `bound`.
    unbounded: terms cancel, or are divided; nothing is known.

    floats: of floating-point numbers.
    integers: of whole numbers, which wrap around.
    keeps: whether the target rounds nothing that the source does not round, so that it is as
        good in short floats.
    sums: sums along the longest paths of both sides; a product of matrices is one. 0 where
        functions are applied to what differs, which they may magnify without a bound.
    ops: other roundings along them.
    """

    floats: str
    integers: str
    keeps: bool = False
    sums: int = 0
    ops: int = 0

    @property
    def bound(self) -> str:
        """The largest difference in words, empty if there is none or it is not known.

        Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.
        """
        if self.floats not in (REASSOCIATED, BOUNDED) or not self.sums + self.ops:
            return ""
        parts = [str(self.ops)] if self.ops else []
        if self.sums:
            parts.append(f"the lengths of {self.sums} sum{'s' if self.sums > 1 else ''}")
        return f"({' + '.join(parts)}) eps, times the sum of the absolute terms"

    def to_dict(self) -> dict[str, str | None]:
        """The entry of `--json`."""
        return {"floats": self.floats, "integers": self.integers, "bound": self.bound or None}

    def __str__(self) -> str:
        if self.floats == self.integers:
            return self.floats
        return f"{self.floats}, integers {self.integers}"


def weakest(found: tuple[Worth, ...]) -> Worth:
    """The worth that all of some rules have."""
    return Worth(
        max((w.floats for w in found), key=WORTHS.index),
        max((w.integers for w in found), key=WORTHS.index),
        all(w.keeps for w in found),
        max(w.sums for w in found),
        max(w.ops for w in found),
    )
