"""A graph with regions as one flat list of operations, in execution order.

Bodies of scan, while and cond are laid out in place and planned once; what enters or leaves a
region passes a *port*, a value with a sharding of its own:

    scan    constants and slices of `xs` enter; carries enter and are renewed by each iteration
            with one sharding, the last ones leave; slices of `ys` leave
    while   the same without xs and ys
    cond    operands enter once for all branches, results leave
    remat   no ports: the body reads and writes the values outside
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import IRError
from ..graph import Graph, Input, Literal, Node
from ..table import lookup
from ..types import TensorType

# Iterations that a `while` of unknown length is priced with; the plan warns of it.
ASSUMED_ITERATIONS = 8
REGIONS = ("scan", "while", "cond", "remat")
Place = tuple[int, ...]  # node index, then (body index, node index) for each level


class FlatOp(NamedTuple):
    """An operation at its place; values are numbers of the flat program.

    reads: values among the inputs, each once.
    """

    node: Node
    place: Place
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]
    weight: float  # how often it runs in one call
    time: int
    reads: tuple[int, ...]


class FlatValue(NamedTuple):
    """A value: an argument, a result of an op, or a port."""

    type: TensorType
    name: str
    kind: str  # argument | op | port
    time: int
    weight: float
    region_end: int  # ports live until their region ends; others -1


@dataclass(frozen=True, slots=True)
class Link:
    """`source` is resharded into the port `target`, `weight` times per call.

    `lift` is 1 if the source has a leading dimension that the port lacks (xs), else 0.
    """

    source: int
    target: int
    weight: float
    lift: int
    time: int


@dataclass(frozen=True, slots=True)
class Region:
    """A node that runs bodies: its moments [start, end), and its ports.

    entered: ports that hold its operands inside; left: values after it that it leaves, its stacks
    of slices apart, which are `stacks`.
    """

    place: Place
    start: int
    end: int
    entered: tuple[int, ...]
    left: tuple[int, ...]
    stacks: tuple[int, ...] = ()


@dataclass
class FlatProgram:
    """All values and operations of a graph and its bodies."""

    values: list[FlatValue] = field(default_factory=list[FlatValue])
    ops: list[FlatOp] = field(default_factory=list[FlatOp])
    links: list[Link] = field(default_factory=list[Link])
    regions: list[Region] = field(default_factory=list[Region])  # inner ones first
    # value of the flat program -> (port, 1): the value is the port with a leading dimension (ys)
    stacked: dict[int, int] = field(default_factory=dict[int, int])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int | Literal] = field(default_factory=list[int | Literal])
    forced: set[int] = field(default_factory=set[int])  # values that must be whole everywhere
    names: dict[tuple[Place, int], int] = field(default_factory=dict[tuple[Place, int], int])
    warnings: list[str] = field(default_factory=list[str])
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock - 1

    def new(
        self, type_: TensorType, name: str, kind: str, weight: float, time: int | None = None
    ) -> int:
        """A new value, made at `time` or else now."""
        made = self.clock if time is None else time
        self.values.append(FlatValue(type_, name, kind, made, weight, -1))
        return len(self.values) - 1


def flatten(graph: Graph) -> FlatProgram:
    """Lays a graph out flat.

    Raises:
        IRError: if a region has a form that is not understood.
    """
    flat = FlatProgram()
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
    flat: FlatProgram, source: int | Literal, name: str, type_: TensorType, weight: float, lift: int
) -> int:
    port = _port(flat, type_, name, weight)
    if isinstance(source, int):
        flat.links.append(Link(source, port, weight, lift, flat.clock))
    return port


def _close(flat: FlatProgram, ports: list[int]) -> None:
    for port in ports:
        v = flat.values[port]
        flat.values[port] = FlatValue(v.type, v.name, v.kind, v.time, v.weight, flat.clock)


def _renew(flat: FlatProgram, value: int | Literal, port: int, weight: float) -> None:
    if isinstance(value, int):
        flat.links.append(Link(value, port, weight, 0, flat.clock))


def _leave(flat: FlatProgram, ports: list[int], name: str, weight: float) -> tuple[int, ...]:
    """The last carries of a loop, in states of their own: a partial sum is finished once."""
    time = flat.tick()
    found: list[int] = []
    for k, port in enumerate(ports):
        found.append(_port(flat, flat.values[port].type, f"{name}{k}", weight))
        flat.links.append(Link(port, found[-1], weight, 0, time))
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
        ports.append(_enter(flat, source, name, type_, weight, lift))
    inner = weight * max(length, 0)
    outs = _body(flat, body, list(ports), (*place, 0), inner)
    carry_ports = ports[heads + consts : heads + consts + carries]
    for value, port in zip(outs[:carries], carry_ports, strict=True):
        _renew(flat, value, port, inner)
    results: list[int | Literal] = []
    made: list[int] = []
    for k, value in enumerate(outs[carries:]):
        name = f"scan@{'/'.join(map(str, place))}.out{k}"
        # the whole stack is there before the first slice is written
        port = _port(flat, body.type_of(body.outputs[carries + k]), name, inner, begin)
        _renew(flat, value, port, inner)
        outer = flat.new(node.outputs[carries + k], name, "port", weight)
        flat.stacked[outer] = port
        results.append(outer)
        made.append(port)
    flat.tick()
    _close(flat, ports + made)
    last = _leave(flat, carry_ports, f"scan@{'/'.join(map(str, place))}.carry", weight)
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
        return _enter(flat, source, f"while@{label}.in{k}", type_, weight, 0)

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
    for value, port in zip(outs, carry, strict=True):
        _renew(flat, value, port, inner)
    flat.tick()
    _close(flat, [*ports, *cond_env, *body_env])
    last = _leave(flat, carry, f"while@{label}.carry", weight)
    flat.regions.append(Region(place, begin, flat.clock, tuple(ports), last))
    return last


def flat_type(flat: FlatProgram, value: int | Literal) -> TensorType:
    return value.type if isinstance(value, Literal) else flat.values[value].type


def _cond(
    flat: FlatProgram,
    node: Node,
    inputs: tuple[int | Literal, ...],
    place: Place,
    weight: float,
) -> tuple[int | Literal, ...]:
    begin = flat.tick()
    label = "/".join(map(str, place))
    which = _enter(flat, inputs[0], f"cond@{label}.index", flat_type(flat, inputs[0]), weight, 0)
    flat.forced.add(which)
    ports = [
        _enter(flat, source, f"cond@{label}.in{k}", flat_type(flat, source), weight, 0)
        for k, source in enumerate(inputs[1:])
    ]
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
        for value, port in zip(outs, results, strict=True):
            _renew(flat, value, port, inner)
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


def operand_types(flat: FlatProgram, op: FlatOp) -> tuple[TensorType, ...]:
    return tuple(v.type if isinstance(v, Literal) else flat.values[v].type for v in op.inputs)


def is_float(type_: TensorType) -> bool:
    return type_.dtype.startswith(("float", "bfloat", "complex")) and type_.dtype != "float0"
