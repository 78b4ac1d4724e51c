"""Shardings as plain data, and parameter paths without the name of their argument."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ir import Sharding

from ..analysed_plan import AnalysedPlan

Spec = list[str | list[str] | None]
_NUMBER = re.compile(r"\d+")


def spec_of(state: Sharding) -> Spec:
    """Entries of a PartitionSpec: None, an axis, or a list of axes."""
    return [None if not axes else axes[0] if len(axes) == 1 else list(axes) for axes in state.dims]


def arguments(analysed: AnalysedPlan) -> dict[str, Sharding]:
    """Name of every argument -> its sharding; captured constants are left out."""
    return {
        item.name: state
        for item, state in zip(analysed.graph.inputs, analysed.decisions.inputs, strict=True)
        if item.role != "constant"
    }


def parameters(analysed: AnalysedPlan) -> dict[str, tuple[int, Sharding]]:
    """Path of every parameter inside its argument -> (position among the inputs, sharding).

    The argument's name is left out if all parameters are in one.
    """
    rows = [
        (item.name, n, analysed.decisions.inputs[n])
        for n, item in enumerate(analysed.graph.inputs)
        if item.role == "parameter"
    ]
    heads = {name.partition("/")[0] for name, *_ in rows}
    cut = len(heads) == 1 and all("/" in name for name, *_ in rows)
    return {(name.partition("/")[2] if cut else name): (n, state) for name, n, state in rows}


def patterns(shardings: Mapping[str, Sharding]) -> list[tuple[str, Sharding]]:
    """Regular expressions over whole paths; equal layers share one.

    The first that matches holds. A number becomes `[0-9]+` where all paths that differ only in
    numbers are sharded alike.
    """
    forms: dict[str, set[Sharding]] = {}
    for path, state in shardings.items():
        forms.setdefault(_form(path), set()).add(state)
    found: dict[str, Sharding] = {}
    for path, state in shardings.items():
        pattern = _form(path) if len(forms[_form(path)]) == 1 else re.escape(path)
        found[pattern] = state
    return list(found.items())


def _form(path: str) -> str:
    return "[0-9]+".join(re.escape(part) for part in _NUMBER.split(path))
