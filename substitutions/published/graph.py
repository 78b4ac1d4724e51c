"""The nesting that FlexFlow's JSON and TASO's protobuf share, made into rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import RuleError
from ..graph import Op, Ref, Side
from ..ops import OPS
from ..rule import Rule, Unread
from .limits import LONGEST_REASON
from .ranks import infer_ranks

_COUNTS = ("inputs", "outputs", "rank", "group")


@dataclass(frozen=True, slots=True)
class RawOp:
    """An op as the file has it: inputs are (op, output), op below zero for a graph input."""

    kind: str
    inputs: tuple[tuple[int, int], ...]
    params: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RawRule:
    """A rule as the file has it; `mapped` holds (op, output) of the source and of the target."""

    name: str
    source: tuple[RawOp, ...]
    target: tuple[RawOp, ...]
    mapped: tuple[tuple[int, int, int, int], ...]


def kept(read: Callable[[str], Rule], name: str, where: str) -> Rule | Unread:
    """The rule that `read` returns, or an `Unread` with its error."""
    try:
        return read(where)
    except RuleError as error:
        return Unread(name, error.where, error.message[:LONGEST_REASON])


def rule_of(raw: RawRule, ranks: Mapping[int, int], *, parallel: bool) -> Rule:
    """Checks a raw rule and makes a rule of it.

    Args:
        raw: what the file says.
        ranks: usual number of data dimensions of input `-i`, by i.
        parallel: whether tensors carry a replica dimension and degrees.

    Raises:
        RuleError: if ops, references, counts or outputs do not fit together.
    """
    source, target = (_side(raw.name, ops) for ops in (raw.source, raw.target))
    outputs = tuple((Ref(a, i), Ref(b, j)) for a, i, b, j in raw.mapped)
    usual = {f"-{number}": rank for number, rank in ranks.items()}
    named = {ref.name for op in (*source, *target) for ref in op.inputs if ref.op < 0}
    if unknown := sorted(named - usual.keys()):
        text = f"input {unknown[0]} is none of the set's, which are -1 to -{max(ranks)}"
        raise RuleError(text, where=raw.name)
    if parallel:  # the replica dimension is in the file's rank and not in ours
        inferred = tuple((name, usual[name]) for name in sorted(named))
        return Rule(raw.name, source, target, outputs, inferred, parallel)
    stated = {
        (side, Ref(i)): op.params["rank"]
        for side, ops in enumerate((raw.source, raw.target))
        for i, op in enumerate(ops)
        if "rank" in op.params
    }
    inferred = infer_ranks((source, target), stated, usual)
    return Rule(raw.name, source, target, outputs, inferred, parallel)


def _side(name: str, ops: Sequence[RawOp]) -> Side:
    return tuple(_op(name, op) for op in ops)


def _op(name: str, raw: RawOp) -> Op:
    counts = {"inputs": len(raw.inputs), "outputs": OPS[raw.kind].results}
    for key, found in counts.items():
        said = raw.params.get(key, found)
        if said != found:
            raise RuleError(f"a {raw.kind} says {said} {key} and has {found}", where=name)
    kept = tuple(sorted((k, v) for k, v in raw.params.items() if k not in _COUNTS))
    return Op(raw.kind, tuple(_ref(name, a, i) for a, i in raw.inputs), kept)


def _ref(name: str, op: int, output: int) -> Ref:
    if op >= 0:
        return Ref(op, output)
    if output:
        raise RuleError(f"input {op} has no output {output}", where=name)
    return Ref(-1, 0, str(op))
