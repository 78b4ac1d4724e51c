"""Flat program x mesh x costs -> `IntraProblem`, and a choice back to decisions.

Nodes of the problem are

    a value node for every argument, port, and value that is read more than once: its states;
    an op node for every op: its strategies.

An edge joins whoever makes a value with whoever reads it and costs the reshard between them;
so a partial result is reduced where and as it is cheapest. Arguments and results that hold one
state (donated buffers, parameters carried from step to step) are one node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel import VIEWS, OpWork, op_seconds, reduction_of, sharded_dims
from ir import FactorSpec, Literal, Sharding, TensorType, lookup

from ..flatten import FlatOp, FlatProgram
from ..fusion import Traffic
from ..menu import Strategy, strategies, value_states
from .liveness import any_partial, may_be_partial, uses
from .problem import Edge, Floats, IntraProblem
from .records import Built, Limits, MenuCache, NodeRef, States, is_float, operand_types


class Builder:
    """Builds problems of one flat program on one mesh."""

    def __init__(
        self,
        flat: FlatProgram,
        traffic: Traffic,
        cache: MenuCache,
        ties: tuple[tuple[int, int], ...],
        donated: frozenset[int],
        limit_bytes: float,
    ) -> None:
        self.flat, self.traffic, self.cache = flat, traffic, cache
        self.mesh = cache.mesh
        self.limit_bytes = limit_bytes
        self.tied_in = {out: flat.inputs[a] for a, out in ties}
        self.maker = {v: (i, k) for i, op in enumerate(flat.ops) for k, v in enumerate(op.outputs)}
        self.partial = may_be_partial(flat)
        self.uses, self.last = uses(flat)
        self.in_place = self._in_place([pair for pair in ties if pair[0] in donated])
        self.stack_of = {port: outer for outer, port in flat.stacked.items()}

    def _in_place(self, ties: list[tuple[int, int]]) -> set[int]:
        """Results written into the buffer of their donated argument, dead by then.

        The carries of loops that such results leave are written there too; an argument that is
        returned as it came holds its buffer itself.
        """
        flat = self.flat
        found: set[int] = set()
        for a, out in ties:
            v, argument = flat.outputs[out], flat.inputs[a]
            if isinstance(v, Literal):
                continue
            made = flat.ops[self.maker[v][0]].time if v in self.maker else flat.clock
            if self.last.get(argument, 0) <= made:
                found.add(v)
        found |= {link.source for link in flat.links if link.target in found}
        return found - set(flat.inputs)

    # --- menus ---------------------------------------------------------------------------

    def spec(self, op: FlatOp) -> FactorSpec:
        types = operand_types(self.flat, op)
        key = (op.node.op, types, op.node.outputs, op.node.attrs)
        if key not in self.cache.specs:
            record = lookup(op.node.op)
            self.cache.specs[key] = record.factors(types, op.node.outputs, dict(op.node.attrs))
        return self.cache.specs[key]

    def groups(self, op: FlatOp) -> tuple[tuple[int, ...], ...]:
        record = lookup(op.node.op)
        if record.linear is None:
            return ()
        return record.linear(operand_types(self.flat, op), op.node.outputs, dict(op.node.attrs))

    def menu(self, op: FlatOp) -> tuple[Strategy, ...]:
        spec, groups = self.spec(op), self.groups(op)
        usable = tuple(g for g, members in enumerate(groups) if self._passes(op, members))
        key = ("menu", id(spec), usable)  # specs live as long as the cache
        if key not in self.cache.menus:
            found = strategies(spec, self.mesh, groups if usable else ())
            keep = {f"@{g}" for g in usable}
            self.cache.menus[key] = tuple(
                s for s in found if all(not r.startswith("@") or r in keep for r in s.roles)
            )
        return self.cache.menus[key]

    def _passes(self, op: FlatOp, members: tuple[int, ...]) -> bool:
        if lookup(op.node.op).family in ("contraction", "convolution"):
            return False
        if not any_partial(op, members, self.partial):
            return False
        return all(is_float(t) for t in op.node.outputs)

    def states(self, value: int, *, partial: bool) -> States:
        shape = self.flat.values[value].type.shape
        key = (shape, partial)
        if key not in self.cache.states:
            self.cache.states[key] = value_states(
                shape, self.mesh, partial=partial, all_dims=sharded_dims(shape, self.mesh)
            )
        return self.cache.states[key]

    # --- the problem ---------------------------------------------------------------------

    def build(self, limits: Limits | None = None) -> Built:
        """The problem under given limits."""
        limits = limits or Limits()
        self.refs: list[NodeRef] = []
        self.costs: list[Floats] = []
        self.use: list[Floats] = []
        self.spans: list[tuple[int, int]] = []
        self.edges: list[Edge] = []
        self.op_node: dict[int, int] = {}
        self.value_node: dict[int, int] = {}
        self.out_node: dict[int, int] = {}
        flat = self.flat
        for value in flat.inputs:
            self._value(value, limits, partial=False)
        port_of = set(flat.stacked.values())
        for v, value in enumerate(flat.values):
            if value.kind == "port" and v not in flat.stacked:
                self._value(v, limits, partial=self.partial[v] and v not in port_of)
        for i, op in enumerate(flat.ops):
            if not all(self.traffic.free[v] for v in op.outputs):
                self._op(i, op, limits)
        for link in flat.links:
            if link.source != link.target and not self.traffic.free[link.source]:
                target = self._target(link.target, link.lift)
                self._edge(link.source, self.value_node[link.target], target, link.weight)
        self._outputs(limits)
        problem = IntraProblem(
            tuple(self.costs), tuple(self.edges), tuple(self.use), tuple(self.spans),
            self.limit_bytes,
        )  # fmt: skip
        return Built(
            problem, tuple(self.refs), self.op_node, self.value_node, self.maker, self.out_node
        )

    def _add(self, ref: NodeRef, cost: Floats, use: Floats, span: tuple[int, int]) -> int:
        self.refs.append(ref)
        self.costs.append(cost)
        self.use.append(use)
        self.spans.append(span)
        return len(self.refs) - 1

    def _value(self, v: int, limits: Limits, *, partial: bool) -> int:
        states = self.states(v, partial=partial)
        if v in self.flat.forced:
            states = states[:1]
        if limits.state is not None:
            kept = tuple(s for s in states if limits.state(v, s))
            key = ("kept", kept)
            states = self.cache.columns.setdefault(key, kept)
        zero = self._zeros(len(states))
        node = self._add(NodeRef(-1, v, (), states), zero, self._bytes(v, states), self._span(v))
        self.value_node[v] = node
        return node

    def _zeros(self, count: int) -> Floats:
        return self.cache.vectors.setdefault(("zero", count), np.zeros(count))

    def _bytes(self, v: int, states: States) -> Floats:
        if not self.traffic.stored[v] or self.traffic.free[v] or v in self.in_place:
            return self._zeros(len(states))
        return self._state_bytes(v, states)

    def _state_bytes(self, v: int, states: States) -> Floats:
        value = self.flat.values[v]
        factor = 1
        if v in self.stack_of:
            outer = self.flat.values[self.stack_of[v]].type.size
            factor = outer // max(value.type.size, 1)
        key = ("bytes", value.type, id(states), factor)
        if key not in self.cache.vectors:
            self.cache.vectors[key] = np.array(
                [float(s.local_bytes(value.type, self.mesh)) * factor for s in states]
            )
            self.cache.columns[("keep", id(states))] = states
        return self.cache.vectors[key]

    def _span(self, v: int) -> tuple[int, int]:
        value = self.flat.values[v]
        if value.kind == "argument":
            return 0, self.flat.clock
        end = max(self.last.get(v, value.time), value.region_end) + 1
        outer = self.stack_of.get(v)
        if outer is not None:
            end = max(end, self.last.get(outer, 0) + 1)
        return value.time, end

    def _op(self, i: int, op: FlatOp, limits: Limits) -> None:
        menu = self.menu(op)
        spec = self.spec(op)
        if limits.op is not None:
            kept = limits.op(i, spec, menu)
            menu = self.cache.menus.setdefault(("kept", kept), kept)
        inner = [v for v in op.outputs if not self._is_shared(v)]
        use = self._op_bytes(op, menu, inner)
        end = max((self.last.get(v, op.time) for v in inner), default=op.time) + 1
        node = self._add(
            NodeRef(i, -1, menu, ()), self._op_cost(i, op, spec, menu), use, (op.time, end)
        )
        self.op_node[i] = node
        for position, value in enumerate(op.inputs):
            if isinstance(value, int) and not self.traffic.free[value]:
                states = self._column(menu, "operand", position)
                self._edge(value, node, states, op.weight)
        for position, v in enumerate(op.outputs):
            if self._is_shared(v):
                partial = self.partial[v] and any(
                    s.partial for s in self._column(menu, "result", position)
                )
                target = self._value(v, Limits(), partial=partial)
                self._join(
                    node, self._column(menu, "result", position), target,
                    self.refs[target].states, self.flat.values[v].type, op.weight,
                )  # fmt: skip

    def _is_shared(self, v: int) -> bool:
        op = self.flat.ops[self.maker[v][0]]
        return self.uses.get(v, 0) != 1 or len(op.outputs) > 1

    def _op_bytes(self, op: FlatOp, menu: tuple[Strategy, ...], inner: list[int]) -> Floats:
        key = ("op-bytes", id(menu), op.node.outputs, tuple(self._counts(op, v) for v in inner))
        if key not in self.cache.vectors:
            total = np.zeros(len(menu))
            for v in inner:
                position = op.outputs.index(v)
                if self._counts(op, v):
                    states = self._column(menu, "result", position)
                    type_ = self.flat.values[v].type
                    total = total + [float(s.local_bytes(type_, self.mesh)) for s in states]
            self.cache.vectors[key] = total
            self.cache.menus[("keep", id(menu))] = menu
        return self.cache.vectors[key]

    def _counts(self, op: FlatOp, v: int) -> bool:
        return self.traffic.stored[v] and op.node.op not in VIEWS and v not in self.in_place

    def _op_cost(self, i: int, op: FlatOp, spec: FactorSpec, menu: tuple[Strategy, ...]) -> Floats:
        writes = tuple(k for k, v in enumerate(op.outputs) if self.traffic.stored[v])
        reads, launches = self.traffic.reads[i], self.traffic.launches[i]
        types = operand_types(self.flat, op)
        key = (
            "cost", op.node.op, types, op.node.outputs, op.node.attrs, id(menu), reads, writes,
            launches, op.weight,
        )  # fmt: skip
        if key not in self.cache.vectors:
            ways = {name: np.ones(len(menu)) for name in spec.names}
            for k, strategy in enumerate(menu):
                for name, axes in strategy.factor_axes(self.mesh).items():
                    ways[name][k] = self.mesh.product(axes)
            work = OpWork(op.node, lookup(op.node.op), types, spec, reads, writes, launches)
            seconds = np.broadcast_to(op_seconds(work, ways, self.cache.compute), (len(menu),))
            self.cache.vectors[key] = np.ascontiguousarray(seconds) * op.weight
            self.cache.menus[("keep", id(menu))] = menu
        return self.cache.vectors[key]

    def _column(self, menu: tuple[Strategy, ...], side: str, position: int) -> States:
        key = (id(menu), side, position)
        if key not in self.cache.columns:
            states = tuple((s.operands if side == "operand" else s.results)[position] for s in menu)
            self.cache.columns[key] = self.cache.columns.setdefault(("is", states), states)
            self.cache.menus[("keep", id(menu))] = menu
        return self.cache.columns[key]

    # --- edges ---------------------------------------------------------------------------

    def source(self, v: int) -> tuple[int, States]:
        """Who provides value v: a node and the state of v under each of its options."""
        if v in self.flat.stacked:
            node = self.value_node[self.flat.stacked[v]]
            return node, self._lift(self.refs[node].states)
        if v in self.value_node:
            node = self.value_node[v]
            return node, self.refs[node].states
        i, position = self.maker[v]
        node = self.op_node[i]
        return node, self._column(self.refs[node].menu, "result", position)

    def _lift(self, states: States) -> States:
        key = ("lift", states)
        if key not in self.cache.columns:
            self.cache.columns[key] = tuple(Sharding(((), *s.dims), s.partial) for s in states)
        return self.cache.columns[key]

    def _target(self, v: int, lift: int) -> States:
        states = self.refs[self.value_node[v]].states
        return self._lift(states) if lift else states

    def _edge(self, v: int, node: int, states: States, weight: float) -> None:
        source, source_states = self.source(v)
        self._join(source, source_states, node, states, self.flat.values[v].type, weight)

    def _join(
        self, u: int, rows: States, v: int, columns: States, type_: TensorType, weight: float
    ) -> None:
        key = ("edge", type_, id(rows), id(columns), weight)
        if key not in self.cache.edges:
            row_index, kind = self._index(rows, type_, None)
            column_index, _ = self._index(columns, type_, kind)
            matrix = self.cache.reshard.matrix(type_, kind)
            known = (row_index[:, None] >= 0) & (column_index[None, :] >= 0)
            found = np.where(known, matrix[np.ix_(row_index, column_index)], np.inf)
            found[np.isfinite(found)] *= weight  # a loop that never runs has weight 0
            self.cache.edges[key] = found
            self.cache.columns[("keep", id(rows))] = rows
            self.cache.columns[("keep", id(columns))] = columns
        table = self.cache.edges[key]
        if table.any():
            self.edges.append(Edge(u, v, table))

    def _index(
        self, states: States, type_: TensorType, kind: str | None
    ) -> tuple[NDArray[np.intp], str]:
        if kind is None:
            kinds = {reduction_of(state) for state in states} - {"sum"}
            kind = next(iter(sorted(kinds)), "sum")
        key = (id(states), type_.shape, kind)
        if key not in self.cache.index:
            index = self.cache.reshard.space(type_.shape, kind).index
            found = np.array([index.get(s, -1) for s in states], dtype=np.intp)
            self.cache.index[key] = (found, kind)
            self.cache.columns[("keep", id(states))] = states
        return self.cache.index[key]

    def _outputs(self, limits: Limits) -> None:
        """Tied results go to their argument's node; others get a node of their own."""
        for position, v in enumerate(self.flat.outputs):
            if not isinstance(v, int):
                continue
            tied = self.tied_in.get(position)
            if tied is not None:
                node = self.value_node[tied]
            else:
                states = self.states(v, partial=False)
                if limits.state is not None:
                    kept = tuple(s for s in states if limits.state(-1 - position, s))
                    states = self.cache.columns.setdefault(("kept", kept), kept)
                # a result made of literals alone has no maker to count its bytes
                made = self.traffic.free[v]
                use = self._state_bytes(v, states) if made else self._zeros(len(states))
                end = self.flat.clock if made else 0
                ref = NodeRef(-1, v, (), states)
                node = self._add(ref, self._zeros(len(states)), use, (max(0, end - 1), end))
            self.out_node[position] = node
            if not self.traffic.free[v] and self.source(v)[0] != node:
                self._edge(v, node, self.refs[node].states, 1.0)
