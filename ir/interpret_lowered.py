"""Evaluates a lowered plan with NumPy on logical devices: the reference semantics of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .analysis.flat_program import Place, Site
from .errors import IRError, doing
from .graph import Graph, Literal, Node
from .interpret import Array, Constants, apply, without_meaning
from .logical_devices import LogicalDevices, Shards
from .lowered import LoweredPlan, ReshardStep, StepKind
from .ops.numeric import numpy_dtype
from .passing import passing_groups
from .regions import Scan, While, captured, entering, iterations
from .sharding import Sharding, replicated
from .strategy import Strategy, strategy_of
from .table import lookup
from .types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Shards of a value in a state."""

    shards: Shards
    type: TensorType
    state: Sharding


_Entry = _Kept | Array  # values computed from literals alone are whole, without a state


def interpret_lowered(
    plan: LoweredPlan, arguments: Sequence[Any], constants: Constants | None = None
) -> tuple[Array, ...]:
    """Runs a plan on logical devices.

    Args:
        plan: the plan to run.
        arguments: whole arrays, one for each input of its graph, captured constants included.
        constants: arrays captured inside, by their content digest.

    Returns:
        One whole array per output.

    Raises:
        IRError: if NumPy cannot evaluate an op, a value has another state than its reader needs, or
            devices that hold the same part of a result differ.
    """
    graph, known = plan.flat.graph, constants or {}
    missing = without_meaning(graph, known)
    if missing:
        raise IRError(f"no NumPy meaning for {', '.join(missing)}; run the plan with JAX instead")
    run = _Run(plan, LogicalDevices(plan.mesh), known)
    entries: list[_Entry] = [
        run.keep(np.asarray(x).astype(numpy_dtype(item.type.dtype)), item.type, state)
        for x, item, state in zip(arguments, graph.inputs, plan.states, strict=False)
    ]
    if len(entries) != len(arguments) or len(entries) != len(graph.inputs):
        raise IRError(f"the graph has {len(graph.inputs)} inputs, got {len(arguments)} arrays")
    results = run.body(graph, (), entries)
    pairs = zip(results, plan.results, graph.outputs, strict=True)
    return tuple(
        run.devices.join(
            run.read(entry, Site((), "return", k), state), state, graph.type_of(output).shape
        )
        for k, (entry, state, output) in enumerate(pairs)
    )


@dataclass(frozen=True)
class _Run:
    """One run of a plan."""

    plan: LoweredPlan
    devices: LogicalDevices
    constants: Mapping[str, Any]

    def keep(self, whole: Array, type_: TensorType, state: Sharding | None) -> _Kept:
        state = state or replicated(type_.rank)
        return _Kept(self.devices.cut(whole, state), type_, state)

    def read(self, entry: _Entry, site: Site, wanted: Sharding) -> Shards:
        """Shards of an entry at a site, where the plan reshards it into the wanted state."""
        if not isinstance(entry, _Kept):
            return self.devices.cut(entry, wanted)
        shards, state = entry.shards, entry.state
        for step in self.plan.steps(site):
            if step.before != state:
                raise IRError(f"{site}: a value in the state {state} comes to the step {step}")
            shards, state = self.devices.run(shards, step), step.after
        if state != wanted:
            raise IRError(f"{site}: a value comes as {state}, its reader asks for {wanted}")
        return shards

    def body(self, graph: Graph, prefix: Place, inputs: Sequence[_Entry]) -> list[_Entry]:
        """Runs a body and returns its results in the states of the plan."""
        values = list(inputs)
        for i, node in enumerate(graph.nodes):
            with doing(f"running node {i} ({node.op}) {node.source}".rstrip()):
                entries = [
                    _literal(o) if isinstance(o, Literal) else values[o] for o in node.inputs
                ]
                at = _At(self, graph, node, (*prefix, i))
                values += _REGIONS.get(node.op, _op)(at, entries)
        return [_literal(o) if isinstance(o, Literal) else values[o] for o in graph.outputs]


