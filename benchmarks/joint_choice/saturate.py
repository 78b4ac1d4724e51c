"""Rows of the catalogue applied to classes of equal values, in both directions.

A row says that two programs are equal wherever both are well-typed; sizes are known here, so that
typing decides. A split on the right becomes a slice where its operand was joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ir import Shape, TensorType
from substitutions import CATALOGUE, Op, Ref, Row, Rule

from .egraph import Form, Forms
from .shapes import KINDS, Params

FAMILIES = ("products", "scales", "layouts", "reductions", "lookups")
MOST_FORMS = 400
MOST_ROUNDS = 4
_ON_SHAPE = ("along", "expand")  # their second operand lends its shape only

Bound = dict[str, int]


@dataclass(frozen=True, slots=True)
class Joint:
    """Where a dimension was joined, and what the left and the right part know of theirs."""

    at: int
    left: Joint | None
    right: Joint | None


Joints = tuple[Joint | None, ...]


@dataclass(frozen=True, slots=True)
class Saturated:
    """Whether nothing more follows (`complete`), or which limit ended the search."""

    stop: str
    rounds: int


def rewrite_rules(families: Sequence[str] = FAMILIES) -> tuple[Rule, ...]:
    """Both directions of the rows of one device, where a left side is an op that can be found."""
    found: list[Rule] = []
    for family in families:
        for row in CATALOGUE[family]:
            for rule in _rules(row):
                back = replace(
                    rule, source=rule.target, target=rule.source,
                    outputs=tuple((b, a) for a, b in rule.outputs),
                )  # fmt: skip
                found += [way for way in (rule, back) if _usable(way)]
    return tuple(found)


def _rules(row: Row) -> Iterator[Rule]:
    return iter(()) if row.parallel else row.rules()


def _usable(rule: Rule) -> bool:
    kinds = {op.kind for op in rule.source}
    fits = kinds <= set(KINDS) and {op.kind for op in rule.target} <= {*KINDS, "split"}
    tops = all(a.op >= 0 for a, _ in rule.outputs)
    if not (fits and tops) or _needed(rule.source) - _found(rule):
        return False
    return _needed(rule.target) | {b.name for _, b in rule.outputs if b.op < 0} <= _found(rule)


def _needed(side: Sequence[Op]) -> set[str]:
    return {ref.name for op in side for ref in op.inputs if ref.op < 0}


def _found(rule: Rule) -> set[str]:
    """Inputs that a match binds: those that only lend their shape are not looked at."""
    found: set[str] = set()
    work = [a for a, _ in rule.outputs]
    while work:
        ref = work.pop()
        if ref.op < 0:
            found.add(ref.name)
            continue
        op = rule.source[ref.op]
        work += op.inputs[:1] if op.kind in _ON_SHAPE else op.inputs
    return found


def saturate(
    forms: Forms, rules: Sequence[Rule], rounds: int = MOST_ROUNDS, most: int = MOST_FORMS
) -> Saturated:
    """Adds what the rules prove equal, round by round, in a fixed order.

    Args:
        forms: what to add to.
        rules: see `rewrite_rules`.
        rounds: how often all rules are applied everywhere.
        most: forms at which to end.
    """
    for number in range(rounds):
        changed = False
        for rule in rules:
            for bound, classes in list(_matches(forms, rule)):
                if len(forms) > most:
                    forms.repair()
                    return Saturated("forms", number + 1)
                changed |= _apply(forms, rule, bound, classes)
            forms.repair()
        if not changed:
            return Saturated("complete", number + 1)
    return Saturated("rounds", rounds)


def _matches(forms: Forms, rule: Rule) -> Iterator[tuple[Bound, tuple[int, ...]]]:
    members = forms.members()
    found: list[tuple[Bound, tuple[int, ...]]] = [({}, ())]
    for a, _ in rule.outputs:
        fresh: list[tuple[Bound, tuple[int, ...]]] = []
        for bound, classes in found:
            for c in members:
                if not classes or c > classes[-1]:
                    fresh += [
                        (more, (*classes, c)) for more in _match(forms, members, rule, a, c, bound)
                    ]
        found = fresh
    yield from found


def _match(
    forms: Forms, members: Mapping[int, list[Form]], rule: Rule, ref: Ref, c: int, bound: Bound
) -> Iterator[Bound]:
    if ref.op < 0:
        if ref.name in bound:
            if bound[ref.name] == c:
                yield bound
        elif _fits(dict(rule.ranks)[ref.name], forms.types[c]):
            yield {**bound, ref.name: c}
        return
    op = rule.source[ref.op]
    for form in members[c]:
        if form.kind != op.kind or not _same_params(op, form):
            continue
        args = op.inputs[:1] if op.kind in _ON_SHAPE else op.inputs
        states = [bound]
        for inner, arg in zip(args, form.args, strict=True):
            states = [
                more for state in states for more in _match(forms, members, rule, inner, arg, state)
            ]
        yield from states


def _fits(rank: int, type_: TensorType) -> bool:
    """Whether a tensor can stand for an input; row numbers [n, 1] are a vector in rules."""
    rows = type_.dtype.startswith("int") and type_.shape[1:] == (1,)
    return len(type_.shape) == (rank + 1 if rows else rank)


def _same_params(op: Op, form: Form) -> bool:
    held = dict(form.params)
    return all(held.get(key, 0) == value for key, value in op.params)


def _apply(forms: Forms, rule: Rule, bound: Bound, classes: Sequence[int]) -> bool:
    """Builds the target and merges its outputs with what was matched; whether it says anything."""
    made: dict[Ref, tuple[int, Joints]] = {}
    found = [_build(forms, rule, b, bound, made) for _, b in rule.outputs]
    pairs = list(zip(found, classes, strict=True))
    if any(new is None or forms.types[new[0]] != forms.types[forms.find(c)] for new, c in pairs):
        return False
    merged = [forms.merge(new[0], c) for new, c in pairs if new is not None]
    return any(merged)


def _build(
    forms: Forms, rule: Rule, ref: Ref, bound: Bound,
    made: dict[Ref, tuple[int, Joints]],
) -> tuple[int, Joints] | None:  # fmt: skip
    """The class of a value of the target, and where its dimensions were joined."""
    if ref.op < 0:
        c = forms.find(bound[ref.name])
        return c, (None,) * len(forms.types[c].shape)
    if ref in made:
        return made[ref]
    op = rule.target[ref.op]
    args = [_build(forms, rule, inner, bound, made) for inner in op.inputs]
    if any(arg is None for arg in args):
        return None
    held = [arg for arg in args if arg is not None]
    found = _op(forms, op, ref.output, held)
    if found is not None:
        made[ref] = found
    return found


def _op(
    forms: Forms, op: Op, output: int, args: Sequence[tuple[int, Joints]]
) -> tuple[int, Joints] | None:
    if op.kind == "split":
        axis, (c, known) = op["axis"], args[0]
        if axis >= len(known) or (joint := known[axis]) is None:
            return None
        size = forms.types[c].shape[axis]
        start, stop = ((0, joint.at), (joint.at, size))[output]
        params: Params = (("axis", axis), ("start", start), ("stop", stop))
        made = forms.op("slice", params, (c,))
        part = joint.right if output else joint.left
        return None if made is None else (made, (*known[:axis], part, *known[axis + 1 :]))
    params = tuple((key, value) for key, value in op.params if key != "activation")
    classes = [c for c, _ in args]
    if op.kind == "concat" and _grows(forms, op, classes):
        return None
    if op.kind in _ON_SHAPE:
        params, classes = (*params, ("shape", forms.types[classes[1]].shape)), classes[:1]
    if op.kind == "gather" and len(forms.types[classes[1]].shape) != 2:
        return None
    made = forms.op(op.kind, params, classes)
    return None if made is None else (made, _joints(forms, op, args, forms.types[made].shape))


def _grows(forms: Forms, op: Op, classes: Sequence[int]) -> bool:
    """Whether a join is of equal values or of what was joined before: such joins have no end."""
    old = {c for c, ref in zip(classes, op.inputs, strict=True) if ref.op < 0}
    return len(set(classes)) < len(classes) or any(c in forms.joined for c in old)


def _joints(forms: Forms, op: Op, args: Sequence[tuple[int, Joints]], shape: Shape) -> Joints:
    """How the dimensions of a result were joined."""
    known = [joints for _, joints in args]
    if op.kind == "concat":
        axis, at = op["axis"], 0
        joint: Joint | None = None
        for nth, (c, joints) in enumerate(args):
            joint = joints[axis] if nth == 0 else Joint(at, joint, joints[axis])
            at += forms.types[c].shape[axis]
        return (*known[0][:axis], joint, *known[0][axis + 1 :])
    if op.kind == "matmul":
        return known[0][0], known[1][1]
    if op.kind == "gather":
        return known[1][0], known[0][1]
    if op.kind == "transpose":
        return known[0][::-1]
    return known[0] if known and len(known[0]) == len(shape) else (None,) * len(shape)
