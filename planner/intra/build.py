"""Flat program x mesh x costs -> `IntraProblem`, and a choice back to decisions.

Nodes of the problem are

    a value node for every argument, port, and value that is read more than once: its states;
    an op node for every op: its strategies.

An edge joins whoever makes a value with whoever reads it and costs the reshard between them;
so a partial result is reduced where and as it is cheapest. Arguments and results that hold one
state (donated buffers, parameters carried from step to step) are one node.

Where a program repeats itself, the members of a class (`planner.repeats`) are one node: its cost
is that of all members, and so is that of the edges between two classes.
"""

from __future__ import annotations

import numpy as np

from costmodel import OpWork, op_seconds, sharded_dims
from ir import FactorSpec, Sharding, TensorType, lookup

from ..flatten import FlatOp, Link
from ..menu import Strategy, form_of, strategies, value_states
from ..repeats import Repeats
from .edges import edge_table
from .facts import Facts, Span
from .lives import Lives
from .problem import Edge, Floats, IntraProblem
from .records import Built, MenuCache, NodeRef, States, operand_types


class Builder:
    """Builds problems of one flat program on one mesh."""

    def __init__(
        self,
        facts: Facts,
        cache: MenuCache,
        limit_bytes: float,
        repeats: Repeats | None = None,
    ) -> None:
        self.facts, self.flat, self.traffic = facts, facts.flat, facts.traffic
        self.cache, self.mesh, self.limit_bytes = cache, cache.mesh, limit_bytes
        self.tied_in = facts.tied_in
        self.no_buffer = facts.in_place | facts.read_only
        self.repeats = repeats

    def spec(self, op: FlatOp) -> FactorSpec:
        return self.facts.spec(op)

    def menu(self, op: FlatOp) -> tuple[Strategy, ...]:
        spec, usable = self.facts.spec(op), self.facts.passing(op)
        form = self.cache.forms.get(id(spec))  # specs live as long as the facts
        if form is None:
            form = self.cache.forms[id(spec)] = form_of(spec, self.mesh)
        key = ("menu", form, self.facts.groups(op) if usable else (), usable)
        if key not in self.cache.menus:
            found = strategies(spec, self.mesh, self.facts.groups(op) if usable else ())
            keep = {f"@{g}" for g in usable}
            self.cache.menus[key] = tuple(
                s for s in found if all(not r.startswith("@") or r in keep for r in s.roles)
            )
        return self.cache.menus[key]

    def states(self, value: int, *, partial: bool) -> States:
        shape = self.flat.values[value].type.shape
        key = (self.cache.reshard.form(shape), len(shape), partial)
        if key not in self.cache.states:
            splits = sharded_dims(shape, self.mesh)
            self.cache.states[key] = value_states(self.mesh, splits, partial=partial)
        return self.cache.states[key]

    def build(self) -> Built:
        """The problem; `within` leaves out what a user or a hand-written plan does not allow."""
        self.refs: list[NodeRef] = []
        self.costs: list[Floats] = []
        self.use: list[Floats] = []
        self.lives: list[tuple[int, int, int]] = []  # node, start, end of every buffer
        self.edges: dict[tuple[int, int, int], tuple[Floats, int]] = {}
        self.op_node: dict[int, int] = {}
        self.value_node: dict[int, int] = {}
        self.out_node: dict[int, int] = {}
        self.results: dict[object, int] = {}
        self.stacks: list[tuple[int, Link]] = []
        self.waits: dict[int, int] = {}
        flat, partial = self.flat, self.facts.partial
        for value in flat.inputs:
            self._value(value, partial=False)
        port_of = set(flat.stacked.values())
        for v, value in enumerate(flat.values):
            if value.kind == "port" and v not in flat.stacked:
                self._value(v, partial=partial[v] and v not in port_of)
        for i, op in enumerate(flat.ops):
            if self.facts.is_made(op):
                self._op(i, op)
        for link in flat.links:
            if link.source != link.target and not self.traffic.free[link.source]:
                self._link(link)
        self._outputs()
        return self._built()

    def _built(self) -> Built:
        work = self._multiplied(self.costs)
        costs = list(work)
        edges: list[Edge] = []
        for (u, v, _), (table, count) in self.edges.items():
            many = self._times(self.cache.edges, table, count)
            if u == v:
                costs[u] = costs[u] + np.diagonal(many)
            else:
                edges.append(Edge(u, v, many))
        node, start, end = np.array(self.lives, dtype=np.intp).reshape(-1, 3).T
        horizon = int(end.max(initial=0))
        lives = Lives(node, start, end, tuple(self.use), horizon)
        spans = [(0, 0)] * len(costs)
        if self.repeats is None:
            for n, first, last in self.lives:
                spans[n] = (first, last)
        problem = IntraProblem(
            tuple(costs), tuple(edges), tuple(self.use), tuple(spans), self.limit_bytes
        )
        built = Built(
            problem, tuple(self.refs), self.op_node, self.value_node, self.facts.maker,
            self.out_node, tuple(work), lives, tuple(self.stacks),
            tuple((node, op) for op, node in self.waits.items()),
        )  # fmt: skip
        return built if self.repeats is None else built.watching(lives.worst_moments())

    def _multiplied(self, costs: list[Floats]) -> list[Floats]:
        """Costs of nodes for all members together."""
        if self.repeats is None:
            return list(costs)
        counts = np.zeros(len(costs), dtype=np.intp)
        for node in self.op_node.values():
            counts[node] += 1
        return [
            self._times(self.cache.vectors, cost, int(n)) if n > 1 else cost
            for cost, n in zip(costs, counts, strict=True)
        ]

    def _times(self, known: dict[object, Floats], array: Floats, count: int) -> Floats:
        """`count` times an array; one object for equal questions."""
        if count == 1:
            return array
        key = ("times", id(array), count)
        if key not in known:
            known[key] = array * count
            known[("keep", id(array))] = array
        return known[key]

    def _add(self, ref: NodeRef, cost: Floats, use: Floats) -> int:
        self.refs.append(ref)
        self.costs.append(cost)
        self.use.append(use)
        return len(self.refs) - 1

    def _live(self, node: int, span: Span) -> None:
        if span[1] > span[0]:
            self.lives.append((node, *span))

    def _value(self, v: int, *, partial: bool) -> int:
        first = v if self.repeats is None else self.repeats.value[v]
        if first not in self.value_node:
            self.value_node[first] = self._new_value(v, partial=partial)
        node = self.value_node[v] = self.value_node[first]
        self._live(node, self.facts.spans[v])
        return node

    def _new_value(self, v: int, *, partial: bool) -> int:
        states = self.states(v, partial=partial)
        if v in self.flat.forced:
            states = self.cache.columns.setdefault(("kept", states[:1]), states[:1])
        return self._add(
            NodeRef(-1, v, (), states), self._zeros(len(states)), self._bytes(v, states)
        )

    def _zeros(self, count: int) -> Floats:
        return self.cache.vectors.setdefault(("zero", count), np.zeros(count))

    def _bytes(self, v: int, states: States) -> Floats:
        if not self.facts.lives.owns[v] or self.traffic.free[v] or v in self.no_buffer:
            return self._zeros(len(states))
        return self._state_bytes(v, states)

    def _state_bytes(self, v: int, states: States) -> Floats:
        return self._state_bytes_of(self.flat.values[v].type, states, self.facts.buffers(v))

    def _state_bytes_of(self, type_: TensorType, states: States, factor: int = 1) -> Floats:
        key = ("bytes", type_, id(states), factor)
        if key not in self.cache.vectors:
            self.cache.vectors[key] = np.array(
                [float(s.local_bytes(type_, self.mesh)) * factor for s in states]
            )
            self.cache.columns[("keep", id(states))] = states
        return self.cache.vectors[key]

    def _op(self, i: int, op: FlatOp) -> None:
        first = i if self.repeats is None else self.repeats.op[i]
        if first not in self.op_node:
            self.op_node[first] = self._new_op(i, op)
        node = self.op_node[i] = self.op_node[first]
        self._live(node, self.facts.op_span(op))
        menu = self.refs[node].menu
        if any(v in self.facts.waits for v in op.outputs):
            self._wait(i, op, node, menu)
        for position, value in enumerate(op.inputs):
            if isinstance(value, int) and not self.traffic.free[value]:
                states = self._column(menu, "operand", position)
                self._edge(value, node, states, op.weight)
        for position, v in enumerate(op.outputs):
            if v in self.facts.shared:
                states = self._column(menu, "result", position)
                partial = self.facts.partial[v] and any(s.partial for s in states)
                target = self._value(v, partial=partial)
                self._join(
                    node, states, target, self.refs[target].states, self.flat.values[v].type,
                    op.weight,
                )  # fmt: skip

    def _new_op(self, i: int, op: FlatOp) -> int:
        menu, spec = self.menu(op), self.facts.spec(op)
        inner = [v for v in op.outputs if v not in self.facts.shared]
        use = self._op_bytes(op, menu, inner)
        return self._add(NodeRef(i, -1, menu, ()), self._op_cost(i, op, spec, menu), use)

    def _wait(self, i: int, op: FlatOp, node: int, menu: tuple[Strategy, ...]) -> None:
        """A node that follows the op and holds what of its results are partial sums."""
        if node not in self.waits:
            which = tuple(v in self.facts.waits for v in op.outputs)
            key = ("waits", id(menu), op.node.outputs, which)
            if key not in self.cache.vectors:
                self.cache.vectors[key] = np.array([self._partial_bytes(op, s) for s in menu])
                self.cache.menus[("keep", id(menu))] = menu
            use = self.cache.vectors[key]
            self.waits[node] = self._add(NodeRef(i, -1, menu, ()), self._zeros(len(use)), use)
        same = ("same", len(menu))
        if same not in self.cache.edges:  # caches of other rooms share vectors, not edges
            one = np.eye(len(menu), dtype=bool)
            self.cache.edges[same] = np.where(one, 0.0, np.inf)
        self._put(node, self.waits[node], self.cache.edges[same])
        self._live(self.waits[node], (op.time, self.facts.at(op)))

    def _partial_bytes(self, op: FlatOp, strategy: Strategy) -> float:
        pairs = zip(op.outputs, strategy.results, strict=True)
        held = [(v, s) for v, s in pairs if s.partial and v in self.facts.waits]
        return float(sum(s.local_bytes(self.flat.values[v].type, self.mesh) for v, s in held))

    def _op_bytes(self, op: FlatOp, menu: tuple[Strategy, ...], inner: list[int]) -> Floats:
        counted = tuple(self.facts.counts(op, v) * self.facts.buffers(v) for v in inner)
        key = ("op-bytes", id(menu), op.node.outputs, counted)
        if key not in self.cache.vectors:
            total = np.zeros(len(menu))
            for v, times in zip(inner, counted, strict=True):
                if times:
                    states = self._column(menu, "result", op.outputs.index(v))
                    total = total + self._state_bytes_of(self.flat.values[v].type, states, times)
            self.cache.vectors[key] = total
            self.cache.menus[("keep", id(menu))] = menu
        return self.cache.vectors[key]

    def _op_cost(self, i: int, op: FlatOp, spec: FactorSpec, menu: tuple[Strategy, ...]) -> Floats:
        writes = tuple(k for k, v in enumerate(op.outputs) if self.traffic.stored[v])
        reads, launches = self.traffic.reads[i], self.traffic.launches[i]
        types = operand_types(self.flat, op)
        key = (
            "cost", op.node.op, types, op.node.outputs, op.node.attrs, id(menu), reads, writes,
            launches, op.weight,
        )  # fmt: skip
        if key not in self.cache.vectors:
            work = OpWork(op.node, lookup(op.node.op), types, spec, reads, writes, launches)
            seconds = op_seconds(work, self.cache.parts(spec, menu), self.cache.compute)
            seconds = np.broadcast_to(seconds, (len(menu),))
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

    def source(self, v: int) -> tuple[int, States]:
        """Who provides value v: a node and the state of v under each of its options."""
        if v in self.flat.stacked:
            node = self.value_node[self.flat.stacked[v]]
            return node, self._lift(self.refs[node].states)
        if v in self.value_node:
            node = self.value_node[v]
            return node, self.refs[node].states
        i, position = self.facts.maker[v]
        node = self.op_node[i]
        return node, self._column(self.refs[node].menu, "result", position)

    def _lift(self, states: States) -> States:
        key = ("lift", states)
        if key not in self.cache.columns:
            self.cache.columns[key] = tuple(Sharding(((), *s.dims), s.partial) for s in states)
        return self.cache.columns[key]

    def _link(self, link: Link) -> None:
        """What enters or leaves a region; what a region only reads has a node on the way.

        The region reads the buffer outside as it is, or a copy in another state that lives until
        the region ends; the node's options are first those without a copy, then those with one.
        A loop reads slices of a whole stack.
        """
        node = self.value_node[link.target]
        states = self.refs[node].states
        if not link.lift and link.target not in self.facts.read_only:
            self._edge(link.source, node, states, link.weight)
            return
        source, rows = self.source(link.source)
        lifted = self._lift(states) if link.lift else states
        type_ = self.flat.values[link.source].type
        target = link.target if self.repeats is None else self.repeats.value[link.target]
        key = ("stack", target, source)
        if key not in self.results:
            copied = self._state_bytes_of(type_, lifted)
            use = np.concatenate((np.zeros(len(lifted)), copied))
            ref = NodeRef(-1, -1, (), (*lifted, *lifted))
            self.results[key] = self._add(ref, self._zeros(len(use)), use)
        stack = self.results[key]
        self._live(stack, (link.time, self.flat.values[link.target].region_end + 1))
        self.stacks.append((stack, link))
        move = edge_table(self.cache, rows, lifted, type_, link.weight)
        kept = ("read", id(move))
        if kept not in self.cache.edges:
            same = np.reshape([[a == b for b in lifted] for a in rows], move.shape)
            as_is, copied = np.where(same, 0.0, np.inf), np.where(same, np.inf, move)
            self.cache.edges[kept] = np.hstack((as_is, copied))
            self.cache.edges[("keep", id(move))] = move
            one = np.where(np.eye(len(lifted), dtype=bool), 0.0, np.inf)
            self.cache.edges[("slices", len(lifted))] = np.vstack((one, one))
        self._put(source, stack, self.cache.edges[kept])
        self._put(stack, node, self.cache.edges[("slices", len(lifted))])

    def settle(self, built: Built, choice: list[int]) -> None:
        """Sets the nodes that only count memory to what those around them chose."""
        for stack, link in built.stacks:
            source, rows = self.source(link.source)
            k, states = choice[self.value_node[link.target]], self.refs[stack].states
            same = rows[choice[source]] == states[k]
            choice[stack] = k if same else k + len(states) // 2
        for node, op in built.waits:
            choice[node] = choice[op]

    def _edge(self, v: int, node: int, states: States, weight: float) -> None:
        source, source_states = self.source(v)
        self._join(source, source_states, node, states, self.flat.values[v].type, weight)

    def _join(
        self, u: int, rows: States, v: int, columns: States, type_: TensorType, weight: float
    ) -> None:
        self._put(u, v, edge_table(self.cache, rows, columns, type_, weight))

    def _put(self, u: int, v: int, table: Floats) -> None:
        if table.any():
            place = (u, v, id(table))
            self.edges[place] = table, self.edges.get(place, (table, 0))[1] + 1

    def _outputs(self) -> None:
        """Tied results go to their argument's node; others get a node of their own."""
        for position, v in enumerate(self.flat.outputs):
            if not isinstance(v, int):
                continue
            tied = self.tied_in.get(position)
            node = self._result(position, v) if tied is None else self.value_node[tied]
            self.out_node[position] = node
            self._taken(node, v)
            if not self.traffic.free[v] and self.source(v)[0] != node:
                self._edge(v, node, self.refs[node].states, 1.0)

    def _taken(self, node: int, v: int) -> None:
        """A result that overwrites no argument is a block of memory of its own."""
        if v not in self.facts.in_place and self.cache.compute.device.fresh_bytes_per_s:
            use = self._state_bytes_of(self.flat.values[v].type, self.refs[node].states)
            self.costs[node] = self.costs[node] + self.cache.compute.taking_s(use)

    def _result(self, position: int, v: int) -> int:
        key = ("result", position if self.repeats is None else self.repeats.value[v])
        if key not in self.results:
            states = self.states(v, partial=False)
            alone = self.traffic.free[v]  # made of literals: no maker counts its bytes
            use = self._state_bytes(v, states) if alone else self._zeros(len(states))
            self.results[key] = self._add(NodeRef(-1, v, (), states), self._zeros(len(states)), use)
        if self.traffic.free[v]:
            self._live(self.results[key], (max(0, self.flat.clock - 1), self.flat.clock))
        return self.results[key]