@dataclass(frozen=True)
class _At:
    """A node at its place."""

    run: _Run
    graph: Graph
    node: Node
    place: Place

    @property
    def plan(self) -> LoweredPlan:
        return self.run.plan

    def result_state(self, k: int) -> Sharding:
        """State of a result."""
        number = self.graph.values_of(self.place[-1])[k]
        state = self.plan.state(self.place[:-1], number)
        return state or replicated(self.node.outputs[k].rank)

    def ports(self, body: int) -> list[Sharding]:
        """States of the inputs of a body, after its captured constants."""
        inputs = self.node.bodies[body].inputs
        heads = captured(self.node.bodies[body])
        return [self._port(body, n, inputs[n].type) for n in range(heads, len(inputs))]

    def _port(self, body: int, n: int, type_: TensorType) -> Sharding:
        return self.plan.state((*self.place, body), n) or replicated(type_.rank)

    def inside(self, body: int, arguments: Sequence[_Entry | Shards]) -> list[_Entry]:
        """Runs a body once on its inputs after the captured constants."""
        graph, heads = self.node.bodies[body], captured(self.node.bodies[body])
        entries: list[_Entry] = []
        for n, item in enumerate(graph.inputs[:heads]):
            constant = np.asarray(self.run.constants[item.digest])
            entries.append(self.run.keep(constant, item.type, self._port(body, n, item.type)))
        for x, item, state in zip(arguments, graph.inputs[heads:], self.ports(body), strict=True):
            entries.append(_Kept(x, item.type, state) if isinstance(x, tuple) else x)
        return self.run.body(graph, (*self.place, body), entries)

    def enter(self, k: int, entry: _Entry, state: Sharding) -> Shards:
        """Shards of an operand of a region in the state of its port."""
        return self.run.read(entry, Site(self.place, "operand", k), state)

    def entered(self, k: int, entry: _Entry, state: Sharding) -> _Entry | Shards:
        """Shards of an operand, or the operand itself if it comes from literals alone."""
        return self.enter(k, entry, state) if isinstance(entry, _Kept) else entry

    def leave(self, body: int, k: int, entry: _Entry, state: Sharding) -> Shards:
        """Shards of a result of a body in the state of its port."""
        return self.run.read(entry, Site((*self.place, body), "return", k), state)

    def publish(self, k: int, shards: Shards, state: Sharding) -> _Kept:
        """Stores a result of an op, resharded if the plan says so."""
        kept = _Kept(shards, self.node.outputs[k], state)
        wanted = self.result_state(k)
        return _Kept(self.run.read(kept, Site(self.place, "result", k), wanted), kept.type, wanted)


def _literal(operand: Literal) -> Array:
    return np.asarray(operand.value).astype(numpy_dtype(operand.type.dtype))


# --- operations --------------------------------------------------------------------------------


def _op(at: _At, entries: list[_Entry]) -> list[_Entry]:
    run, node = at.run, at.node
    if node.op == "constant":
        return [np.asarray(run.constants[str(node.attr("content"))])]
    strategy = at.plan.strategies[at.plan.op_at[at.place]]
    if strategy is None:
        whole = [entry for entry in entries if not isinstance(entry, _Kept)]
        if len(whole) < len(entries) and node.outputs:
            raise IRError(f"the plan has no strategy for {node.op}")
        return list(apply(node, whole)) if node.outputs else []
    operands = [
        run.read(entry, Site(at.place, "operand", k), state)
        for k, (entry, state) in enumerate(zip(entries, strategy.operands, strict=True))
    ]
    types = tuple(at.graph.type_of(operand) for operand in node.inputs)
    inside, joint = _without_joint(run, node, types, strategy)
    operands = [
        _exchanged(run, x, state, joint, "all-gather")
        for x, state in zip(operands, strategy.operands, strict=True)
    ]
    local = _placed if lookup(node.op).offset and any(inside.roles) else _local
    devices = range(run.devices.mesh.num_devices)
    results = [local(run, node, types, inside, d, [x[d] for x in operands]) for d in devices]
    results = _once(run, strategy, joint, results)
    found: list[_Entry] = []
    for k, raw in enumerate(strategy.results):
        shards = tuple(result[k] for result in results)
        found.append(at.publish(k, _exchanged(run, shards, raw, joint, "slice"), raw))
    return found


