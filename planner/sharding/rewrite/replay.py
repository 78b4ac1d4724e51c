# pyright: basic
"""The rewrites of a plan file applied again to the function it is bound to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir import IRError, digest
from ir.trace import Traced
from substitutions import RuleError, Trial, apply, draft_of, find

from ...common.errors import PlanError
from ...files.program_plan import ProgramPlan, SubstitutionRow
from .retrace import retraced


def as_rewritten(traced: Traced, file: ProgramPlan, where: str, hint: str) -> Traced:
    """A function as a plan rewrote it, if it is the one that the plan is of.

    Args:
        traced: the function as written.
        file: the plan.
        where: the plan is, for errors.
        hint: what else to try, for errors.

    Raises:
        PlanError: if it is another function, or the rewrites do not fit.
    """
    graph = traced.graph
    roles = file.roles[max(len(file.roles) - len(graph.inputs), 0) :]
    if len(roles) == len(graph.inputs):
        pairs = zip(graph.inputs, roles, strict=True)
        graph = replace(graph, inputs=tuple(replace(item, role=role) for item, role in pairs))
    if digest(graph) != file.traced_digest:
        raise PlanError(
            "the plan is for another function or other arguments: they differ already before "
            f"the plan's {len(file.substitutions)} substitutions", kind="differs", where=where,
            remedy=f"plan this function anew{hint}",
        )  # fmt: skip
    named = replace(traced, program=replace(traced.program, graph=graph))
    return replayed(named, file.substitutions, where)


def replayed(traced: Traced, rows: Sequence[SubstitutionRow], where: str) -> Traced:
    """The traced function with the rewrites of a plan.

    The file only names rules and places. Each rule is one of the catalogue, and is matched again
    at its place with all of its conditions, and tried again on numbers.

    Raises:
        PlanError: if a rule is unknown, or does not apply where the plan says.
    """
    draft, trial = draft_of(traced.graph), Trial()
    for row in rows:
        place = "/".join(map(str, row.place))
        try:
            found = find(draft, [row.rule])
        except RuleError as error:
            raise _unsound(f"names the rule '{row.rule}': {error}", where) from error
        first = [p for p in found if p.path == row.place]
        alike = [
            p for p in found
            if first and (p.kind, len(p.prefix)) == (first[0].kind, len(first[0].prefix))
        ]  # fmt: skip
        draft, count = apply(draft, alike, trial) if alike else (draft, 0)
        if count != row.count:
            why = "".join(f"; {text}" for text in trial.warnings())
            raise _unsound(
                f"applies '{row.rule}' {row.count} times from place {place} on, here it applies "
                f"{count} times{why}", where,
            )  # fmt: skip
    try:
        return retraced(traced, draft)
    except IRError as error:
        raise _unsound(f"has rewrites that do not fit this function: {error}", where) from error


def _unsound(message: str, where: str) -> PlanError:
    return PlanError(message, kind="substitutions", where=where, remedy="plan this function anew")
