"""TENSAT's text: `f(x, y)==g(x)` without a separator, or `(f ?x ?y)=>(g ?x)` a line.

A file whose equations use `split_0(split(axis, ...))` holds rules of two outputs: one equation for
each output, in turns (TENSAT's multi-pattern rewrites).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..errors import RuleError
from ..graph import Op, Ref
from ..ops import CONSTANTS, PLAIN, RELU
from ..rule import Rule, Unread
from .graph import kept
from .limits import MOST_DEPTH, MOST_RULES
from .names import taso_rank
from .ranks import infer_ranks

_TOKEN = re.compile(r"==|=>|[(),]|[?\w]+|\s+|.", re.ASCII | re.DOTALL)
_INPUT = re.compile(r"\??input_([0-9]{1,2})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Call:
    """An application; arguments are calls or names and numbers."""

    name: str
    args: tuple[Call | str, ...]


# form -> (op, names of the leading numbers); the rest are tensors.
_SHORT: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ewadd": ("add", ()),
    "ewmul": ("mul", ()),
    "smul": ("scale", ()),
    "relu": ("relu", ()),
    "transpose": ("transpose", ()),
    "conv2d": ("conv", ("stride_h", "stride_w", "padding", "activation")),
    "enlarge": ("enlarge", ("kernel_h", "kernel_w")),
    "Cpool": ("mean-kernel", ("kernel_h", "kernel_w")),
    "Iconv": ("identity-kernel", ("kernel_h", "kernel_w")),
    "Imatmul": ("identity-matrix", ()),
    "Iewmul": ("ones", ()),
    "split": ("split", ("axis",)),
    "poolavg": ("avgpool", ("kernel_h", "kernel_w", "stride_h", "stride_w", "padding")),
    "poolmax": ("maxpool", ("kernel_h", "kernel_w", "stride_h", "stride_w", "padding")),
}


def read_tensat(text: str, where: str) -> tuple[Rule | Unread, ...]:
    """Rules of one of TENSAT's text files, those with errors as such.

    Raises:
        RuleError: if the text has another form.
    """
    equations = _equations(text, where)
    joint = any(_uses(side, "split") for pair in equations for side in pair)
    size = 2 if joint else 1
    if len(equations) % size:
        text = f"{len(equations)} equations of rules with two outputs: one is missing"
        raise RuleError(text, where=where)
    groups = [equations[i : i + size] for i in range(0, len(equations), size)]
    return tuple(
        kept(partial(_rule, group, i), f"tensat-{i}", f"{where}: rule {i}")
        for i, group in enumerate(groups)
    )


def _uses(term: Call | str, name: str) -> bool:
    if isinstance(term, str):
        return False
    return term.name == name or any(_uses(arg, name) for arg in term.args)


def _equations(text: str, where: str) -> list[tuple[Call | str, Call | str]]:
    tokens = [t for t in _TOKEN.findall(text) if not t.isspace()]
    parse = _prefix if "=>" in tokens else _call
    found: list[tuple[Call | str, Call | str]] = []
    at = 0
    while at < len(tokens):
        place = f"{where}: equation {len(found)}"
        left, at = parse(tokens, at, 0, place)
        if _at(tokens, at) not in ("==", "=>"):
            raise RuleError(f"found '{_at(tokens, at)}', expected == or =>", where=place)
        right, at = parse(tokens, at + 1, 0, place)
        found.append((left, right))
        if len(found) > MOST_RULES:
            raise RuleError(f"more than {MOST_RULES} equations", where=where)
    if not found:
        raise RuleError("no equations: the file is empty", where=where)
    return found


def _at(tokens: Sequence[str], at: int) -> str:
    return tokens[at] if at < len(tokens) else "the end of the file"


def _name(tokens: Sequence[str], at: int, depth: int, where: str) -> str:
    if depth > MOST_DEPTH:
        raise RuleError(f"nested deeper than {MOST_DEPTH} levels", where=where)
    found = _at(tokens, at)
    if not re.fullmatch(r"\??\w+", found, re.ASCII):
        raise RuleError(f"found '{found}', expected a name or a number", where=where)
    return found


def _call(tokens: Sequence[str], at: int, depth: int, where: str) -> tuple[Call | str, int]:
    """`name` or `name(term, ...)`."""
    name = _name(tokens, at, depth, where)
    if _at(tokens, at + 1) != "(":
        return name, at + 1
    at += 2
    args: list[Call | str] = []
    while True:
        arg, at = _call(tokens, at, depth + 1, where)
        args.append(arg)
        if _at(tokens, at) == ")":
            return Call(name, tuple(args)), at + 1
        if _at(tokens, at) != ",":
            raise RuleError(f"found '{_at(tokens, at)}', expected , or )", where=where)
        at += 1


def _prefix(tokens: Sequence[str], at: int, depth: int, where: str) -> tuple[Call | str, int]:
    """`name` or `(name term ...)`."""
    if _at(tokens, at) != "(":
        return _name(tokens, at, depth, where), at + 1
    name = _name(tokens, at + 1, depth, where)
    at += 2
    args: list[Call | str] = []
    while _at(tokens, at) != ")":
        arg, at = _prefix(tokens, at, depth + 1, where)
        args.append(arg)
    return Call(name, tuple(args)), at + 1


def _rule(pairs: Sequence[tuple[Call | str, Call | str]], index: int, place: str) -> Rule:
    sides = [_Side(place), _Side(place)]
    outputs = tuple((sides[0].value(left), sides[1].value(right)) for left, right in pairs)
    usual = {**sides[0].ranks, **sides[1].ranks}
    graphs = (tuple(sides[0].ops), tuple(sides[1].ops))
    stated = {(i, ref): rank for i, side in enumerate(sides) for ref, rank in side.stated.items()}
    try:
        ranks = infer_ranks(graphs, stated, usual)
        for name in sorted(usual.keys() - dict(ranks).keys()):
            ranks = (*ranks, (name, usual[name]))  # an input that is an output itself
        return Rule(f"tensat-{index}", *graphs, outputs, ranks)
    except RuleError as error:
        raise RuleError(error.message, where=place) from None


@dataclass
class _Side:
    """One side while it is built; equal terms become one op."""

    where: str
    ops: list[Op] = field(default_factory=list[Op])
    ranks: dict[str, int] = field(default_factory=dict[str, int])
    stated: dict[Ref, int] = field(default_factory=dict[Ref, int])

    def value(self, term: Call | str) -> Ref:
        if isinstance(term, str):
            return self._leaf(term)
        forms: Mapping[str, Callable[[Call], Ref]] = {
            "split_0": self._split, "split_1": self._split, "concat": self._concat,
            "matmul": self._matmul,
        }  # fmt: skip
        if term.name in forms:
            return forms[term.name](term)
        if term.name not in _SHORT:
            known = ", ".join([*_SHORT, *forms])
            raise RuleError(f"unknown op '{term.name}'; known: {known}", where=self.where)
        kind, names = _SHORT[term.name]
        numbers = self._numbers(term, len(names))
        return self._op(kind, dict(zip(names, numbers, strict=True)), term.args[len(names) :])

    def _leaf(self, name: str) -> Ref:
        if found := _INPUT.fullmatch(name):
            number = int(found[1])
            if not 1 <= number <= 20:
                raise RuleError(f"no input {name}; there are input_1 to input_20", where=self.where)
            self.ranks[f"-{number}"] = taso_rank(number)
            return Ref(-1, 0, f"-{number}")
        if name in _SHORT and _SHORT[name][0] in CONSTANTS and not _SHORT[name][1]:
            return self._op(_SHORT[name][0], {}, ())
        raise RuleError(f"'{name}' is no tensor", where=self.where)

    def _op(self, kind: str, params: Mapping[str, int], args: Sequence[Call | str]) -> Ref:
        op = Op(kind, tuple(self.value(arg) for arg in args), tuple(sorted(params.items())))
        if op not in self.ops:
            self.ops.append(op)
        return Ref(self.ops.index(op))

    def _numbers(self, term: Call, count: int) -> list[int]:
        found = term.args[:count]
        numbers = [arg for arg in found if isinstance(arg, str) and _NUMBER.fullmatch(arg)]
        if len(numbers) != count:
            raise RuleError(f"{term.name} begins with {count} numbers", where=self.where)
        return [int(number) for number in numbers]

    def _split(self, term: Call) -> Ref:
        """`split_0(axis, x)` or `split_0(split(axis, x))`."""
        output = int(term.name[-1])
        if len(term.args) == 2:
            (axis,) = self._numbers(term, 1)
            return Ref(self._op("split", {"axis": axis}, term.args[1:]).op, output)
        whole = self.value(term.args[0])
        if len(term.args) != 1 or whole.op < 0 or self.ops[whole.op].kind != "split":
            raise RuleError(f"{term.name} takes a split", where=self.where)
        return Ref(whole.op, output)

    def _concat(self, term: Call) -> Ref:
        """`concat(axis, x, y)` or `concat(axis, rank, x, y)`."""
        ranked = len(term.args) > 1 and isinstance(term.args[1], str) and term.args[1].isdigit()
        axis, *rank = self._numbers(term, 2 if ranked else 1)
        made = self._op("concat", {"axis": axis}, term.args[2 if ranked else 1 :])
        self.stated.update({made: rank[0]} if rank else {})
        return made

    def _matmul(self, term: Call) -> Ref:
        """`matmul(x, y)` or `matmul(activation, x, y)`."""
        activation = self._numbers(term, 1)[0] if len(term.args) == 3 else PLAIN
        if activation not in (PLAIN, RELU):
            raise RuleError(f"matmul with activation {activation}", where=self.where)
        return self._op("matmul", {"activation": activation}, term.args[-2:])
