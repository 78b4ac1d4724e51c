"""The lowered plan: a program with every strategy and every change of state at its place.

It defines the meaning of a plan: `ir.interpret_lowered` runs it on logical devices, emission writes
it, and costs sum it. Its text form is in `ir.lowered_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .analysis.decisions import Decisions
from .analysis.flat_program import FlatProgram, Passage, Place, Site
from .mesh import Mesh
from .sharding import Sharding, replicated
from .strategy import Strategy
from .types import TensorType

CollectiveKind = Literal[
    "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"
]
StepKind = CollectiveKind | Literal["mask", "slice"]


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """One step of a change of state: a collective, or a `slice` or `mask` without communication.

    axes: mesh axes over which it runs.
    dim: dimension that loses axes, -1 where none does.
    to_dim: dimension that gains axes, -1 where none does.
    reduction: reduction of an all-reduce, reduce-scatter or mask; else empty.
    before, after: states of the value.
    """

    kind: StepKind
    axes: tuple[str, ...]
    dim: int
    to_dim: int
    reduction: str
    before: Sharding
    after: Sharding

    @property
    def collective(self) -> CollectiveKind | None:
        """The collective that it runs; None where nothing is sent."""
        return None if self.kind == "mask" or self.kind == "slice" else self.kind


@dataclass(frozen=True, slots=True)
class Change:
    """A reshard of a value of some type between two states.

    steps: steps of the cheapest path, in order; empty if the states are equal.
    """

    type: TensorType
    before: Sharding
    after: Sharding
    steps: tuple[ReshardStep, ...]


@dataclass(frozen=True, slots=True)
class Reshard:
    """A value that changes its state at a site.

    passage: value, site, runs in one call, moment.
    change: the reshard's steps; one object where many sites change alike.
    cause: the argument, or the op and source line, that needs the new state.
    in_parts: whether its product runs in parts beside permutes, instead of after the gather or
        before the reduce-scatter: a collective matmul.
    chunks: in how many it runs, beside the products next to it; 1 as a whole.
    """

    passage: Passage
    change: Change
    cause: str
    in_parts: bool = False
    chunks: int = 1

    @property
    def weight(self) -> float:
        """Runs in one call."""
        return self.passage.weight


@dataclass(frozen=True)
class LoweredPlan:
    """A program on a mesh with all decisions made.

    flat: the program, with its graph.
    strategies: strategy of each flat op; None for ops on literals alone.
    states: state of each flat value; None for values computed from literals alone.
    results: states of the results of the program, () for literals.
    reshards: those of ops, then those at the borders of regions, then those of results, each in
        program order; a value keeps its state at all other sites.
    """

    flat: FlatProgram
    mesh: Mesh
    strategies: tuple[Strategy | None, ...]
    states: tuple[Sharding | None, ...]
    results: tuple[Sharding, ...]
    reshards: tuple[Reshard, ...]

    @cached_property
    def decisions(self) -> Decisions:
        """The decisions by places, in the form of a plan file."""
        pairs = zip(self.flat.ops, self.strategies, strict=True)
        ops = {op.place: strategy.roles for op, strategy in pairs if strategy is not None}
        named = ((key, self.states[v]) for key, v in self.flat.names.items())
        values = {key: state for key, state in named if state is not None}
        in_parts = frozenset(r.passage.site for r in self.reshards if r.in_parts)
        chunks = {r.passage.site: r.chunks for r in self.reshards if r.chunks > 1}
        return Decisions(self.mesh, ops, values, self.arguments, self.results, in_parts, chunks)

    @cached_property
    def in_parts(self) -> dict[Place, Reshard]:
        """The reshard of each product that runs in parts beside it, by the place of the product."""
        each = (reshard for reshard in self.reshards if reshard.in_parts)
        return {self.flat.ops[self.product_of(reshard)].place: reshard for reshard in each}

    def product_of(self, reshard: Reshard) -> int:
        """The op that runs in parts beside a reshard: it reads what is gathered, or made sums."""
        passage = reshard.passage
        return self.flat.maker[passage.value][0] if reshard.change.before.partial else passage.op

    @cached_property
    def arguments(self) -> tuple[Sharding, ...]:
        """States of the arguments of the program."""
        states = (self.states[v] for v in self.flat.inputs)
        return tuple(state for state in states if state is not None)

    @cached_property
    def at(self) -> dict[Site, Reshard]:
        """The reshard of each site that has one."""
        return {reshard.passage.site: reshard for reshard in self.reshards}

    @cached_property
    def numbers(self) -> dict[Site, int]:
        """The number of the reshard of each site that has one."""
        return {reshard.passage.site: n for n, reshard in enumerate(self.reshards)}

    @cached_property
    def op_at(self) -> dict[Place, int]:
        """Flat op of each place."""
        return {op.place: i for i, op in enumerate(self.flat.ops)}

    def state(self, body: Place, number: int) -> Sharding | None:
        """State of a value of a body; None for values computed from literals alone."""
        v = self.flat.names.get((body, number))
        return None if v is None else self.states[v]

    def steps(self, site: Site) -> tuple[ReshardStep, ...]:
        """Steps that run at a site."""
        reshard = self.at.get(site)
        return () if reshard is None else reshard.change.steps


def kept_states(
    flat: FlatProgram, named: Mapping[tuple[Place, int], Sharding]
) -> tuple[Sharding | None, ...]:
    """State of each flat value, by the states of values of bodies; None for values without one."""
    states: list[Sharding | None] = [None] * len(flat.values)
    for key, v in flat.names.items():
        if states[v] is None:  # the outermost of a value's names in several bodies
            states[v] = named.get(key)
    for v in flat.forced:  # which branch is taken has no name in any body
        if states[v] is None and flat.values[v].kind == "port":
            states[v] = replicated(flat.values[v].type.rank)
    for outer, port in flat.stacked.items():  # nor have ports of slices
        state = states[outer]
        states[port] = state and state.sliced()
    return tuple(states)
