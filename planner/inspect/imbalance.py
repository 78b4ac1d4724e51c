"""What a plan's prices assume of experts that are not equally busy."""

from __future__ import annotations

from collections.abc import Iterable

from ir import GROUPED, GROUPS, NEAR

from .analysed_plan import AnalysedPlan


def imbalance_text(programs: Iterable[AnalysedPlan]) -> str:
    """One sentence where grouped products are split by their groups, else nothing.

    Args:
        programs: a plan, or those of its stages.
    """
    most, power = 1, 0.0
    for analysed in programs:
        lowered = analysed.decided.plan
        for op, strategy in zip(analysed.flat.ops, lowered.strategies, strict=True):
            if op.node.op != GROUPED or strategy is None:
                continue
            split = strategy.factor_axes(lowered.mesh)
            for factor in (GROUPS, NEAR):
                most = max(most, lowered.mesh.product(split.get(factor, ())))
        power = analysed.cluster.imbalance
    if most == 1:
        return ""
    return (
        f"experts over {most} devices are priced as if the busiest had {most**power:.2f} times the "
        f"mean of rows (imbalance {power:g})"
    )
