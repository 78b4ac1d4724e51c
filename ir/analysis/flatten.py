"""Lays a graph with regions out flat, in execution order.

Bodies of scan, while and cond are laid out in place and planned once; what enters or leaves a
region passes a *port*, a value with a sharding of its own:

    scan    constants and slices of `xs` enter; carries enter and are renewed by each iteration
            with one sharding, the last ones leave; slices of `ys` leave
    while   the same without xs and ys
    cond    operands enter once for all branches, results leave
    remat   no ports: the body reads and writes the values outside
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph, Literal, Node
from ..regions import REGIONS, Scan, While, captured, entering
from ..table import lookup
from ..trip_counts import STATED, known_iterations, runs_of
from ..types import TensorType
from .flat_program import FlatOp, FlatProgram, FlatValue, Link, Place, Region, Site, flat_type


def flatten(graph: Graph) -> FlatProgram:
    """Lays a graph out flat.

    Raises:
        IRError: if a region has a form that is not understood.
    """
    flat = FlatProgram(graph)
    for item in graph.inputs:
        flat.inputs.append(flat.new(item.type, item.name, "argument", 1.0))
    flat.outputs = list(_body(flat, graph, flat.inputs, (), 1.0))
    return flat


def _body(
    flat: FlatProgram, graph: Graph, entered: Sequence[int | Literal], prefix: Place, weight: float
) -> tuple[int | Literal, ...]:
    env = list(entered)
    for number, value in enumerate(env):
        if isinstance(value, int):
            flat.names[(prefix, number)] = value
    for i, node in enumerate(graph.nodes):
        place = (*prefix, i)
        inputs = tuple([o if isinstance(o, Literal) else env[o] for o in node.inputs])
        if node.op in REGIONS:
            results = _REGION[node.op](flat, node, inputs, place, weight)
        else:
            results = _op(flat, node, inputs, place, weight)
        for value in results:
            if isinstance(value, int):
                flat.names[(prefix, len(env))] = value
            env.append(value)
    return tuple(o if isinstance(o, Literal) else env[o] for o in graph.outputs)


def _op(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int, ...]:
    time, first = flat.tick(), len(flat.values)
    name = f"{node.op}@{'/'.join(map(str, place))}"
    for k, type_ in enumerate(node.outputs):
        flat.new(type_, f"{name}.{k}" if k else name, "op", weight, time)
    outputs = tuple(range(first, len(flat.values)))
    reads = tuple(dict.fromkeys([v for v in inputs if isinstance(v, int)]))
    flat.ops.append(FlatOp(node, place, inputs, outputs, weight, time, reads))
    if lookup(node.op).family == "opaque":
        where = f" ({node.source})" if node.source else ""
        flat.warnings.append(f"'{node.op}'{where} has no record and runs whole on every device")
    return outputs


def _port(
    flat: FlatProgram, type_: TensorType, name: str, weight: float, time: int | None = None
) -> int:
    return flat.new(type_, name, "port", weight, time)


def _enter(
    flat: FlatProgram,
    source: int | Literal,
    name: str,
    type_: TensorType,
    weight: float,
    site: Site,
    lift: int = 0,
) -> int:
    port = _port(flat, type_, name, weight)
    if isinstance(source, int):
        flat.links.append(Link(source, port, weight, lift, flat.clock, site))
    return port


def _close(flat: FlatProgram, ports: list[int]) -> None:
    for port in ports:
        v = flat.values[port]
        flat.values[port] = FlatValue(v.type, v.name, v.kind, v.time, v.weight, flat.clock)


def _renew(flat: FlatProgram, value: int | Literal, port: int, weight: float, site: Site) -> None:
    if isinstance(value, int):
        flat.links.append(Link(value, port, weight, 0, flat.clock, site))


def _leave(
    flat: FlatProgram, ports: Sequence[int], name: str, weight: float, place: Place
) -> tuple[int, ...]:
    """The last carries of a loop, in states of their own: a partial sum is finished once."""
    time = flat.tick()
    found: list[int] = []
    for k, port in enumerate(ports):
        found.append(_port(flat, flat.values[port].type, f"{name}{k}", weight))
        flat.links.append(Link(port, found[-1], weight, 0, time, Site(place, "result", k)))
    return tuple(found)


def _captured(flat: FlatProgram, body: Graph, weight: float) -> list[int]:
    """Ports of the constants that a body has captured."""
    heads = body.inputs[: captured(body)]
    return [_port(flat, item.type, item.name, weight) for item in heads]


def _scan(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    body, wiring, label = node.bodies[0], Scan.of(node), "/".join(map(str, place))
    sliced = wiring.constants + wiring.carries
    begin = flat.tick()
    ports = _captured(flat, body, weight)
    heads = len(ports)
    for k, source in enumerate(inputs):
        type_, site = body.inputs[heads + k].type, Site(place, "operand", k)
        name = f"scan@{label}.in{k}"
        ports.append(_enter(flat, source, name, type_, weight, site, int(k >= sliced)))
    inner = weight * runs_of(node)
    outs = _body(flat, body, ports, (*place, 0), inner)
    _, carry_ports, _ = wiring.operands(ports[heads:])
    after, slices = wiring.results(outs)
    for k, (value, port) in enumerate(zip(after, carry_ports, strict=True)):
        _renew(flat, value, port, inner, Site((*place, 0), "return", k))
    stacks: list[int] = []
    made: list[int] = []
    for k, value in enumerate(slices):
        name, result = f"scan@{label}.out{k}", wiring.carries + k
        # the whole stack is there before the first slice is written
        port = _port(flat, body.type_of(body.outputs[result]), name, inner, begin)
        _renew(flat, value, port, inner, Site((*place, 0), "return", result))
        outer = flat.new(node.outputs[result], name, "port", weight)
        flat.stacked[outer] = port
        stacks.append(outer)
        made.append(port)
    flat.tick()
    _close(flat, ports + made)
    last = _leave(flat, carry_ports, f"scan@{label}.carry", weight, place)
    flat.regions.append(Region(place, begin, flat.clock, tuple(ports), last, tuple(stacks)))
    return (*last, *stacks)


def _while(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    wiring, begin = While.of(node), flat.tick()
    if known_iterations(node) is None:
        says = ", as the program says" if node.has_attr(STATED) else ""
        flat.warnings.append(
            f"a while loop ({node.source or 'no source'}) has no known length; it is priced as "
            f"{runs_of(node):.0f} iterations{says}"
        )
    label, inner = "/".join(map(str, place)), weight * runs_of(node)

    def enter(k: int, source: int | Literal) -> int:
        type_, site = flat_type(flat, source), Site(place, "operand", k)
        return _enter(flat, source, f"while@{label}.in{k}", type_, weight, site)

    ports = [enter(k, source) for k, source in enumerate(inputs)]
    _, _, carry = wiring.operands(ports)
    heads = {b: _captured(flat, node.bodies[b], weight) for b in (wiring.test, wiring.step)}

    def run(b: int) -> tuple[int | Literal, ...]:
        env = [*heads[b], *(ports[k] for k in entering(node, b))]
        return _body(flat, node.bodies[b], env, (*place, b), inner)

    stops = run(wiring.test)
    flat.forced.update(value for value in stops if isinstance(value, int))
    for k, (value, port) in enumerate(zip(run(wiring.step), carry, strict=True)):
        _renew(flat, value, port, inner, Site((*place, wiring.step), "return", k))
    flat.tick()
    _close(flat, [*ports, *heads[wiring.test], *heads[wiring.step]])
    last = _leave(flat, carry, f"while@{label}.carry", weight, place)
    flat.regions.append(Region(place, begin, flat.clock, tuple(ports), last))
    return last


def _cond(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    begin = flat.tick()
    label = "/".join(map(str, place))

    def enter(k: int, name: str) -> int:
        type_ = flat_type(flat, inputs[k])
        name = f"cond@{label}.{name}"
        return _enter(flat, inputs[k], name, type_, weight, Site(place, "operand", k))

    which = enter(0, "index")
    flat.forced.add(which)
    ports = [enter(k + 1, f"in{k}") for k in range(len(inputs) - 1)]
    results: list[int] = []
    inner = weight / max(len(node.bodies), 1)
    for b, body in enumerate(node.bodies):
        outs = _body(flat, body, [*_captured(flat, body, weight), *ports], (*place, b), inner)
        if not results:
            results = [
                _port(flat, type_, f"cond@{label}.out{k}", weight)
                for k, type_ in enumerate(node.outputs)
            ]
        for k, (value, port) in enumerate(zip(outs, results, strict=True)):
            _renew(flat, value, port, inner, Site((*place, b), "return", k))
    flat.tick()
    _close(flat, [which, *ports])
    flat.regions.append(Region(place, begin, flat.clock, (which, *ports), tuple(results)))
    return tuple(results)


def _remat(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    body = node.bodies[0]
    begin, entering = flat.clock, [*_captured(flat, body, weight), *inputs]
    results = _body(flat, body, entering, (*place, 0), weight)
    passed = {v for v in entering if isinstance(v, int)}.intersection(
        v for v in results if isinstance(v, int)
    )
    flat.barriers.extend((v, begin) for v in sorted(passed))
    return results


_REGION = {"scan": _scan, "while": _while, "cond": _cond, "remat": _remat}
