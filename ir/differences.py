"""How two graphs differ, in one sentence."""

from __future__ import annotations

from .graph import Attr, Graph, Literal, Node, Operand
from .types import TensorType

LONGEST = 40


def differences(planned: Graph, given: Graph) -> str:
    """The most useful difference: in arguments, else in results, else in operations."""
    return _ends(planned, given) or _operations(planned, given) or "the arguments' roles differ"


def _ends(planned: Graph, given: Graph) -> str:
    old = {i.name: i for i in planned.inputs}
    new = {i.name: i for i in given.inputs}
    if gone := [n for n in old if n not in new]:
        return f"argument '{gone[0]}' of the plan is missing"
    if extra := [n for n in new if n not in old]:
        return f"argument '{extra[0]}' is not in the plan"
    for name, item in old.items():
        if item.type != new[name].type:
            return f"argument '{name}' was {item.type} in the plan and is {new[name].type}"
        if item.digest != new[name].digest:
            return f"the captured constant '{name}' has another content"
    if len(planned.outputs) != len(given.outputs):
        return f"the plan has {len(planned.outputs)} results, the function {len(given.outputs)}"
    return ""


def _operations(planned: Graph, given: Graph) -> str:
    for i, (a, b) in enumerate(zip(planned.nodes, given.nodes, strict=False)):
        if found := _node(i, a, b):
            return found
    if len(planned.nodes) != len(given.nodes):
        return f"the plan has {len(planned.nodes)} operations, the function {len(given.nodes)}"
    if list(map(_show, planned.outputs)) != list(map(_show, given.outputs)):
        return "the results are other values, or in another order"
    return ""


def _node(i: int, a: Node, b: Node) -> str:
    place = f" at {b.source}" if b.source else ""
    if (a.op, a.outputs) != (b.op, b.outputs):
        return (
            f"operation {i} was {a.op} {_types(a.outputs)} and is {b.op} {_types(b.outputs)}{place}"
        )
    name = f"operation {i}, {a.op}{place}"
    old, new = dict(a.attrs), dict(b.attrs)
    for key in sorted({*old, *new}):
        if repr(old.get(key)) != repr(new.get(key)):
            return f"{key} of {name}, was {_clip(old.get(key))} and is {_clip(new.get(key))}"
    for first, second in zip(map(_show, a.inputs), map(_show, b.inputs), strict=False):
        if first != second:
            return f"{name}, read {first} and reads {second}"
    for first, second in zip(a.bodies, b.bodies, strict=False):
        if found := _ends(first, second) or _operations(first, second):
            return f"in a body of {name}: {found}"
    return "" if len(a.inputs) == len(b.inputs) else f"{name}, has another number of operands"


def _show(operand: Operand) -> str:
    return f"the number {operand.value}" if isinstance(operand, Literal) else f"value {operand}"


def _clip(value: Attr) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _types(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))
