"""A program to plan: its flat form, the roles of its arguments, and the user's wishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ir import Graph
from ir.analysis import Classes, FlatProgram, Kinds, Place, Specs, flatten, host_values

from ...common.options import Options
from ...common.resolved_pins import Wishes, wishes_for
from .argument_roles import Roles
from .facts import Facts
from .in_flight import InFlightBuffers
from .repeated_layers import LEAST_OPS, Repeats, repeats_of, worth_folding
from .skeleton import Outline
from .skeleton_builder import outline_of

# Programs that `Programs` holds: the one as it was written, one that keeps everything, and three
# that are edited.
KEPT = 5


@dataclass(frozen=True)
class Program:
    """A program to plan, with the roles of its arguments.

    in_flight_buffers: values held in further copies, if any.
    like: the same program without such copies, which memoises all that does not depend on them.
    """

    facts: Facts
    roles: Roles
    wishes: Wishes
    in_flight_buffers: InFlightBuffers | None = None
    like: Program | None = None

    @property
    def flat(self) -> FlatProgram:
        return self.facts.flat

    @cached_property
    def kinds(self) -> Kinds:
        """Kinds of the program's dimensions."""
        if self.like is not None:
            return self.like.kinds
        return kinds_of(self.flat, self.facts.specs, self.roles)

    @cached_property
    def repeats(self) -> Repeats | None:
        """Repeated blocks, if the program repeats itself enough to plan them as one."""
        if self.like is not None:
            return self.like.repeats
        if len(self.flat.ops) < LEAST_OPS:
            return None
        role = {v: name for name, members in self.roles.named() for v in members}
        asked = {v: self.wishes.asked(v) for v in (*self.flat.inputs, *self.wishes.inside)}
        found = repeats_of(self.facts, self.kinds, lambda v: (role.get(v), asked.get(v)))
        return found if worth_folding(found) else None

    @cached_property
    def outline(self) -> Outline:
        """The part of its problems that is the same on all meshes."""
        return self.like.outline if self.like else outline_of(self.facts, self.repeats)

    def where(self, counts: Callable[[Place], bool]) -> Program:
        """The program in which only what runs at some places takes time."""
        flat = self.flat
        ops = [op if counts(op.place) else op._replace(weight=0.0) for op in flat.ops]
        links = [
            link if counts(link.site.place) else replace(link, weight=0.0) for link in flat.links
        ]
        return replace(self, facts=self.facts.running(replace(flat, ops=ops, links=links)))

    def holding(self, in_flight: InFlight | None) -> Program:
        """The program with micro-batches in flight."""
        if in_flight is None:
            return self
        return replace(self, in_flight_buffers=in_flight.in_flight_buffers(self.flat), like=self)


def kinds_of(flat: FlatProgram, specs: Specs, roles: Roles) -> Kinds:
    """Kinds of the dimensions of a program: batch, sequence, experts."""
    each = [specs.of(op) for op in flat.ops]
    return Kinds(Classes(flat, each), each, roles.batch, roles.parameters, roles.states)


def roles_of(names: Sequence[str], flat: FlatProgram) -> Roles:
    """Flat values of the arguments by role."""
    by_role: dict[str, list[int]] = {}
    for role, v in zip(names, flat.inputs, strict=True):
        by_role.setdefault(role, []).append(v)
    return Roles(
        tuple(by_role.get("batch", ())), tuple(by_role.get("parameter", ())),
        tuple(by_role.get("optimizer-state", ())),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class InFlight:
    """Micro-batches in flight besides the one that the program runs.

    What of them waits in the memory of the host takes none of a device.

    loop: node that runs the micro-batches; values: values of its body saved for the backward pass.
    more: number of further micro-batches.
    """

    loop: int
    values: tuple[int, ...]
    more: int

    def in_flight_buffers(self, flat: FlatProgram) -> InFlightBuffers | None:
        """The buffers in terms of the flat program."""
        inside = (self.loop, 0)
        times = [op.time for op in flat.ops if op.place[:2] == inside]
        if not times or not self.more:
            return None
        kept, away = (flat.names.get((inside, v)) for v in self.values), host_values(flat)
        values = tuple(v for v in kept if v is not None and v not in away)
        return InFlightBuffers(values, self.more, min(times), max(times) + 1)


def program_of(
    graph: Graph,
    ties: tuple[tuple[int, int], ...],
    donated: frozenset[int],
    options: Options,
    *,
    alone: bool = False,
) -> Program:
    """Prepares a graph for planning.

    Args:
        graph: the traced program.
        ties: (input of the graph, result) pairs that share one state.
        donated: inputs of the graph whose buffers may be reused.
        options: options with the user's wishes.
        alone: one device runs the program.

    Raises:
        PlanError: if a wish names something that the program does not have.
    """
    flat = flatten(graph)
    resolved = wishes_for(options, flat, ties)
    facts = Facts(flat, ties, donated, alone=alone)
    return Program(facts, roles_of([item.role for item in graph.inputs], flat), resolved)


@dataclass(frozen=True)
class Programs:
    """The latest programs that one call of `plan` has prepared, for searches of the same graph.

    known: graph, arguments of `program_of` that say what its program is, and the program; the
        latest last.
    """

    known: list[tuple[Graph, tuple[object, ...], Program]] = field(
        default_factory=list[tuple[Graph, tuple[object, ...], Program]]
    )

    def of(
        self,
        graph: Graph,
        ties: tuple[tuple[int, int], ...],
        donated: frozenset[int],
        options: Options,
        *,
        alone: bool = False,
    ) -> Program:
        """As `program_of`."""
        wished = options.pins, options.forbidden, options.shardings, options.mesh
        key = ties, donated, wished, alone
        for n, (other, others, program) in enumerate(self.known):
            if other is graph and others == key:
                self.known.append(self.known.pop(n))
                return program
        made = program_of(graph, ties, donated, options, alone=alone)
        self.known.append((graph, key, made))
        del self.known[:-KEPT]
        return made
