"""What a plan changes in the program, beside shardings and rewrites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...common.units_text import bytes_text
from ...files.program_plan import ProgramPlan


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the program.

    what: what the plan does.
    without: options of a plan that does not.
    """

    what: str
    without: str

    @property
    def text(self) -> str:
        """What to see to where the program runs otherwise."""
        return f"the plan {self.what}: see that yours does too"


def edits(program: ProgramPlan) -> Iterator[Edit]:
    """The changes of a plan, the first ones first."""
    if program.recomputed is not None:
        other = "computes other values again than the program as written"
        yield Edit(
            other if program.recomputed else "keeps what the program as written computes again",
            "recompute='written' (--recompute written)",
        )
    if program.hosted or program.host_bytes:
        size = bytes_text(program.host_bytes)
        yield Edit(
            f"keeps {size} of each device in the memory of its host",
            "offload='never' (--offload never)",
        )
    if program.padded:
        count = len(program.padded)
        yield Edit(
            f"pads {count} dimension{'s' * (count > 1)} that do not divide or differ by borders",
            "padding=False (--no-padding)",
        )
    if program.sorted_blocks:
        yield Edit(
            f"sorts rows of experts within {program.sorted_blocks} blocks",
            "sort_in_blocks=False (--no-sort-in-blocks)",
        )
    if program.ordered:
        yield Edit(
            "keeps causal sequences in the order of zigzag",
            "sequence_order=False (--no-sequence-order)",
        )
