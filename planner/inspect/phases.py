"""Phases of a training step: forward, backward, update.

Forward is what the loss is made of; the update is what touches no dimension of the batch and is
not forward; the rest is backward. A program without parameters and a scalar result is all forward.
"""

from __future__ import annotations

from collections.abc import Mapping

from .analysed_plan import AnalysedPlan

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def phases(analysed: AnalysedPlan) -> Mapping[int, str]:
    """Flat op -> phase."""
    flat = analysed.flat
    tied = set(analysed.builder.facts.tied_in)
    scalars = [
        v
        for position, v in enumerate(flat.outputs)
        if isinstance(v, int) and position not in tied and not flat.values[v].type.shape
    ]
    if not scalars or "parameter" not in analysed.program.roles:
        return dict.fromkeys(range(len(flat.ops)), FORWARD)
    forward = _ancestors(analysed, scalars)
    return {
        i: FORWARD if i in forward else BACKWARD if _on_batch(analysed, i) else UPDATE
        for i in range(len(flat.ops))
    }


def _ancestors(analysed: AnalysedPlan, values: list[int]) -> set[int]:
    """Operations that values are made of."""
    flat, maker = analysed.flat, analysed.flat.maker
    entering: dict[int, list[int]] = {}
    for link in flat.links:
        entering.setdefault(link.target, []).append(link.source)
    found: set[int] = set()
    seen: set[int] = set()
    left = list(values)
    while left:
        v = left.pop()
        if v in seen:
            continue
        seen.add(v)
        left += entering.get(v, [])
        if v in flat.stacked:
            left.append(flat.stacked[v])
        if v in maker and maker[v][0] not in found:
            found.add(maker[v][0])
            left += [x for x in flat.ops[maker[v][0]].inputs if isinstance(x, int)]
    return found


def _on_batch(analysed: AnalysedPlan, i: int) -> bool:
    spec = analysed.builder.spec(analysed.flat.ops[i])
    return any(analysed.kinds.of_factor(i, name) == "batch" for name in spec.names)
