"""Rules as text: `relu(concat[1](x, y)) = concat[1](relu(x), relu(y))`.

Parameters are given by name, or in the order of the op's record; part i of a split is written
`split[0](x).i`; letters may stand for degrees: equal letters are equal degrees, whatever they are.
Outputs of one rule are separated by `;`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import RuleError
from .graph import Op, Ref
from .ops import OPS, PARAMETERS
from .rule import Rule
from .term import Term

_TOKEN = re.compile(r"\s*([a-z][a-z0-9_-]*|[0-9]+|[\[\](),.=])", re.ASCII)
MOST_DEPTH = 32


def show_term(term: Term) -> str:
    """The text of a term, with parameters by position."""
    if not term.kind:
        return term.name
    given = dict(term.params)
    order = [given[key] for key in OPS[term.kind].params if key in given]
    params = f"[{', '.join(order)}]" if order else ""
    args = f"({', '.join(map(show_term, term.args))})" if term.args else ""
    part = f".{term.part}" if OPS[term.kind].results > 1 else ""
    return f"{term.kind}{params}{args}{part}"


def parse_term(text: str) -> Term:
    """Reads one term.

    Raises:
        RuleError: if the text has another form.
    """
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise RuleError(f"unexpected '{text[at:].strip()[:10]}'", where=text)
        tokens.append(found[1])
        at = found.end()
    term, end = _term([*tokens, ""], 0, 0, text)
    if end != len(tokens):
        raise RuleError(f"unexpected '{tokens[end]}' after the term", where=text)
    return term


def _term(tokens: list[str], at: int, depth: int, where: str) -> tuple[Term, int]:
    name = tokens[at]
    if not name or not name[0].isalpha() or depth > MOST_DEPTH:
        raise RuleError(f"expected a variable or an op, found '{name}'", where=where)
    if name not in OPS:
        return Term("", name), at + 1
    at += 1
    params: list[tuple[str, str]] = []
    if tokens[at] == "[":
        params, at = _params(tokens, at, name, where)
    args: list[Term] = []
    if tokens[at] == "(":
        while tokens[at] != ")":
            arg, at = _term(tokens, at + 1, depth + 1, where)
            args.append(arg)
            if tokens[at] not in (",", ")"):
                raise RuleError(f"expected , or ), found '{tokens[at]}'", where=where)
        at += 1
    part = 0
    if tokens[at] == ".":
        part, at = int(tokens[at + 1]), at + 2
    return Term(name, "", tuple(params), tuple(args), part), at


def _params(tokens: list[str], at: int, name: str, where: str) -> tuple[list[tuple[str, str]], int]:
    """`[value, ...]` or `[name=value, ...]`, from the opening bracket on."""
    found: list[tuple[str, str]] = []
    while tokens[at] != "]":
        if tokens[at + 2 : at + 3] == ["="]:
            found.append((tokens[at + 1], tokens[at + 3]))
            at += 4
        else:
            order = OPS[name].params
            if len(found) >= len(order):
                raise RuleError(f"{name} takes no more than {len(order)} values", where=where)
            found.append((order[len(found)], tokens[at + 1]))
            at += 2
        if tokens[at] not in (",", "]"):
            raise RuleError(f"expected , or ], found '{tokens[at]}'", where=where)
    return found, at + 1


@dataclass
class _Graph:
    """A side while it is built; equal terms become one op."""

    letters: Mapping[str, int]
    where: str
    ops: list[Op] = field(default_factory=list[Op])

    def value(self, term: Term) -> Ref:
        if not term.kind:
            return Ref(-1, 0, term.name)
        defaults = {key: PARAMETERS[key].default for key in OPS[term.kind].needed}
        params = {key: value for key, value in defaults.items() if value is not None}
        for key, value in term.params:
            if not value.isdigit() and value not in self.letters:
                raise RuleError(f"'{value}' is no number and no letter", where=self.where)
            params[key] = int(value) if value.isdigit() else self.letters[value]
        op = Op(term.kind, tuple(map(self.value, term.args)), tuple(sorted(params.items())))
        if op not in self.ops:
            self.ops.append(op)
        return Ref(self.ops.index(op), term.part)


def rule_of_text(
    name: str, source: str, target: str, ranks: Mapping[str, int], *,
    parallel: bool = False, letters: Mapping[str, int] | None = None,
) -> Rule:  # fmt: skip
    """A rule from the text of both sides.

    Args:
        name: what to call it.
        source: terms, one for each output, separated by `;`.
        target: the same.
        ranks: data dimensions of the variables.
        parallel: whether tensors carry a replica dimension and degrees.
        letters: numbers that letters stand for.

    Raises:
        RuleError: if a side cannot be read or does not fit.
    """
    graphs = [_Graph(letters or {}, name) for _ in range(2)]
    refs = [
        [graph.value(parse_term(part)) for part in text.split(";")]
        for graph, text in zip(graphs, (source, target), strict=True)
    ]
    if len(refs[0]) != len(refs[1]):
        raise RuleError(f"{len(refs[0])} outputs against {len(refs[1])}", where=name)
    outputs = tuple(zip(*refs, strict=True))
    named = {r.name for g in graphs for op in g.ops for r in op.inputs if r.op < 0}
    named |= {r.name for side in refs for r in side if r.op < 0}
    held = tuple(sorted((n, ranks[n]) for n in named if n in ranks))
    return Rule(
        name, tuple(graphs[0].ops), tuple(graphs[1].ops), tuple((a, b) for a, b in outputs),
        held, parallel,
    )  # fmt: skip
