"""Random legal decisions: any strategy for each op, any state for each value."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from costmodel import CollectiveModel, ReshardModel, parse_cluster, sharded_dims
from costmodel.compiler.fusion import analyse
from ir import (
    Graph,
    Literal,
    LoweredPlan,
    Mesh,
    Sharding,
    TensorType,
    dtype_kind,
    lookup,
    passing_groups,
    replicated,
)
from ir.analysis.decisions import Decisions
from ir.analysis.flat_program import FlatOp, FlatProgram, Place
from ir.analysis.flatten import flatten
from ir.strategy import Strategy, strategies, value_states
from ir.trace import Traced
from planner.sharding.lower import lower_decisions

CUBE = Mesh((("a", 2), ("b", 2), ("c", 2)))
LINE = Mesh((("x", 8),))
MESHES = {"cube": CUBE, "line": LINE}


def model_of(mesh: Mesh) -> ReshardModel:
    """Prices on an imaginary machine with as many devices as the mesh."""
    cluster = parse_cluster(f"{mesh.num_devices}xh100")
    return ReshardModel(cluster, mesh, CollectiveModel(cluster))


def lowered(traced: Traced, decisions: Decisions) -> LoweredPlan:
    """The plan that decisions stand for, on an imaginary machine."""
    tied = {result: argument for argument, result in traced.tied}
    return lower_decisions(flatten(traced.graph), decisions, model_of(decisions.mesh), tied)


def random_decisions(
    graph: Graph, mesh: Mesh, seed: int, ties: tuple[tuple[int, int], ...] = ()
) -> Decisions:
    """Decisions drawn with a seed; tied results take the state of their argument."""
    return _Draw(graph, mesh, seed).decisions(ties)


class _Draw:
    def __init__(self, graph: Graph, mesh: Mesh, seed: int) -> None:
        self.graph, self.mesh = graph, mesh
        self.rng = random.Random(seed)
        self.flat: FlatProgram = flatten(graph)
        self.free = analyse(self.flat).free
        self.states: dict[int, Sharding] = {}

    def decisions(self, ties: tuple[tuple[int, int], ...]) -> Decisions:
        flat = self.flat
        roles: dict[Place, tuple[str, ...]] = {}
        for v, value in enumerate(flat.values):
            if value.kind != "op" and v not in flat.stacked:
                state = self.draw(value.type, partial=value.kind == "port")
                self.states[v] = replicated(value.type.rank) if v in flat.forced else state
        for op in flat.ops:
            if op.outputs and all(self.free[v] for v in op.outputs):
                continue
            strategy = self.strategy(op)
            roles[op.place] = strategy.roles
            for v, raw in zip(op.outputs, strategy.results, strict=True):
                self.states[v] = self.published(v, raw)
        for outer, port in flat.stacked.items():
            inner = self.states[port]
            self.states[outer] = inner.stacked()
        values = {key: self.states[v] for key, v in flat.names.items() if v in self.states}
        inputs = tuple(self.states[v] for v in flat.inputs)
        heads = sum(item.role == "constant" for item in self.graph.inputs)
        tied = {result: inputs[heads + argument] for argument, result in ties}
        outputs = tuple(
            tied.get(k) or self.draw(self.graph.type_of(o), partial=False)
            for k, o in enumerate(self.graph.outputs)
        )
        return Decisions(self.mesh, roles, values, inputs, outputs)

    def draw(self, type_: TensorType, *, partial: bool) -> Sharding:
        partial = partial and dtype_kind(type_.dtype) in ("int", "float", "complex")
        dims = sharded_dims(type_.shape, self.mesh)
        return self.rng.choice(value_states(self.mesh, dims, partial=partial))

    def strategy(self, op: FlatOp) -> Strategy:
        types = operand_types(self.flat, op)
        spec = lookup(op.node.op).factors(types, op.node.outputs, dict(op.node.attrs))
        return self.rng.choice(strategies(spec, self.mesh, passing_groups(op.node, types)))

    def published(self, v: int, raw: Sharding) -> Sharding:
        if v in self.flat.forced:
            return replicated(len(raw.dims))
        if self.rng.random() < 0.4 and all(kind == "sum" for _, kind in raw.partial):
            return raw
        # From a partial maximum there is no way into a partial sum.
        extreme = any(kind != "sum" for _, kind in raw.partial)
        return self.draw(self.flat.values[v].type, partial=not extreme)


def decisions_by(
    graph: Graph,
    mesh: Mesh,
    inputs: Sequence[Sharding],
    outputs: Sequence[Sharding],
    choose: Callable[[tuple[TensorType, ...], FlatOp, tuple[Strategy, ...]], Strategy],
    publish: Callable[[Sharding], Sharding],
) -> Decisions:
    """Decisions of a straight program: a choice per op, and a state for each raw result."""
    flat = flatten(graph)
    free = analyse(flat).free
    states = dict(zip(flat.inputs, inputs, strict=True))
    roles: dict[Place, tuple[str, ...]] = {}
    for op in flat.ops:
        if all(free[v] for v in op.outputs):
            continue
        types = operand_types(flat, op)
        spec = lookup(op.node.op).factors(types, op.node.outputs, dict(op.node.attrs))
        strategy = choose(types, op, strategies(spec, mesh))
        roles[op.place] = strategy.roles
        states |= {v: publish(s) for v, s in zip(op.outputs, strategy.results, strict=True)}
    values = {key: states[v] for key, v in flat.names.items() if v in states}
    return Decisions(mesh, roles, values, tuple(inputs), tuple(outputs))


def decisions_of(
    ops: Collection[str], traced: Traced, mesh: Mesh, roles: tuple[str, ...]
) -> Decisions:
    """Decisions that split some kinds of ops as the roles say, and nothing else."""

    def choose(_types: object, op: FlatOp, menu: tuple[Strategy, ...]) -> Strategy:
        if op.node.op not in ops:
            return menu[0]
        (found,) = [strategy for strategy in menu if strategy.roles == roles]
        return found

    graph = traced.graph
    inputs = [replicated(item.type.rank) for item in graph.inputs]
    outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
    return decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw)


def operand_types(flat: FlatProgram, op: FlatOp) -> tuple[TensorType, ...]:
    return tuple(v.type if isinstance(v, Literal) else flat.values[v].type for v in op.inputs)
