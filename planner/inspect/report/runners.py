"""Runners-up of the largest arguments, with all other choices fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...common.units_text import bytes_text, seconds_text
from ..analysed_plan import AnalysedPlan
from .arguments import Group

MOST = 12


@dataclass(frozen=True, slots=True)
class Runner:
    """An argument's second choice and its extra cost."""

    name: str
    chosen: str
    option: str
    verdict: str


def runners(analysed: AnalysedPlan, groups: Sequence[Group]) -> tuple[Runner, ...]:
    """One row for each of the largest groups that have another option."""
    found: list[Runner] = []
    for group in groups[:MOST]:
        cost = analysed.direct_costs(group.node)
        chosen = analysed.choice[group.node]
        others = [k for k in range(len(cost)) if k != chosen]
        if not others:
            continue
        best = min(others, key=lambda k: (float(cost[k]), k))
        usage = analysed.built.problem.usage[group.node]
        found.append(
            Runner(
                group.name, analysed.option(group.node, chosen), analysed.option(group.node, best),
                _verdict(float(cost[best] - cost[chosen]), float(usage[best] - usage[chosen])),
            )
        )  # fmt: skip
    return tuple(found)


def _verdict(added_s: float, added_bytes: float) -> str:
    if not np.isfinite(added_s):
        return "not possible"
    if not added_bytes:
        each = "no memory"
    else:
        each = f"{'+' if added_bytes >= 0 else '-'}{bytes_text(abs(added_bytes))} each"
    if added_s <= 0.0:
        return f"nothing; {each}"
    return f"{seconds_text(added_s)}; {each}"
