"""`shardings`: PartitionSpecs by parameter path, as JSON and as a Python module."""

from __future__ import annotations

import pprint

from ..analysed_plan import AnalysedPlan
from .logical import Logical, logical
from .record import Exported, Subject, json_bytes, loader
from .specs import arguments, parameters, patterns, spec_of

FORMAT = "meshwright-shardings"
VERSION = 1


def shardings(subject: Subject) -> Exported:
    """JSON at the path, and a module with the same content beside it."""
    analysed = subject.analysed
    rules = logical(analysed)
    held = parameters(analysed)
    states = {path: state for path, (_, state) in held.items()}
    data: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "mesh": [[axis, size] for axis, size in analysed.program.mesh],
        "arguments": {name: spec_of(state) for name, state in arguments(analysed).items()},
        "results": [spec_of(state) for state in analysed.decisions.outputs],
        "parameters": {path: spec_of(state) for path, state in states.items()},
        "patterns": [[pattern, spec_of(state)] for pattern, state in patterns(states)],
        "logical_axes": {path: list(names) for path, names in rules.axes.items()},
        "logical_axis_rules": [[name, list(axes)] for name, axes in rules.rules],
    }
    notes = _notes(analysed, rules)
    data["not_expressed"] = notes
    return Exported(json_bytes(data), ((".py", _module(data).encode()),), tuple(notes))


def _notes(analysed: AnalysedPlan, rules: Logical) -> list[str]:
    notes = [
        "shardings say where arguments and results lie; what runs between them is up to the "
        "compiler that reads them, and may differ from the plan's collectives"
    ]
    if rules.differ:
        some = ", ".join(rules.differ[:5])
        more = f" and {len(rules.differ) - 5} more" if len(rules.differ) > 5 else ""
        notes.append(
            f"the logical axis rules give other shardings than the plan for {some}{more}; the "
            "specs by path are exact"
        )
    if analysed.program.microbatches > 1:
        notes.append(
            f"the step runs {analysed.program.microbatches} micro-batches, which specs cannot say"
        )
    return notes


def _module(data: dict[str, object]) -> str:
    shown = pprint.pformat(data, width=96, sort_dicts=False)
    return f"{loader('jax_shardings.py').rstrip()}\n\n\nPLAN.update(\n{_indented(shown)}\n)\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
