# pyright: basic
"""Reads a jaxpr into a graph: equations become nodes, calls without meaning are inlined.

The graph is plain data. The primitives and their original parameters, which are needed to run it,
stay beside it in a `Program`, node by node.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from . import jax_internals as internals
from .batched_while import one_answer
from .bias_gradients import without_bias_gradients
from .custom_partitioning import CUSTOM_PARTITIONING, partitioned_call
from .errors import TraceError
from .graph import Attr, Graph, Input, Literal, Node, Operand
from .inlined import group_of, inlined
from .iota_lookups import LOOKUPS, Known, batched
from .jax_internals import REMAT, opened, params_of
from .mapped_parts import parts_attribute
from .padded_windows import with_padded_windows
from .placements import OF_RESULTS, PLACEMENTS, asked, host_copy, is_explicit, placement
from .program import Binding, Call, Program, prune
from .registered import REGISTERED, attributes, call_of
from .shifts import with_shifts
from .sources import Sources, line_inside
from .stand_ins import AskedPlace, CapturedArray
from .trip_counts import STATED, stated_in
from .types import DTYPES, TensorType


def _dtype_name(dtype: Any) -> str:
    name = str(dtype) if jax.numpy.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).name
    return "float0" if name == "float0" or str(dtype) == "[('float0', 'V')]" else name


def tensor_type(aval: Any) -> TensorType:
    """The type of a JAX value or abstract value; a token for values without a shape.

    Raises:
        TraceError: if the shape is symbolic.
    """
    shape = getattr(aval, "shape", None)
    dtype = getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return TensorType((), "token")
    return _type(tuple(shape), dtype)


@functools.cache
def _type(shape: tuple[int, ...], dtype: Any) -> TensorType:
    """The tensor type, one object for equal types."""
    if not all(isinstance(size, (int, np.integer)) for size in shape):
        raise TraceError(
            f"shape {shape} is not made of whole numbers", remedy="export with fixed sizes"
        )
    return TensorType(tuple(int(size) for size in shape), _dtype_name(dtype))


class _Objects:
    """Numbers for the objects among parameters that are not data, such as functions.

    Distinct objects get distinct numbers, so that nodes that call different functions differ.
    `sources` are the lines of the same program; `offload` is that of `read_jaxpr`.
    """

    def __init__(self, offload: bool = False) -> None:
        self.numbers: dict[Any, int] = {}
        self.offload = offload
        self.stated: int | None = None  # iterations that scopes around state for loops
        self.sources = Sources()
        self.alive: list[Any] = []  # keeps ids of objects unique
        # Written-out layers have equal bodies: each is read once if it is the same jaxpr (which is
        # kept alive), and equal graphs are one object, with one digest.
        self.read: dict[tuple[int, int | None], tuple[Any, Program]] = {}
        self.graphs: dict[Graph, Graph] = {}

    def show(self, value: Any) -> str:
        """A name for `value`, the same for equal objects of one program."""
        try:
            hash(value)
            key = (type(value), value)
        except TypeError:
            key = (type(value), id(value))
            self.alive.append(value)
        number = self.numbers.setdefault(key, len(self.numbers))
        return f"<{getattr(value, '__name__', type(value).__name__)} #{number}>"


@dataclasses.dataclass
class _Walk:
    types: list[TensorType]
    nodes: list[Node]
    bindings: list[Binding]
    objects: _Objects
    path: tuple[int | str, ...] = ()
    backward: bool = False
    calls: list[Call] = dataclasses.field(default_factory=list[Call])
    consts: Sequence[Any] = ()  # values of the first inputs


def read_jaxpr(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Input],
    objects: _Objects | None = None,
    results: Sequence[Any] = (),
    *,
    offload: bool = False,
    source: str = "",
) -> Program:
    """The program of a jaxpr, without dead code.

    Args:
        jaxpr: an open jaxpr.
        consts: values of its `constvars`; they become the first inputs.
        inputs: the graph inputs for its `invars`.
        objects: objects of the enclosing program, for a body.
        results: requested shardings of its results.
        offload: whether copies to the host's memory, and back, are ops of their own.
        source: line of the op whose body this is, for equations without one.
    """
    heads = [
        Input(f"const{i}", tensor_type(const_aval(c)), "constant", content_of(c))
        for i, c in enumerate(consts)
    ]
    all_inputs = (*heads, *inputs)
    walk = _Walk([x.type for x in all_inputs], [], [], objects or _Objects(offload), consts=consts)
    names = (*jaxpr.constvars, *jaxpr.invars)
    env = dict[Any, Operand](zip(names, range(len(all_inputs)), strict=True))
    outputs = _asked(_walk(jaxpr, env, walk, source), results, "result", walk, "")
    graph = Graph(all_inputs, tuple(walk.nodes), outputs)
    found = Program(graph, tuple(walk.bindings), tuple(consts), tuple(walk.calls))
    return without_bias_gradients(prune(with_shifts(with_padded_windows(found))))


def const_aval(const: Any) -> Any:
    """Shape and element type of a captured constant.

    Raises:
        TraceError: if it is a reference, whose content changes between calls.
    """
    if isinstance(const, jax.Ref):
        raise TraceError(
            f"the function captures a reference of type {jax.typeof(const)}",
            remedy="pass its array as an argument and return the new one",
        )
    return const if hasattr(const, "shape") and hasattr(const, "dtype") else np.asarray(const)


def content_of(const: Any) -> str:
    """Hash of a constant's type and content; a fixed word for an abstract constant."""
    if isinstance(const, jax.ShapeDtypeStruct):
        return "abstract"
    content = hashlib.sha256(str(tensor_type(const_aval(const))).encode())
    if jax.numpy.issubdtype(const_aval(const).dtype, jax.dtypes.prng_key):
        const = jax.random.key_data(const)
    content.update(np.ascontiguousarray(np.asarray(const)).tobytes())
    return content.hexdigest()[:16]


