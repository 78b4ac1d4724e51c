# pyright: basic
"""A second proof of a rule: both sides meet in an e-graph that is saturated with axioms.

Only axioms are used that hold without a condition in the direction in which they are applied, so
that every term in the e-graph is well-typed wherever the side that it came from is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from egglog.bindings import EggSmolError, EGraph

from ..graph import Op, Ref, Side
from ..ops import OPS, RELU
from ..rule import Rule

MOST_ROUNDS = 6
MOST_TERMS = 4000
_HEAD = "(datatype T (V String) (op0 String) (op1 String T) (op2 String T T) (op3 String T T T))"


def saturates(
    rule: Rule, axioms: Sequence[Rule], rounds: int = MOST_ROUNDS, terms: int = MOST_TERMS
) -> bool:
    """Whether the axioms prove the rule within the limits; False says nothing.

    Args:
        rule: what to prove.
        axioms: rules of one output that hold without a condition; letters are degrees.
        rounds: of applying all axioms everywhere.
        terms: size of the e-graph at which the search ends.
    """
    if any(len(op.inputs) > 3 for op in (*rule.source, *rule.target)):
        return False
    graph = EGraph()
    program = [_HEAD, *dict.fromkeys(_rewrites(rule, axioms))]
    checks: list[str] = []
    for i, (a, b) in enumerate(rule.outputs):
        program.append(f"(let $a{i} {_term(rule.source, a, bound=False)})")
        program.append(f"(let $b{i} {_term(rule.target, b, bound=False)})")
        checks.append(f"(check (= $a{i} $b{i}))")
    _run(graph, "\n".join(program))
    for _ in range(rounds):
        if _holds(graph, checks):
            return True
        _run(graph, "(run 1)")
        if _terms(graph) > terms:
            break
    return _holds(graph, checks)


def _run(graph: EGraph, program: str) -> Sequence[object]:
    return graph.run_program(*graph.parse_program(program))


def _holds(graph: EGraph, checks: Sequence[str]) -> bool:
    try:
        _run(graph, "\n".join(checks))
    except EggSmolError:
        return False
    return True


def _terms(graph: EGraph) -> int:
    found = _run(graph, "(print-size)")
    return sum(size for output in found for _, size in output.sizes)  # type: ignore[attr-defined]


def _rewrites(rule: Rule, axioms: Sequence[Rule]) -> Iterator[str]:
    """The axioms of the rule's kind of tensors, for the degrees that it has."""
    degrees = sorted({op["degree"] for op in (*rule.source, *rule.target) if op.get("degree", 0)})
    for axiom in axioms:
        if axiom.parallel == rule.parallel:
            yield from _written(axiom, tuple(degrees))


@lru_cache(maxsize=4096)
def _written(axiom: Rule, degrees: tuple[int, ...]) -> tuple[str, ...]:
    """One axiom for all choices of its degrees."""
    found: list[str] = []
    letters = sorted({o["degree"] for o in (*axiom.source, *axiom.target) if o.get("degree", 0)})
    for chosen in itertools.product(degrees, repeat=len(letters)):
        values = dict(zip(letters, chosen, strict=True))
        left, right = (
            _term(side, ref, bound=True, degrees=values)
            for side, ref in zip((axiom.source, axiom.target), axiom.outputs[0], strict=True)
        )
        if left.startswith("(") and left != right:  # a variable matches all terms
            found.append(f"(rewrite {left} {right})")
    return tuple(found)


def _term(side: Side, ref: Ref, *, bound: bool, degrees: dict[int, int] | None = None) -> str:
    """A value as a term; `bound` writes inputs as pattern variables."""
    if ref.op < 0:
        return ref.name if bound else f'(V "{ref.name}")'
    op = side[ref.op]
    args = [_term(side, r, bound=bound, degrees=degrees) for r in op.inputs]
    name = _name(op, ref, degrees or {})
    shown = f'(op{len(args)} "{name}" {" ".join(args)})' if args else f'(op0 "{name}")'
    if op.get("activation", 0) == RELU:
        return f'(op1 "relu[]" {shown})'
    return shown


def _name(op: Op, ref: Ref, degrees: dict[int, int]) -> str:
    """The op with its parameters, without the activation, which is written as an op."""
    shown = (
        f"{key}={degrees.get(value, value) if key == 'degree' else value}"
        for key, value in sorted(op.params)
        if key != "activation"
    )
    part = f".{ref.output}" if OPS[op.kind].results > 1 else ""
    return f"{op.kind}[{','.join(shown)}]{part}"
