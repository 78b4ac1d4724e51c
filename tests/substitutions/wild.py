"""Rules that nobody would write: random changes to true ones, and random programs on both sides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from substitutions import Op, Ref, Rule, RuleError
from substitutions.ops import OPS

NUMBERS = (0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 16, 63, 64)
FEW = {"padding": (0, 1), "activation": (0, 2), "axis": (0, 1, 2, 3), "dim": (0, 1, 2, 3)}
INPUTS = {"m": 2, "n": 2, "p": 2, "i": 4, "j": 4, "w": 4, "v": 4, "s": 0, "g": 1, "b": 3, "c": 3}
LENGTHS = (1, 2, 3, 4, 6, 10, 16)


def wild(base: Sequence[Rule], rng: random.Random) -> Rule:
    """A rule that can be read; it may be true, false, or without any meaning."""
    while True:
        try:
            return changed(rng.choice(base), rng) if rng.random() < 0.6 else made_up(rng)
        except RuleError:
            continue


def changed(rule: Rule, rng: random.Random) -> Rule:
    """A rule with one to four random changes.

    Raises:
        RuleError: if the changes made it unreadable.
    """
    for _ in range(rng.randint(1, 4)):
        rule = rng.choice((_operand, _parameter, _other_op, _longer, _output, _rank, _kind))(
            rule, rng
        )
    return rule


def _values(ops: Sequence[Op], rule: Rule) -> list[Ref]:
    made = [Ref(i, k) for i, op in enumerate(ops) for k in range(OPS[op.kind].results)]
    return [Ref(-1, 0, name) for name, _ in rule.ranks] + made


def _params(kind: str, rng: random.Random) -> tuple[tuple[str, int], ...]:
    names = OPS[kind].needed
    return tuple(sorted((name, rng.choice(FEW.get(name, NUMBERS))) for name in names))


def _drawn(ops: Sequence[Op], rule: Rule, rng: random.Random) -> Op:
    kind = rng.choice(list(OPS))
    least, most = OPS[kind].operands
    values = _values(ops, rule)
    inputs = [rng.choice(values) for _ in range(rng.randint(least, min(most, 3)))] if values else []
    return Op(kind, tuple(inputs), _params(kind, rng))


def _with(rule: Rule, name: str, ops: Sequence[Op]) -> Rule:
    return replace(rule, source=tuple(ops)) if name == "source" else replace(
        rule, target=tuple(ops)
    )  # fmt: skip


def _side(rule: Rule, rng: random.Random) -> tuple[str, list[Op]]:
    name = rng.choice(("source", "target"))
    return name, list(rule.source if name == "source" else rule.target)


def _operand(rule: Rule, rng: random.Random) -> Rule:
    name, ops = _side(rule, rng)
    at = [i for i, op in enumerate(ops) if op.inputs]
    if not at:
        return rule
    i = rng.choice(at)
    inputs = list(ops[i].inputs)
    inputs[rng.randrange(len(inputs))] = rng.choice(_values(ops[:i], rule))
    ops[i] = replace(ops[i], inputs=tuple(inputs))
    return _with(rule, name, ops)


def _parameter(rule: Rule, rng: random.Random) -> Rule:
    name, ops = _side(rule, rng)
    at = [i for i, op in enumerate(ops) if op.params]
    if not at:
        return rule
    i = rng.choice(at)
    key = rng.choice([key for key, _ in ops[i].params])
    value = rng.choice(NUMBERS)
    params = tuple((k, value if k == key else v) for k, v in ops[i].params)
    ops[i] = replace(ops[i], params=params)
    return _with(rule, name, ops)


def _other_op(rule: Rule, rng: random.Random) -> Rule:
    name, ops = _side(rule, rng)
    if not ops:
        return rule
    i = rng.randrange(len(ops))
    ops[i] = _drawn(ops[:i], rule, rng)
    return _with(rule, name, ops)


def _longer(rule: Rule, rng: random.Random) -> Rule:
    name, ops = _side(rule, rng)
    longer = _with(rule, name, [*ops, _drawn(ops, rule, rng)])
    pairs = list(rule.outputs)
    k, last = rng.randrange(len(pairs)), Ref(len(ops))
    a, b = pairs[k]
    pairs[k] = (last, b) if name == "source" else (a, last)
    return replace(longer, outputs=tuple(pairs))


def _output(rule: Rule, rng: random.Random) -> Rule:
    pairs = list(rule.outputs)
    k = rng.randrange(len(pairs))
    a, b = pairs[k]
    if rng.random() < 0.5:
        a = rng.choice(_values(rule.source, rule) or [a])
    else:
        b = rng.choice(_values(rule.target, rule) or [b])
    pairs[k] = (a, b)
    return replace(rule, outputs=tuple(pairs))


def _rank(rule: Rule, rng: random.Random) -> Rule:
    ranks = dict(rule.ranks)
    if ranks:
        ranks[rng.choice(list(ranks))] = rng.choice((0, 1, 2, 3, 4, 5, 8))
    return replace(rule, ranks=tuple(sorted(ranks.items())))


def _kind(rule: Rule, rng: random.Random) -> Rule:
    return replace(rule, parallel=not rule.parallel)


def made_up(rng: random.Random) -> Rule:
    """Two random programs, or one and what a few changes make of it.

    Raises:
        RuleError: if the changes made it unreadable.
    """
    found = Rule("", (), (), ((Ref(-1, 0, "m"), Ref(-1, 0, "m")),), tuple(INPUTS.items()),
                 rng.random() < 0.5)  # fmt: skip
    length = rng.choice(LENGTHS)
    left = _program(length, found.parallel, rng)
    right = left if rng.random() < 0.6 else _program(length, found.parallel, rng)
    last = Ref(length - 1)
    found = replace(found, source=tuple(left), target=tuple(right), outputs=((last, last),))
    return changed(found, rng) if left is right and rng.random() < 0.7 else found


# kind -> dimensions of the operands and of the result; the others take any, and keep them
RANKED = {
    "matmul": ((2, 2), 2), "linear": ((2, 2), 2), "transpose": ((2,), 2), "conv": ((4, 4), 4),
    "avgpool": ((4,), 4), "maxpool": ((4,), 4), "enlarge": ((4,), 4),
    "batch-matmul": ((3, 3), 3), "gather": ((2, 1), 2), "ones": ((), 4),
    "identity-matrix": ((), 2), "identity-kernel": ((), 4), "mean-kernel": ((), 4),
}  # fmt: skip


def _program(length: int, parallel: bool, rng: random.Random) -> list[Op]:
    """Ops on operands of the numbers of dimensions that they take, mostly on recent ones."""
    values = [(Ref(-1, 0, name), rank) for name, rank in INPUTS.items()]
    ops: list[Op] = []

    def pick(rank: int) -> Ref:
        every = [ref for ref, r in values if r == rank]
        recent = [ref for ref in every if ref.op >= 0][-3:]
        return rng.choice(recent if recent and rng.random() < 0.7 else every)

    while len(ops) < length:
        kind = rng.choice(list(OPS))
        own = rng.choice((1, 2, 3, 4))
        usual = {"scale": ((own, 0), own), "sum": ((own,), own - 1), "max": ((own,), own - 1),
                 "expand": ((own - 1, own), own), "along": ((1, own), own)}  # fmt: skip
        most = rng.choice((2, 2, 3, 8)) if kind == "concat" else OPS[kind].operands[0]
        taken, made = {**usual, **RANKED}.get(kind, ((own,) * most, own))
        params = dict(_params(kind, rng))
        if "axis" in params:
            params["axis"] = rng.randrange(own) + parallel
        if "dim" in params:
            params["dim"] = 0 if kind in ("replicate", "reduce") else rng.randint(1, own)
        inputs = tuple(pick(rank) for rank in taken)
        ops.append(Op(kind, inputs, tuple(sorted(params.items()))))
        values += [(Ref(len(ops) - 1, k), made) for k in range(OPS[kind].results)]
    return ops