def _once(
    run: _Run, strategy: Strategy, joint: tuple[str, ...], results: list[tuple[Array, ...]]
) -> list[tuple[Array, ...]]:
    """Results that every device has whole, as terms of partial sums over joint axes."""
    summed = [axis for s in strategy.results[:1] for axis, _ in s.partial if axis in joint]
    return [
        tuple(map(np.zeros_like, found)) if run.devices.rank(d, tuple(summed)) else found
        for d, found in enumerate(results)
    ]


def _without_joint(
    run: _Run, node: Node, types: tuple[TensorType, ...], strategy: Strategy
) -> tuple[Strategy, tuple[str, ...]]:
    """The strategy without the axes that split joint factors, and these axes."""
    spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
    joint, mesh = dict(spec.joint), run.devices.mesh
    axes = tuple(a for a, role in zip(mesh.names, strategy.roles, strict=True) if role in joint)
    if not axes:
        return strategy, ()
    roles = tuple("" if role in joint else role for role in strategy.roles)
    return strategy_of(spec, mesh, roles, passing_groups(node, types)), axes


def _exchanged(
    run: _Run, shards: Shards, state: Sharding, joint: tuple[str, ...],
    kind: StepKind,
) -> Shards:  # fmt: skip
    """Shards of a value that the devices along joint axes make whole, or cut again."""
    for d, axes in enumerate(state.dims):
        if axes and set(axes) <= set(joint):
            step = ReshardStep(kind, axes, d, d, "", state, state)
            shards = run.devices.run(shards, step)
    return shards


def _local(
    run: _Run, node: Node, types: tuple[TensorType, ...], strategy: Strategy, device: int,
    operands: list[Array],
) -> tuple[Array, ...]:  # fmt: skip
    """Results of an op on the shards of one device."""
    mesh, record = run.devices.mesh, lookup(node.op)
    ins = _local_types(types, strategy.operands, run)
    outs = _local_types(node.outputs, strategy.results, run)
    attrs = dict(node.attrs)
    if record.local is not None and any(strategy.roles):
        attrs |= record.local(ins, outs, dict(node.attrs))
    results = apply(Node(node.op, (), outs, tuple(attrs.items()), node.bodies), operands)
    single = [name for name, kind in record.factors(types, node.outputs, dict(node.attrs)).kinds
              if kind == "single"]  # fmt: skip
    if single and run.devices.rank(device, mesh.names):  # one device runs it
        return tuple(np.zeros_like(x) for x in results)
    return results


def _local_types(
    types: Sequence[TensorType], states: Sequence[Sharding], run: _Run
) -> tuple[TensorType, ...]:
    mesh = run.devices.mesh
    pairs = zip(types, states, strict=True)
    return tuple(TensorType(s.local_shape(t.shape, mesh), t.dtype) for t, s in pairs)


def _placed(
    run: _Run, node: Node, types: tuple[TensorType, ...], strategy: Strategy, device: int,
    operands: list[Array],
) -> tuple[Array, ...]:  # fmt: skip
    """Results, on the shards of one device, of an op that needs the position of its shard.

    The op runs whole on operands that are zero outside of the shard. A sum split by the op itself
    is then right except for terms that every device would add: the operand of a scatter, and the
    fill value of a gather.
    """
    devices, attrs = run.devices, dict(node.attrs)
    whole: list[Array] = []
    for x, type_, state in zip(operands, types, strategy.operands, strict=True):
        spread = np.zeros(type_.shape, x.dtype)
        spread[devices.part(device, state, type_.shape)] = x
        whole.append(spread)
    roles = dict(zip(devices.mesh.names, strategy.roles, strict=True))
    summed = tuple(a for a, _ in strategy.results[0].partial if not roles[a].startswith("@"))
    if devices.rank(device, summed):
        if "fill_value" in attrs:
            attrs["fill_value"] = 0
        if node.op.startswith("scatter"):
            whole[0] = np.zeros_like(whole[0])
    results = apply(Node(node.op, (), node.outputs, tuple(attrs.items()), node.bodies), whole)
    return tuple(
        x[devices.part(device, state, x.shape)]
        for x, state in zip(results, strategy.results, strict=True)
    )


