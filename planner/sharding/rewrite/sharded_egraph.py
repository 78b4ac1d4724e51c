"""Equal programs times shardings: one e-graph whose cheapest extraction is both choices at once.

For a class m of equal values and a sharding s there are two classes:

    made (m, s)    by an op on operands as a strategy needs them, at the price of that strategy
    had  (m, s)    from made (m, t), at the price of the reshard from t to s; t = s is free

An op reads what is had. A reshard reads what was made and not what was had, so that reshards form
no cycles; a sharding that is passed on the way is part of the price of the cheapest path.
Partial sums are shardings, so that when and how a sum is finished is chosen too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel import ComputeModel, OpWork, ReshardModel, hops_of, op_seconds, reduction_of
from ir import (
    FactorSpec,
    Mesh,
    Node,
    Sharding,
    Strategy,
    TensorType,
    factor_marks,
    lookup,
    passing_groups,
    strategies,
)
from substitutions import EGraph, ENode


@dataclass(frozen=True, slots=True)
class Work:
    """An op as the planner prices it; `reads` and `writes` as in `costmodel.OpWork`."""

    node: Node
    types: tuple[TensorType, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    launches: int

    def spec(self) -> FactorSpec:
        record = lookup(self.node.op)
        return record.factors(self.types, self.node.outputs, dict(self.node.attrs))

    def passing(self) -> tuple[tuple[int, ...], ...]:
        """Groups of operands through which partial sums may pass, as in programs."""
        float_ = self.node.outputs[0].dtype.startswith(("float", "bfloat"))
        return passing_groups(self.node, self.types) if float_ else ()

    def priced(self, spec: FactorSpec) -> OpWork:
        record = lookup(self.node.op)
        return OpWork(self.node, record, self.types, spec, self.reads, self.writes, self.launches)


@dataclass(frozen=True, slots=True)
class Item:
    """A way to make a value: an op on values, or (without work) a value that lies somewhere.

    name: for the caller.
    args: (operand, value) for the operands that are values.
    runs: how often it runs.
    """

    name: int
    value: int
    args: tuple[tuple[int, int], ...] = ()
    work: Work | None = None
    placed: Sharding | None = None
    runs: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What a node of the product stands for: an item under a strategy, or a reshard.

    item: None for a reshard.
    """

    value: int
    state: Sharding
    item: Item | None = None
    strategy: Strategy | None = None
    start: Sharding | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for: values, and the sharding that each must have, or None for any."""

    values: tuple[int, ...]
    states: tuple[Sharding | None, ...]


@dataclass
class Prices:
    """Costs of one mesh; strategies and their seconds are remembered."""

    mesh: Mesh
    compute: ComputeModel
    reshard: ReshardModel
    _known: dict[object, tuple[tuple[Strategy, float], ...]] = field(
        default_factory=dict[object, "tuple[tuple[Strategy, float], ...]"]
    )

    def ways_of(self, work: Work, args: int) -> tuple[tuple[Strategy, float], ...]:
        """The strategies of an op, each with its seconds; the cheapest of equal states.

        args: number of operands that count.
        """
        node = work.node
        key = (
            node.op, repr(node.attrs), node.outputs, work.types, work.reads, work.writes,
            work.launches, args, factor_marks(node),
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = self._ways(work, args)
        return self._known[key]

    def _ways(self, work: Work, args: int) -> tuple[tuple[Strategy, float], ...]:
        spec = work.spec()
        menu = strategies(spec, self.mesh, work.passing())
        axes = [s.factor_axes(self.mesh) for s in menu]
        ways = {
            name: np.array([float(self.mesh.product(a.get(name, ()))) for a in axes])
            for name in spec.names
        }
        hops = hops_of(spec, menu, self.reshard, overlap=not self.reshard.cluster.has_cpus)
        found = op_seconds(work.priced(spec), ways, self.compute, hops)
        seconds = np.broadcast_to(found, len(menu))
        best: dict[object, tuple[Strategy, float]] = {}
        for strategy, price in zip(menu, seconds, strict=True):
            states = (strategy.operands[:args], strategy.results[0])
            if states not in best or price < best[states][1]:
                best[states] = (strategy, float(price))
        return tuple(best.values())

    def reshard_s(self, type_: TensorType, start: Sharding, end: Sharding) -> float:
        """Seconds of the cheapest way from one sharding to another; infinite if there is none."""
        if start == end:
            return 0.0
        kind = reduction_of(start) if start.partial else reduction_of(end)
        index = self.reshard.space(type_.shape, kind).index
        if start not in index or end not in index:
            return math.inf
        return float(self.reshard.matrix(type_, kind)[index[start], index[end]])


@dataclass(frozen=True, slots=True)
class Product:
    """The e-graph and what its nodes stand for, in the same order."""

    graph: EGraph
    choices: tuple[Choice | None, ...]


Kept = Mapping[int, frozenset[Sharding]]


def product_of(
    items: Sequence[Item], types: Sequence[TensorType], prices: Prices, wish: Wish,
    kept: Kept | None = None, runs: Mapping[int, float] | None = None,
) -> Product:  # fmt: skip
    """The product of items and shardings.

    Args:
        items: ways to make values.
        types: of the values, by number.
        prices: of the mesh.
        wish: what must come out.
        kept: shardings in which these values may be made; others are free.
        runs: how often a value is made, and resharded; once if it does not say.
    """
    return _Builder(types, prices, kept or {}, runs or {}).build(items, wish)


class _Builder:
    def __init__(
        self, types: Sequence[TensorType], prices: Prices, kept: Kept, runs: Mapping[int, float]
    ) -> None:
        self.types, self.prices = types, prices
        self.kept, self.runs = kept, runs
        self.number: dict[tuple[str, int, Sharding], int] = {}
        self.nodes: list[ENode] = []
        self.choices: list[Choice | None] = []
        self.made: dict[int, dict[Sharding, None]] = {}
        self.had: dict[int, dict[Sharding, None]] = {}

    def build(self, items: Sequence[Item], wish: Wish) -> Product:
        for item in items:
            self._item(item)
        roots = [self._root(v, s) for v, s in zip(wish.values, wish.states, strict=True)]
        for value, states in self.had.items():
            for state in states:
                self._reshards(value, state)
        for root, ends in ((r, e) for r, e in roots if e):
            for end in ends:
                self._add(root, 0.0, (end,), None)
        graph = EGraph(
            len(self.number), tuple(self.nodes), tuple(dict.fromkeys(r for r, _ in roots))
        )
        return Product(graph, tuple(self.choices))

    def _class(self, what: str, value: int, state: Sharding) -> int:
        return self.number.setdefault((what, value, state), len(self.number))

    def _add(
        self, owner: int, seconds: float, children: tuple[int, ...], choice: Choice | None
    ) -> None:
        if math.isfinite(seconds):
            self.nodes.append(ENode(owner, seconds, tuple(sorted(set(children)))))
            self.choices.append(choice)

    def _item(self, item: Item) -> None:
        if item.work is None:
            assert item.placed is not None
            self._make(Choice(item.value, item.placed, item), 0.0, ())
            return
        operands = 1 + max((k for k, _ in item.args), default=-1)
        for strategy, seconds in self.prices.ways_of(item.work, operands):
            needs = [(value, strategy.operands[k]) for k, value in item.args]
            choice = Choice(item.value, strategy.results[0], item, strategy)
            self._make(choice, seconds * item.runs, needs)

    def _make(self, choice: Choice, seconds: float, needs: Sequence[tuple[int, Sharding]]) -> None:
        value, state = choice.value, choice.state
        if value in self.kept and state not in self.kept[value]:
            return
        children: list[int] = []
        for arg, needed in needs:
            self.had.setdefault(arg, {})[needed] = None
            children.append(self._class("had", arg, needed))
        self.made.setdefault(value, {})[state] = None
        owner = self._class("made", value, state)
        self._add(owner, seconds, tuple(children), choice)

    def _root(self, value: int, state: Sharding | None) -> tuple[int, tuple[int, ...]]:
        if state is not None:
            self.had.setdefault(value, {})[state] = None
            return self._class("had", value, state), ()
        ends = [s for s in self.made.get(value, {}) if not s.partial]
        whole = Sharding(((),) * len(self.types[value].shape))
        ends = list(dict.fromkeys([*ends, whole]))
        for end in ends:
            self.had.setdefault(value, {})[end] = None
        any_ = self._class("any", value, whole)
        return any_, tuple(self._class("had", value, end) for end in ends)

    def _reshards(self, value: int, state: Sharding) -> None:
        owner = self._class("had", value, state)
        for start in self.made.get(value, {}):
            seconds = self.prices.reshard_s(self.types[value], start, state)
            child = self._class("made", value, start)
            self._add(
                owner,
                seconds * self.runs.get(value, 1.0),
                (child,),
                Choice(value, state, start=start),
            )
