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

from ..errors import IRError
from ..graph import Graph, Input, Literal, Node
from ..table import lookup
from ..types import TensorType
from .flat_program import FlatOp, FlatProgram, FlatValue, Link, Place, Region, Site, flat_type

# Iterations that a `while` of unknown length is priced with; the plan warns of it.
ASSUMED_ITERATIONS = 8
REGIONS = ("scan", "while", "cond", "remat")


def flatten(graph: Graph) -> FlatProgram:
    """Lays a graph out flat.

    Raises:
        IRError: if a region has a form that is not understood.
    """
    flat = FlatProgram(graph)
    env: list[int | Literal] = []
    for item in graph.inputs:
        flat.inputs.append(flat.new(item.type, item.name, "argument", 1.0))
        env.append(flat.inputs[-1])
    flat.outputs = list(_body(flat, graph, env, (), 1.0))
    return flat


def _body(
    flat: FlatProgram, graph: Graph, env: list[int | Literal], prefix: Place, weight: float
) -> tuple[int | Literal, ...]:
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
    flat: FlatProgram, ports: list[int], name: str, weight: float, place: Place
) -> tuple[int, ...]:
    """The last carries of a loop, in states of their own: a partial sum is finished once."""
    time = flat.tick()
    found: list[int] = []
    for k, port in enumerate(ports):
        found.append(_port(flat, flat.values[port].type, f"{name}{k}", weight))
        flat.links.append(Link(port, found[-1], weight, 0, time, Site(place, "result", k)))
    return tuple(found)


def _int(node: Node, name: str) -> int:
    value = node.attr(name)
    if not isinstance(value, int):
        raise IRError(f"{node.op}: attribute '{name}' should be a number, found {value!r}")
    return value


def _scan(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    body = node.bodies[0]
    consts, carries, length = (_int(node, k) for k in ("num_consts", "num_carry", "length"))
    heads = len(body.inputs) - len(inputs)  # constants captured by the body
    begin = flat.tick()
    ports = [_constant_port(flat, item, weight) for item in body.inputs[:heads]]
    for k, source in enumerate(inputs):
        type_ = body.inputs[heads + k].type
        lift = int(k >= consts + carries)
        name = f"scan@{'/'.join(map(str, place))}.in{k}"
        ports.append(_enter(flat, source, name, type_, weight, Site(place, "operand", k), lift))
    inner = weight * max(length, 0)
    outs = _body(flat, body, list(ports), (*place, 0), inner)
    carry_ports = ports[heads + consts : heads + consts + carries]
    for k, (value, port) in enumerate(zip(outs[:carries], carry_ports, strict=True)):
        _renew(flat, value, port, inner, Site((*place, 0), "return", k))
    results: list[int | Literal] = []
    made: list[int] = []
    for k, value in enumerate(outs[carries:]):
        name = f"scan@{'/'.join(map(str, place))}.out{k}"
        # the whole stack is there before the first slice is written
        port = _port(flat, body.type_of(body.outputs[carries + k]), name, inner, begin)
        _renew(flat, value, port, inner, Site((*place, 0), "return", carries + k))
        outer = flat.new(node.outputs[carries + k], name, "port", weight)
        flat.stacked[outer] = port
        results.append(outer)
        made.append(port)
    flat.tick()
    _close(flat, ports + made)
    last = _leave(flat, carry_ports, f"scan@{'/'.join(map(str, place))}.carry", weight, place)
    stacks = tuple(v for v in results if isinstance(v, int))
    flat.regions.append(Region(place, begin, flat.clock, tuple(ports), last, stacks))
    return (*last, *results)


def _constant_port(flat: FlatProgram, item: Input, weight: float) -> int:
    return _port(flat, item.type, item.name, weight)


def _while(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    names = [name for name, value in node.attrs if isinstance(value, str) and "body " in value]
    bodies = dict(zip(names, node.bodies, strict=True))
    cond, body = bodies["cond_jaxpr"], bodies["body_jaxpr"]
    n_cond, n_body = _int(node, "cond_nconsts"), _int(node, "body_nconsts")
    begin = flat.tick()
    flat.warnings.append(
        f"a while loop ({node.source or 'no source'}) has no known length; it is priced as "
        f"{ASSUMED_ITERATIONS} iterations"
    )
    label = "/".join(map(str, place))
    inner = weight * ASSUMED_ITERATIONS
    extra = {
        name: len(graph.inputs) - count - (len(inputs) - n_cond - n_body)
        for name, graph, count in (("cond", cond, n_cond), ("body", body, n_body))
    }
    carry_types = [item.type for item in body.inputs[extra["body"] + n_body :]]

    def enter(source: int | Literal, type_: TensorType, k: int) -> int:
        return _enter(
            flat, source, f"while@{label}.in{k}", type_, weight, Site(place, "operand", k)
        )

    types = [flat_type(flat, source) for source in inputs[: n_cond + n_body]] + carry_types
    ports = [enter(s, t, k) for k, (s, t) in enumerate(zip(inputs, types, strict=True))]
    carry = ports[n_cond + n_body :]
    cond_env = [_constant_port(flat, i, weight) for i in cond.inputs[: extra["cond"]]]
    body_env = [_constant_port(flat, i, weight) for i in body.inputs[: extra["body"]]]
    stops = _body(
        flat, cond, [*cond_env, *ports[:n_cond], *carry],
        (*place, names.index("cond_jaxpr")), inner,
    )  # fmt: skip
    flat.forced.update(value for value in stops if isinstance(value, int))
    outs = _body(
        flat, body, [*body_env, *ports[n_cond : n_cond + n_body], *carry],
        (*place, names.index("body_jaxpr")), inner,
    )  # fmt: skip
    step = (*place, names.index("body_jaxpr"))
    for k, (value, port) in enumerate(zip(outs, carry, strict=True)):
        _renew(flat, value, port, inner, Site(step, "return", k))
    flat.tick()
    _close(flat, [*ports, *cond_env, *body_env])
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
        heads = len(body.inputs) - len(ports)
        captured = [_constant_port(flat, item, weight) for item in body.inputs[:heads]]
        outs = _body(flat, body, [*captured, *ports], (*place, b), inner)
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
    heads = len(body.inputs) - len(inputs)
    captured = [_constant_port(flat, item, weight) for item in body.inputs[:heads]]
    return _body(flat, body, [*captured, *inputs], (*place, 0), weight)


_REGION = {"scan": _scan, "while": _while, "cond": _cond, "remat": _remat}
