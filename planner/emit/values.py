# pyright: basic
"""Values while a body is emitted: kept in a state, or made of literals when and how needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import lax

from ir import (
    FactorSpec,
    IRError,
    Literal,
    LoweredPlan,
    Mesh,
    Node,
    ReshardStep,
    Sharding,
    Strategy,
    TensorType,
    lookup,
    shardings_of,
)
from ir.analysis import Site
from ir.evaluate import literal
from ir.trace import Binding

from .exchange_in_chunks import Cuts
from .local_op import LocalOp
from .run import Mover, run_op
from .slices import bind_inside
from .steps import to_whole

Array = Any


@dataclass(eq=False)
class Kept:
    """A local shard in its published state.

    `is_argument` marks arguments of the program; see `Maker.read_all`.
    """

    array: Array
    type: TensorType
    state: Sharding
    is_argument: bool = False
    gathers: int = 0


@dataclass(eq=False, frozen=True)
class Free:
    """A value that depends on literals alone: the recipe to make it in any state."""

    node: Node
    binding: Binding
    operands: tuple[Free | Literal, ...]
    number: int  # of the result

    @property
    def type(self) -> TensorType:
        return self.node.outputs[self.number]


Entry = Kept | Free | Literal
Move = tuple[Sequence[ReshardStep], float, str]  # steps, runs in one call, name


@dataclass
class Maker:
    """Reads entries in wanted states, within one body; what is made of literals is made once."""

    plan: LoweredPlan
    mover: Mover
    made: dict[tuple[Free, Sharding], Array] = field(default_factory=dict)
    cuts: Cuts = field(default_factory=lambda: Cuts({}, {}, frozenset()))
    latest: Kept | None = None  # the value that was made last in this body
    awaited: list[Kept] = field(default_factory=list)  # operands beside gathered arguments

    @property
    def mesh(self) -> Mesh:
        return self.mover.mesh

    def read_all(
        self, entries: Sequence[Entry], states: Sequence[Sharding], sites: Sequence[Site]
    ) -> list[Array]:
        """Local shards of the operands of one op at their sites, in the states it needs."""
        found = self._read_all(entries, states, [self._move(site) for site in sites])
        for k, (entry, site) in enumerate(zip(entries, sites, strict=True)):
            if site in self.cuts.sites and isinstance(entry, Kept):
                found[k] = self._in_chunks(entry.array, entry.type, site)
        return found

    def _in_chunks(self, x: Array, type_: TensorType, site: Site) -> Array:
        """Reshards a value in chunks."""
        found, name = self.plan.at[site], f"reshard{self.plan.numbers[site]}"
        cut, steps = self.cuts.sites[site], found.change.steps
        return self.mover.move_in_chunks(x, type_, steps, found.weight, name, cut)

    def read_whole(
        self, entries: Sequence[Entry], states: Sequence[Sharding], count: float
    ) -> list[Array]:
        """The same of an op without sites in the plan, which runs `count` times on whole values."""
        moves = [(to_whole(e.state) if isinstance(e, Kept) else (), count, "") for e in entries]
        return self._read_all(entries, states, moves)

    def _move(self, site: Site) -> Move:
        found = self.plan.at.get(site)
        if found is None or found.in_parts or site in self.cuts.sites:  # they run by themselves
            return (), 1.0, ""
        return found.change.steps, found.weight, f"reshard{self.plan.numbers[site]}"

    def _read_all(
        self, entries: Sequence[Entry], states: Sequence[Sharding], moves: Sequence[Move]
    ) -> list[Array]:
        """Local shards of the operands of one op.

        XLA merges equal gathers of one argument, say a parameter in the forward and in the
        backward pass, and then keeps the gathered copy alive in between, where the plan counts
        on its being dropped. A later gather therefore waits, behind a barrier, for a value of
        its time: another operand of the op that reads the gather before it, or what was made last
        then, so that it can run beside that op. A barrier around the argument alone does not
        help, XLA removes it before it looks for equal operations.
        """
        pairs = zip(entries, moves, strict=True)
        again = [self._count_gather(entry, steps, entries) for entry, (steps, *_) in pairs]
        return [
            self.mover.move(entry.array, entry.type, *move, before)
            if isinstance(entry, Kept)
            else self._make(entry, state)
            for entry, state, move, before in zip(entries, states, moves, again, strict=True)
        ]

    def _count_gather(
        self, entry: Entry, steps: Sequence[ReshardStep], entries: Sequence[Entry]
    ) -> int:
        """How often an argument was gathered before this read; from the second time it waits."""
        gathers = any(step.kind == "all-gather" for step in steps)
        if not isinstance(entry, Kept) or not entry.is_argument or not gathers:
            return 0
        earlier = self._earlier(entries)
        if entry.gathers > 0 and earlier is not None:
            entry.array, earlier.array = lax.optimization_barrier((entry.array, earlier.array))
        entry.gathers += 1
        return entry.gathers - 1

    def _earlier(self, entries: Sequence[Entry]) -> Kept | None:
        """What a later gather of an argument waits for; notes what the gather after it will."""
        others = [other for other in entries if isinstance(other, Kept) and not other.is_argument]
        partner = others[0] if others else self.latest
        if partner is not None and partner not in self.awaited[-1:]:
            self.awaited.append(partner)
        return self.awaited[max(len(self.awaited) - 2, 0)] if self.awaited else None

    def keep(self, x: Array, type_: TensorType, state: Sharding, site: Site) -> Kept:
        """Reshards a result as the plan says at this place and keeps it for its readers."""
        if site in self.cuts.sites:
            return Kept(self._in_chunks(x, type_, site), type_, self.plan.at[site].change.after)
        steps, count, name = self._move(site)
        kept = steps[-1].after if steps else state
        return Kept(self.mover.move(x, type_, steps, count, name), type_, kept)

    def _make(self, free: Free | Literal, state: Sharding) -> Array:
        if isinstance(free, Literal):
            return self.mover.cut(literal(free), state)
        if (free, state) not in self.made:
            self.made[(free, state)] = self._made(free, state)
        return self.made[(free, state)]

    def _made(self, free: Free, state: Sharding) -> Array:
        if state.partial:
            whole = self._make(free, state.without_partial())
            return self.mover.cut(whole, Sharding(((),) * free.type.rank, state.partial))
        types = tuple(operand.type for operand in free.operands)
        strategy = self._strategy(free, types, state) if any(state.dims) else None
        if strategy is not None:
            op = LocalOp(free.node, free.binding, types, strategy, self.mesh)
            operands = self._operands(free, strategy.operands)
            return run_op(op, operands, self.mover)[free.number]
        if any(state.dims):
            whole = self._make(free, Sharding(((),) * free.type.rank))
            return self.mover.cut(whole, state)
        operands = self._operands(free, tuple(Sharding(((),) * t.rank) for t in types))
        found = bind_inside(free.node.op, free.binding, operands, free.binding.params)
        return found[free.number]

    def _operands(self, free: Free, states: tuple[Sharding, ...]) -> list[Array]:
        return [self._make(x, state) for x, state in zip(free.operands, states, strict=True)]

    def _strategy(
        self, free: Free, types: tuple[TensorType, ...], state: Sharding
    ) -> Strategy | None:
        """The strategy that makes the result directly in that state, if there is one."""
        attrs = dict(free.node.attrs)
        spec = lookup(free.node.op).factors(types, free.node.outputs, attrs)
        axes = _axes_of(spec, free.number, state)
        if axes is None:
            return None
        try:
            operands, results = shardings_of(spec, axes, self.mesh)
        except IRError:
            return None
        if results[free.number] != state:
            return None
        role = {axis: factor for factor, mine in axes.items() for axis in mine}
        roles = tuple(role.get(axis, "") for axis in self.mesh.names)
        return Strategy(roles, operands, results)


def _axes_of(
    spec: FactorSpec, number: int, state: Sharding
) -> Mapping[str, tuple[str, ...]] | None:
    """Axes per factor that give one result its state; None where a split dim is no one factor."""
    found: dict[str, tuple[str, ...]] = {}
    for dim, axes in zip(spec.results[number], state.dims, strict=True):
        if axes and len(dim) != 1:
            return None
        if axes:
            found[dim[0]] = axes
    return found
