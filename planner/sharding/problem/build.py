"""Flat program x mesh x costs -> `IntraProblem`, and a choice back to decisions.

Nodes of the problem are

    a value node for every argument, port, and value that is read more than once: its states;
    an op node for every op: its strategies.

An edge joins the maker of a value with a reader of it and costs the reshard between them; so a
partial result is reduced where that is cheapest. Arguments and results that share one state
(donated buffers, parameters carried from step to step) are one node.

Where a program repeats itself, the members of a class (`planner.sharding.problem.repeated_layers`)
are one node: its cost is that of all members, and so is that of the edges between two classes. The
part of the problem that does not depend on the mesh is the `Outline`; a mesh prices it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel import HOLDING, OpWork, held_bytes, hops_of, op_seconds, sharded_dims
from ir import (
    HOST_COPIES,
    FactorSpec,
    Strategy,
    TensorType,
    form_of,
    lookup,
    strategies,
    value_states,
)
from ir.analysis import FlatOp, operand_types

from ...solver.problem import Edge, Floats, Hidden, IntraProblem
from .border_exchanges import BorderExchanges
from .buffers import LiveIntervals
from .facts import Facts
from .host_copies import HostCopies
from .in_chunks import Exchanges
from .in_parts import Products
from .overlap_tables import (
    ChunksTable,
    PartsTable,
    lengths_of,
    sites_of,
    split_once,
    work_of,
)
from .records import Built, MenuCache, NodeRef, States
from .reshard_seconds import Reshards
from .reshard_tables import read_or_copied, reshards, same_state
from .skeleton import End, Join, Outline, Slot
from .skeleton_builder import outline_of


class Builder:
    """Builds problems of one flat program on one mesh.

    outline: outline of the program's problems; if None, one without repeats.
    overlap: whether collectives may run beside compute; on CPUs they do not.
    in_parts: whether products may run in parts beside their collectives, where these may hide.
    """

    def __init__(
        self,
        facts: Facts,
        cache: MenuCache,
        limit_bytes: float,
        outline: Outline | None = None,
        *,
        overlap: bool = True,
        in_parts: bool = True,
    ) -> None:
        self.facts, self.flat, self.traffic = facts, facts.flat, facts.traffic
        self.cache, self.mesh, self.limit_bytes = cache, cache.mesh, limit_bytes
        self.tied_in = facts.tied_in
        self.outline = outline or outline_of(facts, None)
        self.overlap = overlap and not cache.reshard.cluster.has_cpus
        may = in_parts and self.overlap
        self.products = Products(facts, cache, self.outline) if may else None
        self.exchanges = Exchanges(cache, self.outline) if may else None

    def spec(self, op: FlatOp) -> FactorSpec:
        return self.facts.spec(op)

    def menu(self, op: FlatOp) -> tuple[Strategy, ...]:
        spec, usable = self.facts.spec(op), self.facts.passing(op)
        form = self.cache.forms.get(id(spec))  # specs live as long as the facts
        if form is None:
            form = self.cache.forms[id(spec)] = form_of(spec, self.mesh)
        groups = self.facts.groups(op) if usable else ()
        key = ("menu", form, groups, usable)
        if key not in self.cache.menus:
            found = strategies(spec, self.mesh, groups, self.cache.splits)
            gone = {f"@{g}" for g in range(len(groups)) if g not in usable}
            kept = tuple([s for s in found if gone.isdisjoint(s.roles)]) if gone else found
            self.cache.menus[key] = kept
        return self.cache.menus[key]

    def states(self, value: int, *, partial: bool) -> States:
        shape = self.flat.values[value].type.shape
        key = (self.cache.reshard.form(shape), len(shape), partial, 0 in shape)
        if key not in self.cache.states:
            # JAX holds empty arrays whole on every device, whatever their sharding
            splits = [((),) * len(shape)] if 0 in shape else sharded_dims(shape, self.mesh)
            self.cache.states[key] = value_states(self.mesh, splits, partial=partial)
        return self.cache.states[key]

    def build(self) -> Built:
        """The problem; `within` leaves out what a user or a hand-written plan does not allow."""
        outline = self.outline
        self.refs: list[NodeRef] = []
        self.costs: list[Floats] = []
        self.use: list[Floats] = []
        known = self.cache.least, self.mesh.num_devices
        least_s = outline.least_s(self.cache.compute, *known) if self.overlap else None
        beside_s = None if least_s is None else outline.windows.beside_s(least_s)
        self.host_copies = HostCopies(outline, least_s, self.cache)
        self.borders = BorderExchanges(outline, beside_s, self.cache)
        for slot in outline.slots:
            self._node(slot)
        own, edges = self._edges(beside_s)
        if self.cache.compute.device.fresh_bytes_per_s:
            for node, v in outline.taken:
                self._taken(node, v)
        work = self._multiplied(self.costs)
        costs = [c + own[n] if n in own else c for n, c in enumerate(work)]
        busy = self.borders.busy(work)
        horizon = int(outline.end.max(initial=0))
        live_intervals = LiveIntervals(
            outline.node, outline.start, outline.end, tuple(self.use), horizon
        )
        spans = [(0, 0)] * len(costs)
        if not outline.folded:
            rows = zip(outline.node, outline.start, outline.end, strict=True)
            for n, first, last in rows:
                spans[n] = (int(first), int(last))
        problem = IntraProblem(
            tuple(costs), tuple(edges), tuple(self.use), tuple(spans), self.limit_bytes,
            tuple(work_of(outline, busy)) if any(e.hidden is not None for e in edges) else (),
        )  # fmt: skip
        built = Built(problem, tuple(self.refs), outline, tuple(work), live_intervals, beside_s)
        return built.watching(live_intervals.worst_moments()) if outline.folded else built

    def _edges(self, beside_s: Floats | None) -> tuple[dict[int, Floats], list[Edge]]:
        """Costs of joins of a node with itself, and edges."""
        kinds = self.exchanges.kind if self.exchanges else None
        outline, sites = self.outline, sites_of(self.outline, beside_s, kinds)
        found = dict[_Alike, list[tuple[float, float]]]()
        joins = zip(outline.joins, outline.types, outline.counts, strict=True)
        for k, (join, type_, count) in enumerate(joins):
            if not count or (table := self._table(join, type_)).is_free:
                continue
            parts = self.in_parts(self.refs, k)
            alone = ((-1, -1, 0.0, count),)
            places = alone if join.how == "same state" else sites.get(k, alone)
            for window, kind, longest_s, times in places:
                chunks = self.in_chunks(self.refs, k, kind)
                beside = longest_s > 0.0 or parts is not None or chunks is not None
                key = join.u, join.v, table, window if beside else -1, parts, chunks
                found.setdefault(key, []).append((longest_s * join.weight, times))
        own, edges = dict[int, Floats](), list[Edge]()
        for (u, v, table, window, parts, chunks), each in found.items():
            if window >= 0:
                cost, hidden = split_once(table, lengths_of(table.most, each), parts, chunks)
                edges.append(Edge(u, v, cost, Hidden(window, hidden)))
                continue
            cost = table.times(sum(times for _, times in each))
            if u == v:
                own[u] = own.get(u, 0.0) + np.diagonal(cost.part())
            else:
                edges.append(Edge(u, v, cost))
        return own, edges

    def in_parts(self, refs: Sequence[NodeRef], number: int) -> PartsTable | None:
        """Products in parts at a join; None if there are none."""
        join = self.outline.joins[number]
        ends = (self.states_of(refs, end) for end in (join.source, join.target))
        return self.products.table(number, refs, *ends) if self.products else None

    def in_chunks(self, refs: Sequence[NodeRef], number: int, kind: int) -> ChunksTable | None:
        """Exchanges in chunks at the sites of a join with a kind of products beside them."""
        join, type_ = self.outline.joins[number], self.outline.types[number]
        if self.exchanges is None or kind < 0 or join.how != "reshard":
            return None
        rows, columns = (self.states_of(refs, end) for end in (join.source, join.target))
        return self.exchanges.table(kind, rows, columns, type_, join.weight)

    def _multiplied(self, costs: list[Floats]) -> list[Floats]:
        """Costs of nodes, times the members of each."""
        return [
            self._times(self.cache.vectors, cost, n) if n > 1 else cost
            for cost, n in zip(costs, self.outline.members, strict=True)
        ]

    def _times(self, known: dict[object, Floats], array: Floats, count: float) -> Floats:
        """`count` times an array; memoised, one object for equal arguments."""
        if count == 1:
            return array
        key = ("times", id(array), count)
        if key not in known:
            known[key] = array * count
            known[("keep", id(array))] = array
        return known[key]

    def _node(self, slot: Slot) -> None:
        match slot.kind:
            case "op":
                self._op(slot)
            case "value":
                self._value(slot)
            case "wait":
                self._wait(slot)
            case "stack":
                self._stack(slot)
            case _:
                self._result(slot)

    def _add(self, ref: NodeRef, cost: Floats, use: Floats) -> None:
        self.refs.append(ref)
        self.costs.append(cost)
        self.use.append(use)

    def _value(self, slot: Slot) -> None:
        v, partial = slot.number, slot.partial
        if slot.made is not None:
            partial = partial and any(s.partial for s in self._states_at(slot.made))
        states = self.states(v, partial=partial)
        if v in self.flat.forced:
            states = self.cache.columns.setdefault(("kept", states[:1]), states[:1])
        self._add(NodeRef(-1, v, (), states), self._zeros(len(states)), self._bytes(v, states))

    def _zeros(self, count: int) -> Floats:
        return self.cache.vectors.setdefault(("zero", count), np.zeros(count))

    def _bytes(self, v: int, states: States) -> Floats:
        times = self.facts.buffers(v)
        if not times:
            return self._zeros(len(states))
        return self._state_bytes(self.flat.values[v].type, states, times)

    def _state_bytes(self, type_: TensorType, states: States, factor: int = 1) -> Floats:
        key = ("bytes", type_, id(states), factor)
        if key not in self.cache.vectors:
            self.cache.vectors[key] = np.array(
                [float(s.local_bytes(type_, self.mesh)) * factor for s in states]
            )
            self.cache.columns[("keep", id(states))] = states
        return self.cache.vectors[key]

    def _op(self, slot: Slot) -> None:
        i, op = slot.number, self.flat.ops[slot.number]
        menu, spec = self.menu(op), self.facts.spec(op)
        use = self._op_bytes(op, menu, [v for v in op.outputs if v not in self.facts.shared])
        cost = self.borders.shown(len(self.refs), i, menu, self._op_cost(i, op, spec, menu))
        self._add(NodeRef(i, -1, menu, ()), cost, use)

    def _wait(self, slot: Slot) -> None:
        assert slot.made is not None
        op, menu = self.flat.ops[slot.number], self.refs[slot.made.node].menu
        which = tuple(v in self.facts.waits for v in op.outputs)
        key = ("waits", id(menu), op.node.outputs, which)
        if key not in self.cache.vectors:
            self.cache.vectors[key] = np.array([self._partial_bytes(op, s) for s in menu])
            self.cache.menus[("keep", id(menu))] = menu
        use = self.cache.vectors[key]
        self._add(NodeRef(slot.number, -1, menu, ()), self._zeros(len(use)), use)

    def _stack(self, slot: Slot) -> None:
        """Adds the node of a region's operand: options without a copy, then those with one."""
        assert slot.made is not None
        states = self._states_at(slot.made)
        type_ = self.flat.values[self.flat.links[slot.number].source].type
        use = np.concatenate((np.zeros(len(states)), self._state_bytes(type_, states)))
        self._add(NodeRef(-1, -1, (), (*states, *states)), self._zeros(len(use)), use)

    def _result(self, slot: Slot) -> None:
        v = slot.number
        states = self.states(v, partial=False)
        alone = self.traffic.free[v]  # computed from literals: no maker counts its bytes
        type_, zeros = self.flat.values[v].type, self._zeros(len(states))
        use = self._state_bytes(type_, states) if alone else zeros
        self._add(NodeRef(-1, v, (), states), self._zeros(len(states)), use)

    def _partial_bytes(self, op: FlatOp, strategy: Strategy) -> float:
        pairs = zip(op.outputs, strategy.results, strict=True)
        held = [(v, s) for v, s in pairs if s.partial and v in self.facts.waits]
        return float(sum(s.local_bytes(self.flat.values[v].type, self.mesh) for v, s in held))

    def _op_bytes(self, op: FlatOp, menu: tuple[Strategy, ...], inner: list[int]) -> Floats:
        counted = tuple(map(self.facts.buffers, inner))
        types = operand_types(self.flat, op) if op.node.op in HOLDING else ()
        key = ("op-bytes", id(menu), op.node.outputs, counted, types and (op.node.op, types))
        if key not in self.cache.vectors:
            total = self._scratch_bytes(op, menu)
            for v, times in zip(inner, counted, strict=True):
                if times:
                    states = self.cache.column(menu, "result", op.outputs.index(v))
                    total = total + self._state_bytes(self.flat.values[v].type, states, times)
            self.cache.vectors[key] = total
            self.cache.menus[("keep", id(menu))] = menu
        return self.cache.vectors[key]

    def _scratch_bytes(self, op: FlatOp, menu: tuple[Strategy, ...]) -> Floats:
        """Bytes that an op holds while it runs, beside operands and results."""
        if op.node.op not in HOLDING:
            return np.zeros(len(menu))
        spec = self.facts.spec(op)
        ways = self.cache.parts(spec, menu)
        return held_bytes(op.node, operand_types(self.flat, op), spec, ways, len(menu))

    def _op_cost(self, i: int, op: FlatOp, spec: FactorSpec, menu: tuple[Strategy, ...]) -> Floats:
        paid = self.facts.paid(i, self.cache.compute)
        types = operand_types(self.flat, op)
        if op.node.op in HOST_COPIES:
            return self.host_copies.exposed_s(i, menu) * op.weight
        key = (
            "cost", op.node.op, types, op.node.outputs, op.node.attrs, id(menu), *paid, op.weight,
            self.overlap if spec.joint else None,
        )  # fmt: skip
        if key not in self.cache.vectors:
            work = OpWork(op.node, lookup(op.node.op), types, spec, *paid)
            hops = hops_of(spec, menu, self.cache.reshard, overlap=self.overlap)
            seconds = op_seconds(work, self.cache.parts(spec, menu), self.cache.compute, hops)
            self.cache.vectors[key] = np.broadcast_to(seconds, (len(menu),)) * op.weight
            self.cache.menus[("keep", id(menu))] = menu
        return self.cache.vectors[key]

    def _states_at(self, end: End) -> States:
        """The state of a value under each option of the node that has it."""
        return self.states_of(self.refs, end)

    def states_of(self, refs: Sequence[NodeRef], end: End) -> States:
        ref = refs[end.node]
        if end.how == "states":
            return ref.states
        if end.how == "lifted":
            return self.cache.lift(ref.states)
        return self.cache.column(ref.menu, end.how, end.position)

    def source(self, v: int) -> tuple[int, States]:
        """The node that provides value v, and the state of v under each of its options."""
        end = self.outline.end_of(v)
        return end.node, self._states_at(end)

    def _table(self, join: Join, type_: TensorType) -> Reshards:
        """Costs of a join, by the options of its two nodes."""
        if join.how == "same":
            return self.cache.same(len(self.refs[join.u].menu))
        columns = self._states_at(join.target)
        if join.how == "slices":
            return self.cache.same(len(columns), 2)
        rows = self._states_at(join.source)
        if join.how == "same state":
            return same_state(self.cache, rows, columns)
        priced = reshards if join.how == "reshard" else read_or_copied
        return priced(self.cache, rows, columns, type_, join.weight)

    def settle(self, built: Built, choice: list[int]) -> None:
        """Sets the nodes that only count memory by the choices of their neighbours."""
        for stack, link in built.outline.stacks:
            source, rows = self.source(link.source)
            k, states = choice[built.value_node[link.target]], built.refs[stack].states
            same = rows[choice[source]] == states[k]
            choice[stack] = k if same else k + len(states) // 2
        for node, op in built.outline.waits:
            choice[node] = choice[op]

    def _taken(self, node: int, v: int) -> None:
        """Adds the seconds of taking memory for a result that overwrites no argument."""
        use = self._state_bytes(self.flat.values[v].type, self.refs[node].states)
        self.costs[node] = self.costs[node] + self.cache.compute.taking_s(use)


# two nodes, table, window, products in parts, exchanges in chunks
_Alike = tuple[int, int, Reshards, int, PartsTable | None, ChunksTable | None]
