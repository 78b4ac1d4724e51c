"""Which parameters of a plan in stages several stages hold."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.units_text import bytes_text
from ..files.plan_file import PlanFile
from .analysed_plan import AnalysedPlan

MOST = 3  # that are named, as a line has room for


def copies_text(file: PlanFile, stages: Sequence[AnalysedPlan]) -> str:
    """The parameters, or parts of them, that several stages hold, largest first; may be empty.

    Args:
        file: a plan in stages.
        stages: each stage with its graph and decisions.
    """
    readers: dict[str, list[int]] = {}
    size: dict[str, int] = {}
    for s, (row, analysed) in enumerate(zip(file.stages, stages, strict=True)):
        items = zip(analysed.graph.inputs, analysed.program.roles, strict=True)
        types = [item.type for item, role in items if role == "parameter"]
        for name, type_ in zip(row.params, types, strict=True):
            readers.setdefault(name, []).append(s)
            size[name] = type_.nbytes
    copied = [name for name, found in readers.items() if len(found) > 1]
    copied.sort(key=lambda name: (-size[name], name))
    texts = [
        f"{name} ({bytes_text(size[name])}) on stages {_listed(readers[name])}"
        for name in copied[:MOST]
    ]
    if others := copied[MOST:]:
        texts.append(f"{len(others)} more ({bytes_text(sum(size[name] for name in others))})")
    return "; ".join(texts)


def _listed(stages: Sequence[int]) -> str:
    """Numbers of stages in words."""
    *first, last = stages
    if len(stages) > 2 and last - stages[0] == len(first):
        return f"{stages[0]} to {last}"
    return f"{', '.join(map(str, first))} and {last}"