def _walk(jaxpr: Any, env: dict[Any, Operand], walk: _Walk, source: str) -> tuple[Operand, ...]:
    around, outer, stated = walk.path, walk.backward, walk.objects.stated
    for number, eqn in enumerate(jaxpr.eqns):
        walk.path = (*around, number)
        walk.backward = outer or internals.is_backward(eqn)
        walk.objects.stated = stated_in(internals.scopes_of(eqn)) or stated
        operands = tuple(_read(var, env) for var in eqn.invars)
        here = walk.objects.sources.of(eqn) or source
        body = inlined(eqn)
        if body is not None:
            operands = _asked(operands, eqn.params.get("in_shardings", ()), "jit", walk, here)
            walk.path = place = (*around, number, eqn.primitive.name)
            results = _inline(body, operands, walk, here)
            if group_of(eqn) is None:
                walk.calls.append(Call(place, operands, results))
            results = _asked(results, eqn.params.get("out_shardings", ()), "jit", walk, here)
        else:
            results = _emit(eqn, operands, walk, here)
            results = _asked(results, _of_results(eqn), "op", walk, here)
        for var, value in zip(eqn.outvars, results, strict=True):
            env[var] = value
    walk.backward, walk.objects.stated = outer, stated
    return tuple(_read(var, env) for var in jaxpr.outvars)


def _read(var: Any, env: dict[Any, Operand]) -> Operand:
    if not isinstance(var, internals.Literal):
        return env[var]
    value = var.val
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, _PLAIN):
        return Literal(_plain(item), tensor_type(var.aval))
    raise TraceError(
        f"a literal of type {type(item).__name__} cannot be written into a graph",
        remedy="pass it as an argument",
    )


_PLAIN: tuple[Any, ...] = (bool, int, float, complex)


def _plain(value: Any) -> Any:
    """A number as a plain Python number; JAX's typed scalars are subclasses of these."""
    return next(kind(value) for kind in _PLAIN if isinstance(value, kind))


