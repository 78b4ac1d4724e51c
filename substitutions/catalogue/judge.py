"""The verdict on a row: that of its weakest rule."""

from __future__ import annotations

from dataclasses import dataclass

from ..verify import VERDICTS, Verdict, judge
from ..worth import Worth, weakest
from .row import Row


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """Verdicts of all rules of a row; `verdict` is the last of them in the order of `VERDICTS`.

    conditions: what the rules need where they are applied, each once.
    """

    name: str
    verdict: str
    conditions: tuple[str, ...]
    rules: tuple[Verdict, ...]

    @property
    def seconds(self) -> float:
        return sum(found.seconds for found in self.rules)

    def worth(self) -> Worth | None:
        """The weakest worth of the rules of all ranks; None if one is not accepted."""
        ranks = {found.name.partition(":")[0]: found for found in reversed(self.rules)}
        worths = [found.worth() for found in ranks.values()]
        known = tuple(worth for worth in worths if worth is not None)
        return weakest(known) if len(known) == len(worths) else None


def judge_row(row: Row) -> RowVerdict:
    """Judges every rule of a row: all ranks, all axes, any degree."""
    found = tuple(judge(rule) for rule in row.rules())
    worst = max((item.verdict for item in found), key=VERDICTS.index)
    conditions = tuple(dict.fromkeys(item.condition for item in found if item.condition))
    return RowVerdict(row.name, worst, conditions, found)
