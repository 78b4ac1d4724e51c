"""What is searched: a flat program, what its arguments are, and what the user wishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ir import Graph

from .baselines import Roles
from .classes import Classes, Kinds
from .flatten import FlatProgram, flatten
from .fusion import analyse
from .intra.facts import Facts
from .options import Options, Wishes, wishes
from .repeats import LEAST_OPS, Repeats, repeats_of, worth_folding


@dataclass(frozen=True)
class Program:
    """What is searched: the flat program, and what its arguments are."""

    facts: Facts
    roles: Roles
    wishes: Wishes

    @property
    def flat(self) -> FlatProgram:
        return self.facts.flat

    @cached_property
    def kinds(self) -> Kinds:
        """What the dimensions of the program are."""
        specs = [self.facts.spec(op) for op in self.flat.ops]
        return Kinds(Classes(self.flat, specs), specs, self.roles.batch, self.roles.parameters)

    @cached_property
    def repeats(self) -> Repeats | None:
        """Repeated blocks, if there are enough of them to plan them as one."""
        if len(self.flat.ops) < LEAST_OPS:
            return None
        role = {v: name for name, members in self.roles.named() for v in members}
        asked = {v: self.wishes.asked(v) for v in self.flat.inputs}
        found = repeats_of(self.facts, self.kinds, lambda v: (role.get(v), asked.get(v)))
        return found if worth_folding(found) else None


def roles_of(names: Sequence[str], flat: FlatProgram) -> Roles:
    """Flat values of the arguments by role."""
    by_role: dict[str, list[int]] = {}
    for role, v in zip(names, flat.inputs, strict=True):
        by_role.setdefault(role, []).append(v)
    return Roles(
        tuple(by_role.get("batch", ())), tuple(by_role.get("parameter", ())),
        tuple(by_role.get("optimizer-state", ())),
    )  # fmt: skip


def program_of(
    graph: Graph, ties: tuple[tuple[int, int], ...], donated: frozenset[int], options: Options
) -> Program:
    """What is searched for a graph.

    Args:
        graph: of the program.
        ties: (input of the graph, result) that hold one state.
        donated: inputs of the graph whose buffers may be reused.
        options: with the user's wishes.

    Raises:
        PlanError: if the wishes speak of what the program does not have.
    """
    flat = flatten(graph)
    names = {v: item.name for v, item in zip(flat.inputs, graph.inputs, strict=True)}
    resolved = wishes(options, names, {v: flat.values[v].type.rank for v in names})
    facts = Facts(flat, analyse(flat), ties, donated)
    return Program(facts, roles_of([item.role for item in graph.inputs], flat), resolved)