def _inline(
    inner: Any, operands: tuple[Operand, ...], walk: _Walk, source: str
) -> tuple[Operand, ...]:
    jaxpr, consts = opened(inner)
    env: dict[Any, Operand] = dict(zip(jaxpr.invars, operands, strict=True))
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        env[var] = _constant(const, walk)
    return _walk(jaxpr, env, walk, source)


def _asked(
    values: tuple[Operand, ...], shardings: Sequence[Any], by: str, walk: _Walk, source: str
) -> tuple[Operand, ...]:
    """Values with the placements requested by a jitted function or an op."""
    found = list(values)
    for k, sharding in enumerate(shardings):
        value, place = values[k], placement(sharding)
        if place is not None and isinstance(value, int):
            found[k] = len(walk.types)
            walk.nodes.append(asked(place, value, walk.types[value], by, source))
            walk.types.append(walk.types[value])
            walk.bindings.append(Binding(AskedPlace(), {}))
    return tuple(found)


def _of_results(eqn: Any) -> tuple[Any, ...]:
    """The placements that an op requests for its results."""
    if eqn.primitive.name in PLACEMENTS:
        return ()
    given = (eqn.params.get(key) for key in OF_RESULTS)
    return tuple(sharding for sharding in given if is_explicit(sharding))


def _constant(const: Any, walk: _Walk) -> Operand:
    value = len(walk.types)
    type_ = tensor_type(const_aval(const))
    walk.types.append(type_)
    walk.nodes.append(Node("constant", (), (type_,), (("content", content_of(const)),)))
    walk.bindings.append(Binding(CapturedArray(const), {}))
    return value


def _emit(eqn: Any, operands: tuple[Operand, ...], walk: _Walk, source: str) -> tuple[int, ...]:
    name, params = internals.name_of(eqn), params_of(eqn)
    if name == "while" and params["cond_jaxpr"].out_avals[0].shape:
        operands = (*operands[: params["cond_nconsts"]], *operands)
        params = one_answer(params)
    if name in LOOKUPS:
        operands, params = _batched(name, operands, params, walk, source)
    encode = _Encoder(walk.objects, source)
    types = tuple(tensor_type(var.aval) for var in eqn.outvars)
    given = [walk.types[o] if isinstance(o, int) else o.type for o in operands]
    call = call_of(name, params)
    if name == CUSTOM_PARTITIONING:
        call = partitioned_call(params, given, types, encode.digest(params["call"]))
    told, placed = internals.shown(name, params), PLACEMENTS.get(name)
    if call is not None:  # it has a digest of its body
        told = {key: value for key, value in told.items() if not internals.is_jaxpr(value)}
    attrs = tuple(
        (key, encode.place(key, value) if key == placed else encode(value))
        for key, value in sorted(told.items())
        if placed or key not in OF_RESULTS
    )
    attrs += (("effect", True),) if internals.acts(eqn) else ()
    if name == "while" and walk.objects.stated is not None:
        attrs += ((STATED, walk.objects.stated),)
    if call is not None:
        name, attrs = REGISTERED, (*attributes(call, given, types), ("of", attrs))
    name = "remat" if name in REMAT else name
    if name == "device_put" and walk.objects.offload:
        name = host_copy(params, [var.aval for var in eqn.invars]) or name
    start, bodies = len(walk.types), tuple(encode.bodies)
    walk.types.extend(types)
    graphs = tuple(program.graph for program in bodies)
    attrs += parts_attribute(name, dict(attrs), graphs)
    walk.nodes.append(Node(name, operands, types, attrs, graphs, source or line_inside(graphs)))
    primitive, lines = internals.primitive_of(eqn), internals.traceback_of(eqn)
    kept = {key: None if key in OF_RESULTS else value for key, value in params.items()}
    walk.bindings.append(Binding(primitive, kept, bodies, walk.path, walk.backward, lines))
    return tuple(range(start, start + len(types)))