# --- regions -----------------------------------------------------------------------------------


def _remat(at: _At, entries: list[_Entry]) -> list[_Entry]:
    """Runs a region without ports: values from outside keep their states inside."""
    return at.inside(0, entries)


def _scan(at: _At, entries: list[_Entry]) -> list[_Entry]:
    wiring, ports, order = Scan.of(at.node), at.ports(0), iterations(at.node)
    fixed, carried, sliced = wiring.operands(range(len(entries)))
    consts = [at.entered(k, entries[k], ports[k]) for k in fixed]
    carry: Sequence[Shards] = [at.enter(k, entries[k], ports[k]) for k in carried]
    xs = [at.enter(k, entries[k], ports[k].stacked()) for k in sliced]
    _, carry_states, _ = wiring.operands(ports)
    _, ys = wiring.results(range(len(at.node.outputs)))
    slices = [at.result_state(k).sliced() for k in ys]
    stacks: dict[int, Sequence[Shards]] = {}
    for i in order:
        parts = [tuple(shard[i] for shard in x) for x in xs]
        results = at.inside(0, [*consts, *carry, *parts])
        states = [*carry_states, *slices]
        left = [at.leave(0, k, x, s) for k, (x, s) in enumerate(zip(results, states, strict=True))]
        carry, stacks[i] = wiring.results(left)
    found: list[_Entry] = [
        at.publish(k, x, s) for k, (x, s) in enumerate(zip(carry, carry_states, strict=True))
    ]
    for n, (k, state) in enumerate(zip(ys, slices, strict=True)):
        type_, whole = at.node.outputs[k], state.stacked()
        empty = np.empty(whole.local_shape(type_.shape, at.plan.mesh), numpy_dtype(type_.dtype))
        shards = tuple(
            np.stack([stacks[i][n][d] for i in sorted(stacks)]) if stacks else empty
            for d in range(at.plan.mesh.num_devices)
        )
        found.append(_Kept(shards, type_, whole))
    return found


def _while(at: _At, entries: list[_Entry]) -> list[_Entry]:
    wiring = While.of(at.node)
    test, step = wiring.test, wiring.step
    state = {
        k: s for b in (test, step) for k, s in zip(entering(at.node, b), at.ports(b), strict=True)
    }
    fixed_test, fixed_step, carried = wiring.operands(range(len(entries)))
    of_test = [at.entered(k, entries[k], state[k]) for k in fixed_test]
    of_step = [at.entered(k, entries[k], state[k]) for k in fixed_step]
    carry = [at.enter(k, entries[k], state[k]) for k in carried]
    ports = [state[k] for k in carried]

    def goes_on() -> bool:
        (stop,) = at.inside(test, [*of_test, *carry])
        return bool(stop.shards[0] if isinstance(stop, _Kept) else stop)

    while goes_on():
        pairs = zip(at.inside(step, [*of_step, *carry]), ports, strict=True)
        carry = [at.leave(step, k, x, s) for k, (x, s) in enumerate(pairs)]
    return [at.publish(k, x, s) for k, (x, s) in enumerate(zip(carry, ports, strict=True))]


def _cond(at: _At, entries: list[_Entry]) -> list[_Entry]:
    which = at.enter(0, entries[0], replicated(0))
    taken = min(max(int(which[0]), 0), len(at.node.bodies) - 1)
    pairs = zip(entering(at.node, taken), at.ports(taken), strict=True)
    results = at.inside(taken, [at.enter(k, entries[k], state) for k, state in pairs])
    found: list[_Entry] = []
    for k, entry in enumerate(results):
        state = at.result_state(k)
        found.append(_Kept(at.leave(taken, k, entry, state), at.node.outputs[k], state))
    return found


_REGIONS: Mapping[str, Callable[[_At, list[_Entry]], list[_Entry]]] = {
    "cond": _cond,
    "remat": _remat,
    "scan": _scan,
    "while": _while,
}
