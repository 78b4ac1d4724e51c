"""Lowers decisions to a plan in which every change of state has one place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from costmodel import ReshardModel
from ir import (
    Change,
    IRError,
    LoweredPlan,
    Mesh,
    Neighbours,
    Reshard,
    Sharding,
    Strategy,
    chunks_of,
    counts_of,
    is_product,
    kept_states,
    neighbours_of,
    parts_of,
    strategy_of,
)
from ir.analysis import Decisions, FlatProgram, Passage, Specs, host_values

from .problem.build import Builder
from .problem.overlap_tables import PartsTable
from .problem.records import Built
from .problem.states import state_at

Ties = Mapping[int, int]  # result of the program -> flat argument that it shares one state with

_Found = tuple[Passage, Change, bool, int]  # in parts; number of chunks


@dataclass(frozen=True)
class Decided:
    """A problem of a program with an option chosen for each of its nodes."""

    builder: Builder
    built: Built
    choice: tuple[int, ...]

    @cached_property
    def plan(self) -> LoweredPlan:
        """The lowered plan."""
        return lower(self.builder, self.built, self.choice)


def lower(builder: Builder, built: Built, choice: Sequence[int]) -> LoweredPlan:
    """Lowers a choice of the solver to a plan.

    Equal joins change alike: the states of a join are compared once, and only the sites of joins
    that change anything are visited.

    Args:
        builder: builder of the problem.
        built: the problem.
        choice: option of each of its nodes.
    """
    flat, outline, reshard = builder.flat, built.outline, builder.cache.reshard
    strategies: list[Strategy | None] = [None] * len(flat.ops)
    for i, node in built.op_node.items():
        strategies[i] = built.refs[node].menu[choice[node]]
    ends, kept = outline.kept
    known = [None, *(state_at(built, choice, end) for end in ends)]
    results = [Sharding(())] * len(flat.outputs)
    for position, node in built.out_node.items():
        results[position] = built.refs[node].states[choice[node]]
    changes: list[Change | None] = []
    for joined, type_ in zip(outline.joins, outline.types, strict=True):
        change = None
        if joined.how == "reshard":
            before = state_at(built, choice, joined.source)
            after = state_at(built, choice, joined.target)
            if before is not after and before != after:
                change = Change(type_, before, after, reshard.path(type_, before, after))
        changes.append(change)
    changing = np.array([change is not None for change in changes], dtype=np.bool_)
    joins, passages = outline.sites.join, outline.sites.passage
    found: list[_Found] = []
    in_parts = _InParts(builder, built, choice)
    for n in np.flatnonzero(changing[joins]):
        join, passage = int(joins[n]), int(passages[n])
        change = changes[join]
        if change is not None:
            at = join, passage, change
            found.append((flat.passages[passage], change, in_parts(*at), in_parts.chunks(*at)))
    return LoweredPlan(
        flat, builder.mesh, tuple(strategies), tuple([known[k] for k in kept]), tuple(results),
        _reshards(flat, builder.tied_in, found),
    )  # fmt: skip


@dataclass(frozen=True)
class _InParts:
    """Where the product of a join runs in parts beside a reshard."""

    builder: Builder
    built: Built
    choice: Sequence[int]
    tables: dict[int, PartsTable | None] = field(default_factory=dict[int, PartsTable | None])

    def __call__(self, join: int, passage: int, change: Change) -> bool:
        """Whether a product runs in parts beside the reshard."""
        if self.built.beside_s is None:
            return False
        if join not in self.tables:
            self.tables[join] = self.builder.in_parts(self.built.refs, join)
        table = self.tables[join]
        return table is not None and table.less(*self._at(join, passage, change))

    def chunks(self, join: int, passage: int, change: Change) -> int:
        """In how many chunks the reshard runs."""
        exchanges = self.builder.exchanges
        if self.built.beside_s is None or exchanges is None:
            return 1
        kind = int(exchanges.kind[passage])
        table = self.builder.in_chunks(self.built.refs, join, kind)
        return 1 if table is None else table.count(*self._at(join, passage, change))

    def _at(self, join: int, passage: int, change: Change) -> tuple[tuple[int, int], float, float]:
        """Options of the two nodes, seconds of the reshard and of the compute beside it."""
        assert self.built.beside_s is not None, "nothing runs beside compute"
        ends, reshard = self.built.outline.joins[join], self.builder.cache.reshard
        seconds = sum(reshard.step_s(step, change.type) for step in change.steps)
        beside_s = float(self.built.beside_s[passage])
        pair = self.choice[ends.u], self.choice[ends.v]
        return pair, seconds * ends.weight, beside_s * ends.weight


def lower_decisions(
    flat: FlatProgram, decisions: Decisions, reshard: ReshardModel, tied: Ties
) -> LoweredPlan:
    """Lowers decisions read from a file to a plan, without a problem.

    Args:
        flat: the program.
        decisions: decisions of the program's places.
        reshard: paths between states on the decisions' mesh.
        tied: results that share one state with an argument.

    Raises:
        IRError: if roles are not legal for their op, a value has no way to a state, or one that is
            on the host would change its sharding there.
    """
    on_host = host_values(flat)
    heads = {((), n): state for n, state in enumerate(decisions.inputs)}
    states = kept_states(flat, {**decisions.values, **heads})
    specs = Specs(flat)
    strategies = _strategies(flat, decisions, specs)

    def changes() -> Iterable[_Found]:
        near = neighbours_of(flat, specs.of) if decisions.chunks else dict[int, Neighbours]()
        for n, passage in enumerate(flat.passages):
            before, after = states[passage.value], _after(passage)
            if passage.site.at == "result" and passage.op >= 0:
                before, after = after, before
            if before is not None and after is not None and before != after:
                type_ = flat.values[passage.value].type
                change = Change(type_, before, after, reshard.path(type_, before, after))
                _check_on_device(flat, on_host, passage, change)
                in_parts = passage.site in decisions.in_parts
                if in_parts:
                    _check_product(flat, specs, strategies, passage, change)
                chunks = decisions.chunks.get(passage.site, 1)
                _check_chunks(near.get(n), decisions.mesh, passage, change, chunks)
                yield passage, change, in_parts, chunks

    def _after(passage: Passage) -> Sharding | None:
        """State that the reader needs; of an untied result the state that its op produces."""
        site, op = passage.site, passage.op
        if op >= 0:
            strategy = strategies[op]
            if strategy is None:
                return None
            sides = strategy.results if site.at == "result" else strategy.operands
            return sides[site.position]
        if passage.link < 0:
            return decisions.outputs[site.position]
        link = flat.links[passage.link]
        state = states[link.target]
        return state.stacked() if state is not None and link.lift else state

    return LoweredPlan(
        flat, decisions.mesh, strategies, states, decisions.outputs,
        _reshards(flat, tied, changes()),
    )  # fmt: skip


def _check_on_device(
    flat: FlatProgram, on_host: Collection[int], passage: Passage, change: Change
) -> None:
    if passage.value in on_host:
        raise IRError(
            f"{flat.values[passage.value].name} is in the host's memory and cannot go from "
            f"{change.before} to {change.after} there"
        )


def _check_product(
    flat: FlatProgram, specs: Specs, strategies: Sequence[Strategy | None], passage: Passage,
    change: Change,
) -> None:  # fmt: skip
    sums = bool(change.before.partial)
    i = flat.maker.get(passage.value, (-1, 0))[0] if sums else passage.op
    strategy = strategies[i] if i >= 0 and is_product(flat.ops[i].node) else None
    position = passage.site.position
    if not strategy or not parts_of(specs.of(flat.ops[i]), position, strategy, change):
        raise IRError(f"no product runs in parts at {passage.site}; plan the function again")


def _check_chunks(
    near: Neighbours | None, mesh: Mesh, passage: Passage, change: Change, count: int
) -> None:
    if count == 1:
        return
    dim = chunks_of(change, near, mesh) if near else None
    if dim is None or count not in counts_of(change.type, dim, change.before, mesh):
        raise IRError(f"the exchange at {passage.site} does not run in {count} chunks; plan again")


def _strategies(
    flat: FlatProgram, decisions: Decisions, specs: Specs
) -> tuple[Strategy | None, ...]:
    known = dict[tuple[int, tuple[str, ...]], Strategy]()
    found: list[Strategy | None] = []
    for op in flat.ops:
        roles = decisions.ops.get(op.place)
        if roles is None:
            found.append(None)
            continue
        spec = specs.of(op)
        key = id(spec), roles  # equal ops share one spec
        if key not in known:
            known[key] = strategy_of(spec, decisions.mesh, roles, specs.groups(op))
        found.append(known[key])
    return tuple(found)


def _reshards(flat: FlatProgram, tied: Ties, changes: Iterable[_Found]) -> tuple[Reshard, ...]:
    return tuple(
        [
            Reshard(passage, change, _cause(flat, tied, passage), in_parts, chunks)
            for passage, change, in_parts, chunks in changes
        ]
    )


def _cause(flat: FlatProgram, tied: Ties, passage: Passage) -> str:
    """Cause of a change of state, in words."""
    value, site = flat.values[passage.value], passage.site
    argument = value.name if value.kind == "argument" else ""
    if passage.op >= 0:
        node = flat.ops[passage.op].node
        label = f"{node.op} {node.source}".strip()
        return label if site.at == "result" else argument or label
    if passage.link >= 0:
        link = flat.links[passage.link]
        made = flat.made_by(link.source)
        line = (made.node.source if made else "") or flat.line(link.site.place)
        return argument or f"{flat.values[link.target].name} {line}".strip()
    argument = tied.get(site.position)
    return f"result {site.position}" if argument is None else flat.values[argument].name
