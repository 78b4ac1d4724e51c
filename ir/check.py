"""Checks every invariant of a graph; run after each step that makes one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import IRError
from .factors import FactorSpec
from .graph import Attr, Graph, Literal, Node, Operand
from .ops.build import whole_number
from .ops.grouped import GROUPED
from .ops.mapped import SHARD_MAP, mapped_axes, mapped_shape
from .regions import Scan, While, captured
from .shapes import expected_shapes
from .signatures import check_signature
from .table import lookup
from .text import show
from .types import TensorType, dtype_kind

WINDOW = 2  # lines shown before and after the wrong line

# Ops whose result has dimensions that no operand has.
_CREATORS = (
    "broadcast_in_dim", "constant", "empty", "empty2", "iota", GROUPED, "random_bits", "tile",
)  # fmt: skip

Types = Sequence[TensorType]


def check(graph: Graph, *, after: str) -> Graph:
    """Returns `graph` unchanged, or raises an error that names the step and the place.

    Checked are, in bodies too: literals against their types; the number, shapes and element types
    of operands and results against the op's factor spec, signature and attributes; bodies against
    the operands and results of the loop, branch or region that runs them. Of an unknown op only the
    literals and bodies are checked.

    Args:
        graph: the graph to check.
        after: the step that made it, for the error.

    Raises:
        IRError: with the step, the line of the text form and its neighbours; without them if the
            graph has no text form.
    """
    text = show(graph)
    walk = _Walk()
    try:
        walk.graph(graph)
    except IRError as error:
        lines = text.split("\n")
        lines[walk.line] += "    <-- here"
        window = "\n".join(lines[max(0, walk.line - WINDOW) : walk.line + WINDOW + 1])
        raise IRError(f"after {after}: line {walk.line + 1}: {error}\n{window}") from error
    return graph


class _Walk:
    """A walk in the order of the text form; `line` is the current line, from zero."""

    def __init__(self) -> None:
        self.line = 0
        self.sound = set[object]()  # checked nodes without bodies: layers repeat them

    def graph(self, graph: Graph) -> None:
        arguments = False
        for item in graph.inputs:
            if item.role == "constant" and arguments:
                raise IRError(f"the constant {item.name!r} comes after arguments, expected before")
            arguments = item.role != "constant"
            self.line += 1
        for node in graph.nodes:
            _check_literals(node.inputs)
            self._node(node, tuple(graph.type_of(operand) for operand in node.inputs))
            self.line += 1
            for body in node.bodies:
                self.line += 1
                self.graph(body)
                self.line += 1
        _check_literals(graph.outputs)
        self.line += 1

    def _node(self, node: Node, operands: tuple[TensorType, ...]) -> None:
        key = (node.op, operands, node.outputs, repr(node.attrs))
        if node.bodies or key not in self.sound:
            _check_node(node, operands)
        if not node.bodies:
            self.sound.add(key)


def _check_node(node: Node, operands: Types) -> None:
    if node.bodies or node.op in _REGIONS:
        _check_bodies(node, operands)
    check_signature(node, operands)
    attrs = dict(node.attrs)
    shapes = [type_.shape for type_ in node.outputs]
    try:
        expected = list(expected_shapes(node.op, [t.shape for t in operands], shapes, attrs))
        if expected != shapes:
            raise IRError(f"its results have the shapes {shapes}, expected {expected}")
        spec = lookup(node.op).factors(tuple(operands), node.outputs, attrs)
    except IRError as error:
        raise IRError(f"{node.op}: {error}") from error
    except KeyError as error:
        raise IRError(f"{node.op}: the attribute {error} is missing") from error
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise IRError(
            f"{node.op}: operands, results and attributes do not go together: {error}"
        ) from error
    _check_sizes(node, operands, spec)


def _check_sizes(node: Node, operands: Types, spec: FactorSpec) -> None:
    """Checks that the factors of every dimension multiply to its size, in operands and results."""
    sizes, kinds = dict(spec.sizes), dict(spec.kinds)
    tensors = (*spec.operands, *spec.results)
    for dims, type_ in zip(tensors, (*operands, *node.outputs), strict=True):
        found = tuple(math.prod(sizes[name] for name in dim) for dim in dims)
        if any(
            n != size and (dim or size > 1)
            for n, size, dim in zip(found, type_.shape, dims, strict=True)
        ):
            raise IRError(f"{node.op}: its factors {spec} make the shape {found} of {type_}")
    before, after = (
        {name for dims in side for dim in dims for name in dim if name not in kinds}
        for side in (spec.operands, spec.results)
    )
    if lost := sorted(before - after):
        raise IRError(f"{node.op}: dimension {lost[0]} of its factors {spec} has no place after")
    if node.op not in _CREATORS and (new := sorted(after - before)):
        raise IRError(f"{node.op}: dimension {new[0]} of its factors {spec} comes from nowhere")


_LITERAL_TYPES = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "complex": (complex, float, int),
}


def _check_literals(operands: Sequence[Operand]) -> None:
    for item in operands:
        if not isinstance(item, Literal):
            continue
        kinds = _LITERAL_TYPES.get(dtype_kind(item.type.dtype), ())
        if item.type.rank or type(item.value) not in kinds:
            raise IRError(f"the literal {item.value!r} cannot be of type {item.type}")


# --- bodies ------------------------------------------------------------------------------------


def _check_bodies(node: Node, operands: Types) -> None:
    named = _named_bodies([value for _, value in node.attrs])
    for number in range(len(node.bodies)):
        if f"body {number}" not in named:
            raise IRError(f"{node.op}: none of its attributes names body {number}")
    rule = _REGIONS.get(node.op)
    if rule is not None:
        rule(node, operands)


def _named_bodies(values: Sequence[Attr]) -> set[str]:
    found: set[str] = set()
    for value in values:
        if isinstance(value, tuple):
            found |= _named_bodies(value)
        elif isinstance(value, str):
            found.add(value)
    return found


def _body(node: Node, reference: Attr) -> tuple[list[TensorType], list[TensorType]]:
    """Types that a body takes, its constants aside, and types that it returns."""
    known = {f"body {number}": body for number, body in enumerate(node.bodies)}
    body = known.get(reference) if isinstance(reference, str) else None
    if body is None:
        raise IRError(f"{node.op}: it names the body {reference!r}, but has {len(known)}")
    takes = [item.type for item in body.inputs[captured(body) :]]
    return takes, [body.type_of(operand) for operand in body.outputs]


def _agree(node: Node, what: str, found: Types, expected: Types) -> None:
    if list(found) != list(expected):
        raise IRError(f"{node.op}: {what} {_list(found)}, expected {_list(expected)}")


def _list(types: Types) -> str:
    return f"({', '.join(map(str, types))})"


def _count(node: Node, name: str, limit: int) -> int:
    number = whole_number(node.attr(name))
    if not 0 <= number <= limit:
        raise IRError(f"{node.op}: {name} is {number}, expected at most {limit}, its operands")
    return number


def _check_scan(node: Node, operands: Types) -> None:
    first = _count(node, "num_consts", len(operands))
    _count(node, "num_carry", len(operands) - first)
    wiring, length = Scan.of(node), whole_number(node.attr("length"))
    takes, returns = _body(node, node.attr("jaxpr"))
    consts, carry, xs = wiring.operands(operands)
    slices: list[TensorType] = []
    for type_ in xs:
        if not type_.rank or type_.shape[0] != length:
            raise IRError(f"scan: it slices {type_}, expected {length} slices as its length says")
        slices.append(TensorType(type_.shape[1:], type_.dtype))
    _agree(node, "its body takes", takes, [*consts, *carry, *slices])
    after, ys = wiring.results(returns)
    _agree(node, "its body returns the carry", after, carry)
    stacked = [TensorType((length, *t.shape), t.dtype) for t in ys]
    _agree(node, "its results are", node.outputs, [*carry, *stacked])


def _check_while(node: Node, operands: Types) -> None:
    first = _count(node, "cond_nconsts", len(operands))
    _count(node, "body_nconsts", len(operands) - first)
    test, step = (_body(node, node.attr(name)) for name in ("cond_jaxpr", "body_jaxpr"))
    of_test, of_step, carry = While.of(node).operands(operands)
    _agree(node, "its test takes", test[0], [*of_test, *carry])
    _agree(node, "its test returns", test[1], [TensorType((), "bool")])
    _agree(node, "its body takes", step[0], [*of_step, *carry])
    _agree(node, "its body returns", step[1], carry)
    _agree(node, "its results are", node.outputs, carry)


def _check_cond(node: Node, operands: Types) -> None:
    branches = node.attr("branches")
    if not isinstance(branches, tuple) or not branches:
        raise IRError(f"cond: its branches are {branches!r}, expected a tuple of bodies")
    _agree(node, "its index is", operands[:1], [TensorType((), "int32")])
    for number, branch in enumerate(branches):
        takes, returns = _body(node, branch)
        _agree(node, f"its branch {number} takes", takes, operands[1:])
        _agree(node, f"its branch {number} returns", returns, node.outputs)


def _check_remat(node: Node, operands: Types) -> None:
    takes, returns = _body(node, node.attr("jaxpr"))
    _agree(node, "its body takes", takes, operands)
    _agree(node, "its body returns", returns, node.outputs)


def _check_mapped(node: Node, operands: Types) -> None:
    axes, (takes, returns) = mapped_axes(node.attr("mesh")), _body(node, node.attr("jaxpr"))
    for key, whole, found in (("in_specs", operands, takes), ("out_specs", node.outputs, returns)):
        specs = node.attr(key)
        if not isinstance(specs, tuple) or len(specs) != len(whole):
            raise IRError(f"{node.op}: its {key} are {specs!r}, expected one for each array")
        shards = [
            TensorType(mapped_shape(type_.shape, spec, axes), type_.dtype)
            for type_, spec in zip(whole, specs, strict=True)
        ]
        _agree(node, f"its body has, by its {key},", found, shards)


_REGIONS = {
    SHARD_MAP: _check_mapped,
    "cond": _check_cond,
    "remat": _check_remat,
    "scan": _check_scan,
    "while": _check_while,
}