def _batched(
    name: str, operands: tuple[Operand, ...], params: dict[str, Any], walk: _Walk, source: str
) -> tuple[tuple[Operand, ...], dict[str, Any]]:
    """Operands and parameters of a lookup whose counting indices are batch dimensions."""
    known = Known(walk.types, walk.nodes, walk.consts)
    found = batched(name, params["dimension_numbers"], operands, known)
    if found is None:
        return operands, params
    array, _, *updates = operands
    columns, indices = found.columns, found.columns[0]
    if len(columns) > 1:
        first = walk.types[columns[0]] if isinstance(columns[0], int) else columns[0].type
        at, indices = first.rank - 1, len(walk.types)
        joined = TensorType((*first.shape[:-1], len(columns)), first.dtype)
        walk.types.append(joined)
        walk.nodes.append(Node("concatenate", columns, (joined,), (("dimension", at),), (), source))
        walk.bindings.append(Binding(jax.lax.concatenate_p, {"dimension": at}))
    changed = {"dimension_numbers": found.numbers, "indices_are_sorted": False}
    return (array, indices, *updates), params | changed | {"unique_indices": False}


class _Encoder:
    """Parameters of one equation as plain data; sub-programs become bodies."""

    def __init__(self, objects: _Objects, source: str) -> None:
        self.objects, self.source = objects, source
        self.bodies: list[Program] = []

    def __call__(self, value: Any) -> Attr:
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is tuple:
            return tuple([self(item) for item in value])
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, _PLAIN):
            return _plain(value)
        if isinstance(value, np.generic):
            return self(value.item())
        if internals.is_jaxpr(value):
            return self._body(value)
        return self._many(value) if isinstance(value, (tuple, list, dict)) else self._object(value)

    def place(self, key: str, value: Any) -> Attr:
        """A parameter with the requested placement of a result, or a tuple of such."""
        if type(value) is tuple:
            return tuple([self.place(key, item) for item in value])
        if key == "dst_sharding" and not is_explicit(value):
            return "auto"  # the compiler places the value
        found = placement(value)
        return self(value) if found is None else found.attr

    def digest(self, value: Any) -> str:
        """Digest of a sub-program that does not become a body."""
        return self._read(value).graph.digest

    def _many(self, value: Any) -> Attr:
        if hasattr(value, "_fields"):
            return tuple((field, self(getattr(value, field))) for field in value._fields)
        if isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]))
            return tuple((str(key), self(item)) for key, item in items)
        return tuple(self(item) for item in value)

    def _body(self, value: Any) -> str:
        known, key = self.objects.read, (id(value), self.objects.stated)
        if key not in known:
            known[key] = value, self._read(value)
        self.bodies.append(known[key][1])
        return f"body {len(self.bodies) - 1}"

    def _read(self, value: Any) -> Program:
        jaxpr, consts = opened(value)
        taken = (*jaxpr.constvars[len(consts) :], *jaxpr.invars)  # all of them, of an open jaxpr
        inputs = [Input(f"in{i}", tensor_type(v.aval), "body") for i, v in enumerate(taken)]
        found = read_jaxpr(jaxpr, consts, inputs, self.objects, source=self.source)
        graphs = self.objects.graphs
        return dataclasses.replace(found, graph=graphs.setdefault(found.graph, found.graph))

    def _object(self, value: Any) -> Attr:
        if isinstance(value, (np.ndarray, jax.Array)):
            if isinstance(value, np.ndarray) and value.size <= 64:
                return self(value.tolist())
            return f"<{tensor_type(value)} {content_of(value)}>"
        if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
            return str(tensor_type(value))
        if isinstance(value, (np.dtype, type)) or hasattr(value, "itemsize"):
            return self._type_name(value)
        if isinstance(value, internals.Primitive):
            return value.name
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            if not any(callable(item) for item in fields.values()):
                return tuple((name, self(item)) for name, item in fields.items())
        return self.objects.show(value)

    def _type_name(self, value: Any) -> str:
        try:
            name = _dtype_name(value)
        except TypeError:
            return self.objects.show(value)
        return name if name in DTYPES else f"<{name}>"
