"""The section of a report on experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..analysed_plan import AnalysedPlan
from ..at_a_glance import Glance
from ..expert_products import split_text
from ..experts import expert_rows
from .markup import Markup, el, join, table


def experts(glance: Glance, programs: Sequence[AnalysedPlan]) -> Mapping[str, Markup]:
    """What a plan does with experts, by the name of the section; nothing for programs without.

    Args:
        glance: first lines of the plan.
        programs: it, or those of its stages.
    """
    if not glance.experts:
        return {}
    rows = [row for each in programs for row in expert_rows(each)]
    # products of a loop's body are one row each
    alike = Counter((row.source, row.op, split_text(row.split), row.runs) for row in rows)
    said = [*glance.experts, *([glance.imbalance] if glance.imbalance else [])]
    cells = [
        (source or op, el("code", op), text, str(count), f"{runs:.0f}")
        for (source, op, text, runs), count in alike.items()
    ]
    head = ("where", "operation", "split by", "products", "runs of each")
    about = (
        "meshwright explain PLAN.JSON NAME, with the operation or where it is as the name, prices "
        "every other way to split one of them."
    )
    return {
        "Experts": join(
            [
                el("ul", *(el("li", text) for text in said)),
                table("Products with matrices of experts", head, cells, numeric="   nn"),
                el("p", about),
            ]
        )
    }
