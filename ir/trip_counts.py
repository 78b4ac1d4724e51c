"""Iterations of `while` loops: counted from one constant to another, stated, or assumed.

A program states those of loops whose length depends on values by a scope around them,
`jax.named_scope("iterations=50")`; it holds for all such loops inside, those of functions that are
called there too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .errors import TraceError
from .graph import Graph, Literal, Node, Operand
from .regions import ASSUMED_ITERATIONS, While, captured, iterations

STATED = "iterations"  # the attribute of a `while` that has such a scope
_SCOPE = f"{STATED}="

# Comparison of a counter with its bound -> (direction of the counter, whether it runs at the bound)
_TESTS = {"lt": (1, False), "le": (1, True), "gt": (-1, False), "ge": (-1, True)}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def runs_of(node: Node) -> float:
    """Runs of a node's bodies in one call; for a `cond`, of all bodies together."""
    if node.op == "scan":
        return float(len(iterations(node)))
    if node.op == "while":
        known = known_iterations(node)
        return float(_unknown(node) if known is None else known)
    return 1.0


def stated_in(scopes: Sequence[str]) -> int | None:
    """The iterations that the innermost of some scopes states; None if none does.

    Raises:
        TraceError: if it is no whole number above 0.
    """
    for scope in reversed(scopes):
        if scope.startswith(_SCOPE):
            number = scope.removeprefix(_SCOPE)
            if not number.isdecimal() or int(number) < 1:
                raise TraceError(
                    f"iterations of a loop must be a whole number above 0, got '{number}'",
                    where=f'jax.named_scope("{scope}")',
                    remedy='write for example jax.named_scope("iterations=50")',
                )
            return int(number)
    return None


def iterations_if_unknown(graph: Graph) -> int:
    """Iterations of all loops whose length is not known, if one number holds for all.

    Else that of loops of which nothing is said.
    """
    found = set(_of_unknown(graph))
    return found.pop() if len(found) == 1 else ASSUMED_ITERATIONS


def _of_unknown(graph: Graph) -> Iterator[int]:
    for node in graph.nodes:
        if node.op == "while" and known_iterations(node) is None:
            yield _unknown(node)
        for body in node.bodies:
            yield from _of_unknown(body)


def _unknown(node: Node) -> int:
    stated = node.attr(STATED) if node.has_attr(STATED) else None
    return stated if isinstance(stated, int) else ASSUMED_ITERATIONS


def known_iterations(node: Node) -> int | None:
    """Iterations of a `while`, or None where they depend on values.

    Its test is one comparison of a whole number, to which each iteration adds a constant, with a
    constant: n = ceil((bound - start) / step), and 0 if that is negative.
    """
    loop = While.of(node)
    test = node.bodies[loop.test]
    compared = _made_by(test, test.outputs[0])
    if compared is None or compared.op not in _TESTS:
        return None
    left, right = (_entering(node, loop.test, operand) for operand in compared.inputs)
    for op, counter, limit in (
        (compared.op, left, right),
        (_MIRRORED[compared.op], right, left),
    ):
        start, bound = _first(node, counter), _fixed(node, limit)
        step = _step(node, counter)
        if start is not None and bound is not None and step is not None:
            return _count(start, step, bound, op)
    return None


def _count(start: int, step: int, bound: int, op: str) -> int | None:
    direction, at_bound = _TESTS[op]
    distance = (bound - start) * direction + at_bound
    stride = step * direction
    if distance <= 0:
        return 0
    return -(-distance // stride) if stride > 0 else None


# What a body reads: a literal, or the position of the loop's operand that enters there.
Source = int | Literal | None


def _entering(node: Node, body: int, operand: Operand) -> Source:
    """The loop's operand that a body reads; None for what the body computes or has captured."""
    graph, loop = node.bodies[body], While.of(node)
    if isinstance(operand, Literal):
        return operand
    place = operand - captured(graph)
    of_test, of_step, carries = loop.operands(range(len(node.inputs)))
    entering = (*(of_test if body == loop.test else of_step), *carries)
    return entering[place] if 0 <= place < len(entering) else None


def _first(node: Node, source: Source) -> int | None:
    """The constant that a source has in the first iteration."""
    operand = node.inputs[source] if isinstance(source, int) else source
    if not isinstance(operand, Literal):
        return None
    value = operand.value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _fixed(node: Node, source: Source) -> int | None:
    """The constant that a source has in every iteration."""
    number = _carry(node, source)
    if number is not None:
        loop = While.of(node)
        after = node.bodies[loop.step].outputs[number]
        if isinstance(after, Literal) or _entering(node, loop.step, after) != source:
            return None
    return _first(node, source)


def _carry(node: Node, source: Source) -> int | None:
    """Which carry a source is."""
    before = len(node.inputs) - len(node.outputs)
    return source - before if isinstance(source, int) and source >= before else None


def _step(node: Node, source: Source) -> int | None:
    """What each iteration adds to a carry."""
    number, loop = _carry(node, source), While.of(node)
    if number is None:
        return None
    body = node.bodies[loop.step]
    made = _made_by(body, body.outputs[number])
    if made is None or made.op not in ("add", "sub"):
        return None
    left, right = (_entering(node, loop.step, operand) for operand in made.inputs)
    if made.op == "add" and right == source:
        left, right = right, left
    step = _fixed(node, right)
    if left != source or step is None:
        return None
    return step if made.op == "add" else -step


def _made_by(graph: Graph, operand: Operand) -> Node | None:
    number = None if isinstance(operand, Literal) else graph.maker.get(operand)
    return None if number is None else graph.nodes[number]
