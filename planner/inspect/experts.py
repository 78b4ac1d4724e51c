"""How a plan runs experts: what their products are split by, what that assumes, what else takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ir import GROUPED

from ..common.units_text import seconds_text
from ..files.program_plan import BaselineRow, CollectiveRow
from .analysed_plan import AnalysedPlan
from .expert_products import BOTH, EXPERTS, split_of, split_text

# Hand-written plans, of each row the fastest that fits, and what they do with experts.
BY_HAND: Final = (
    (("expert-parallel",), "tokens sent to experts"),
    (("fsdp",), "matrices gathered"),
    (("megatron", "megatron-sp"), "experts or features split over one axis"),
)
NEVER_DROPPED: Final = (
    "sorted rows are never dropped, however unequal: an exchange takes more rounds then"
)
AS_WRITTEN: Final = (
    "slots are computed whether full or not, so that loads do not change the step; what the "
    "program drops beyond its capacity it drops on one device too"
)


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """A product of experts in a plan.

    op, source: what it is, and where it is written.
    runs: in one call.
    split: what it is split by -> over how many devices: experts, tokens, both alike, features.
    """

    op: str
    source: str
    runs: float
    split: Mapping[str, int]


def expert_rows(analysed: AnalysedPlan) -> tuple[ExpertRow, ...]:
    """The products of experts of a plan, in program order."""
    flat, mesh = analysed.flat, analysed.decisions.mesh
    found: list[ExpertRow] = []
    for i, op in enumerate(flat.ops):
        if op.node.op not in (GROUPED, "dot_general"):
            continue
        words = analysed.words(i)
        roles = analysed.decisions.ops.get(op.place)
        if words and roles is not None:
            split = split_of(words, roles, mesh)
            found.append(ExpertRow(op.node.op, op.node.source, op.weight, split))
    return tuple(found)


def experts_text(
    programs: Sequence[AnalysedPlan], baselines: Mapping[str, BaselineRow]
) -> tuple[str, ...]:
    """What a plan does with experts, each as a phrase; nothing for programs without.

    Args:
        programs: a plan, or those of its stages.
        baselines: hand-written plans of the whole.
    """
    rows = [row for each in programs for row in expert_rows(each)]
    if not rows:
        return ()
    ways = Counter(split_text(row.split) for row in rows)
    several = len(rows) > 1
    chosen = ", ".join(
        f"{text} ({count} of {len(rows)})" if several else text
        for text, count in sorted(ways.items(), key=lambda item: (-item[1], item[0]))
    )
    moved = [row for each in programs for row in each.program.collectives]
    chunks = max((r.count for each in programs for r in each.program.in_chunks), default=1)
    forms = {row.op for row in rows}
    said = (
        f"products are split by {chosen}"
        if any(row.split for row in rows)
        else "products are whole",
        _spent(moved, len(programs), chunks),
        NEVER_DROPPED if GROUPED in forms else "",
        AS_WRITTEN if forms - {GROUPED} else "",
        _by_hand(baselines),
    )
    return tuple(filter(None, said))


def _spent(moved: Sequence[CollectiveRow], stages: int, chunks: int) -> str:
    """Seconds of the all-to-alls of a step, in stages of all of them."""
    rows = [row for row in moved if row.kind == "all-to-all"]
    if not rows:
        return ""
    total, exposed = sum(row.seconds for row in rows), sum(row.exposed_s for row in rows)
    where = "of all stages" if stages > 1 else "of the step"
    parts = f", some in {chunks} chunks beside products" if chunks > 1 else ""
    return f"all-to-alls {where} take {seconds_text(total)}, {seconds_text(exposed)} exposed{parts}"


def _by_hand(baselines: Mapping[str, BaselineRow]) -> str:
    """Whole hand-written plans by what they do with experts."""
    found: list[str] = []
    for names, what in BY_HAND:
        each = [(not b.fits, b.step_s, n) for n, b in baselines.items() if n in names]
        if each:
            lacks, seconds, name = min(each)
            room = ", does not fit" if lacks else ""
            found.append(f"{name} {seconds_text(seconds)} ({what}{room})")
    return f"by hand: {', '.join(found)}" if found else ""


def imbalance_text(programs: Sequence[AnalysedPlan]) -> str:
    """One sentence where grouped products are split by their groups, else nothing.

    Args:
        programs: a plan, or those of its stages.
    """
    most, power = 1, 0.0
    for analysed in programs:
        for row in expert_rows(analysed):
            if row.op == GROUPED:
                most = max(most, row.split.get(EXPERTS, 1), row.split.get(BOTH, 1))
        power = analysed.cluster.imbalance
    if most == 1:
        return ""
    return (
        f"experts over {most} devices are priced as if the busiest had {most**power:.2f} times the "
        f"mean of rows (imbalance {power:g})"
    )
