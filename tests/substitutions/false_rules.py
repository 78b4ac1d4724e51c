# pyright: basic
"""False rules: true ones with something wrong in them, found false by numbers alone.

No prover is asked: a rule is taken if NumPy, on logical devices and on inputs that the source
takes, computes something else for the target. Inputs that are whole and of equal sizes are tried
before uneven ones, so that most rules are false for more than an odd case.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from substitutions import CATALOGUE, Op, Ref, Rule, RuleError, Verdict
from substitutions.axioms import AXIOMS
from substitutions.ops import OPS
from substitutions.text import rule_of_text
from tests.substitutions.computes import NUMPY
from tests.substitutions.conditions import holds
from tests.substitutions.instances import Tried, tried
from tests.substitutions.published import EQUATIONS, FLEXFLOW, TASO, rules

TRIES = 40  # inputs that are drawn, plain ones and then uneven ones
ENOUGH = 4  # of them that the source takes
COMMUNICATION = ("partition", "combine", "replicate", "reduce")
OTHER_KINDS: Mapping[str, tuple[str, ...]] = {
    "add": ("mul", "sub"), "mul": ("add", "div"), "sub": ("add",), "div": ("mul",),
    "relu": ("neg", "tanh"), "exp": ("tanh",), "tanh": ("exp",), "rsqrt": ("exp",),
    "neg": ("relu",), "cast": ("neg",), "sum": ("max",), "max": ("sum",),
    "avgpool": ("maxpool",), "maxpool": ("avgpool",), "expand": ("along",), "along": ("expand",),
    "matmul": ("linear",), "linear": ("matmul",), "ones": ("identity-matrix",),
    "identity-kernel": ("mean-kernel",), "mean-kernel": ("identity-kernel",),
}  # fmt: skip
OTHER_COMMUNICATION: Mapping[str, tuple[str, ...]] = {
    "partition": ("combine", "replicate"), "combine": ("partition", "reduce"),
    "replicate": ("reduce", "partition"), "reduce": ("replicate", "combine"),
}  # fmt: skip
VALUES: Mapping[str, tuple[int, ...]] = {
    "axis": (0, 1, 2, 3), "dim": (1, 2, 3), "degree": (2, 3, 4), "activation": (0, 2),
    "padding": (0, 1), "stride_h": (1, 2, 3), "stride_w": (1, 2, 3), "kernel_h": (1, 2, 3, 5),
    "kernel_w": (1, 2, 3, 5),
}  # fmt: skip
UNARY = ("relu", "neg", "exp", "tanh")

# True rules over replicas and partial sums, beside the catalogue's, the axioms' and the published.
_I, _B = {"x": 4, "y": 4, "w": 4, "v": 4}, {"x": 3, "y": 3}
PARALLEL: Sequence[tuple[str, str, Mapping[str, int]]] = (
    ("matmul(x, y)", "combine[1, k](matmul(partition[1, k](x), replicate[k](y)))", {}),
    ("matmul(x, y)", "combine[2, k](matmul(replicate[k](x), partition[2, k](y)))", {}),
    ("matmul(x, y)", "reduce[k](matmul(partition[2, k](x), partition[1, k](y)))", {}),
    ("relu(matmul(x, y))", "relu(reduce[k](matmul(partition[2, k](x), partition[1, k](y))))", {}),
    ("matmul(relu(matmul(x, y)), z)",
     "reduce[k](matmul(relu(matmul(replicate[k](x), partition[2, k](y))), partition[1, k](z)))",
     {}),
    ("matmul[2](x, y)", "combine[1, k](matmul[2](partition[1, k](x), replicate[k](y)))", {}),
    ("conv(x, w)", "combine[1, k](conv(partition[1, k](x), replicate[k](w)))", _I),
    ("conv(x, w)", "combine[2, k](conv(replicate[k](x), partition[1, k](w)))", _I),
    ("conv(x, w)", "reduce[k](conv(partition[2, k](x), partition[2, k](w)))", _I),
    ("conv[0, 2, 2, 1](x, w)",
     "combine[1, k](conv[0, 2, 2, 1](partition[1, k](x), replicate[k](w)))", _I),
    ("relu(conv(x, w))", "relu(reduce[k](conv(partition[2, k](x), partition[2, k](w))))", _I),
    ("batch-matmul(x, y)", "combine[2, k](batch-matmul(partition[2, k](x), replicate[k](y)))", _B),
    ("batch-matmul(x, y)", "combine[3, k](batch-matmul(replicate[k](x), partition[3, k](y)))", _B),
    ("batch-matmul(x, y)", "reduce[k](batch-matmul(partition[3, k](x), partition[2, k](y)))", _B),
    ("avgpool[2, 2](x)", "combine[1, k](avgpool[2, 2](partition[1, k](x)))", _I),
    ("maxpool[3, 3, 2, 2](x)", "combine[2, k](maxpool[3, 3, 2, 2](partition[2, k](x)))", _I),
    ("avgpool[2, 2](reduce[k](x))", "reduce[k](avgpool[2, 2](x))", _I),
    ("enlarge[3, 3](reduce[k](x))", "reduce[k](enlarge[3, 3](x))", _I),
    ("scale(x, s)", "combine[2, k](scale(partition[2, k](x), replicate[k](s)))", {}),
    ("scale(reduce[k](x), s)", "reduce[k](scale(x, replicate[k](s)))", {}),
    ("scale(x, s)", "combine[1, k](scale(partition[1, k](x), replicate[k](s)))", {}),
    ("expand[1](u, x)", "combine[1, k](expand[1](replicate[k](u), partition[1, k](x)))", {}),
    ("sum[1](x)", "reduce[k](sum[1](partition[1, k](x)))", {}),
    ("sum[2](x)", "combine[1, k](sum[2](partition[1, k](x)))", {}),
    ("max[2](x)", "combine[1, k](max[2](partition[1, k](x)))", {}),
    ("reduce[2](reduce[4](x))", "reduce[8](x)", {}),
    ("replicate[2](replicate[4](x))", "replicate[8](x)", {}),
    ("combine[1, 2](combine[1, 3](x))", "combine[1, 6](x)", {}),
    ("reduce[k](add(x, y))", "add(reduce[k](x), reduce[k](y))", {}),
    ("mul(reduce[k](x), y)", "reduce[k](mul(x, replicate[k](y)))", {}),
    ("linear(x, w)", "combine[1, k](linear(partition[1, k](x), replicate[k](w)))", {}),
    ("linear(x, w)", "reduce[k](linear(partition[2, k](x), partition[2, k](w)))", {}),
    ("linear(relu(linear(x, w)), y)",
     "reduce[k](linear(relu(linear(replicate[k](x), partition[1, k](w))), partition[2, k](y)))",
     {}),
)  # fmt: skip


@dataclass(frozen=True)
class FalseRule:
    """A rule, what was done to a true one, and inputs that show it.

    Where `example` is not typed, the source takes these inputs and the target does not.
    """

    rule: Rule
    change: str
    example: Tried

    def accepted(self, found: Verdict) -> bool:
        """Whether a verdict accepts the rule, by a condition that these inputs meet."""
        return found.accepted and holds(self.rule, found.condition, self.example)


def false_rules(seed: int) -> Iterator[FalseRule]:
    """Distinct false rules without end, of each kind of change in turn."""
    rng, seen, sets = random.Random(seed), set[str](), true_rules()
    while True:
        for change in CHANGES:
            found = _one(change, rng, seen, sets)
            if found is not None:
                yield found


def true_rules() -> Sequence[Sequence[Rule]]:
    """Rules to change, set by set."""
    ranks = {**dict.fromkeys("xyzwv", 2), "s": 0, "u": 1}
    own = [
        rule_of_text("", a, b, {**ranks, **more}, parallel=True, letters={"k": 2})
        for left, right, more in PARALLEL
        for a, b in ((left, right), (right, left))
    ]
    rows = [rule for rows in CATALOGUE.values() for row in rows for rule in row.rules()]
    axioms = [rule for axiom in AXIOMS for way in "<>" for rule in axiom.rules(way)]
    flexflow = [rule for rule in rules(FLEXFLOW) if not any(map(_odd, rule.source))]
    return own, rows, axioms, rules(TASO), rules(EQUATIONS), flexflow, own


def _odd(op: Op) -> bool:
    """An op of FlexFlow's file on a kind of dimension that it does not take."""
    dim = op.get("dim", op.get("axis", 1))
    return (dim == 0) != (op.kind in ("replicate", "reduce"))


def _one(
    change: str, rng: random.Random, seen: set[str], sets: Sequence[Sequence[Rule]]
) -> FalseRule | None:
    for _ in range(20):
        try:
            rule = CHANGES[change](rng.choice(rng.choice(sets)), rng)
        except RuleError:
            continue
        if rule is None or rule.free_inputs() or not rule.ranks or str(rule) in seen:
            continue
        seen.add(str(rule))
        example = shown_false(rule, rng) or shown_false(rule, rng, target_refused=True)
        if example is not None:
            return FalseRule(rule, change, example)
    return None


def shown_false(rule: Rule, rng: random.Random, target_refused: bool = False) -> Tried | None:
    """Inputs on which both sides are typed and differ; None if none were found.

    Args:
        rule: what to refute.
        rng: draws the inputs.
        target_refused: whether inputs that only the source takes count too.
    """
    for wild in (False, True):
        for found in islice(tried(rule, rng, TRIES, wild, NUMPY), ENOUGH):
            if found.difference and (found.typed or target_refused):
                return found
    return None


Change = Callable[[Rule, random.Random], Rule | None]


def _sides(rule: Rule, rng: random.Random) -> str:
    return rng.choice(("target", "target", "source"))


def _with(rule: Rule, name: str, ops: Sequence[Op]) -> Rule:
    changed = {"source": rule.source, "target": rule.target, name: tuple(ops)}
    return replace(rule, **changed)


def _changed_op(
    rule: Rule, rng: random.Random, fits: Callable[[Op], bool],
    change: Callable[[Op, Sequence[Op], int], Op | None],
) -> Rule | None:  # fmt: skip
    """The rule with one op, drawn of those that fit, replaced."""
    name = _sides(rule, rng)
    ops = list(getattr(rule, name))
    places = [i for i, op in enumerate(ops) if fits(op)]
    if not places:
        return None
    i = rng.choice(places)
    changed = change(ops[i], ops, i)
    if changed is None or changed == ops[i]:
        return None
    ops[i] = changed
    return _with(rule, name, ops)


def _parameter(*names: str) -> Change:
    def change(rule: Rule, rng: random.Random) -> Rule | None:
        def other(op: Op, ops: Sequence[Op], i: int) -> Op:
            key = rng.choice([key for key, _ in op.params if key in names])
            value = rng.choice([v for v in VALUES[key] if v != op[key]])
            return replace(op, params=tuple((k, value if k == key else v) for k, v in op.params))

        return _changed_op(rule, rng, lambda op: any(k in names for k, _ in op.params), other)

    return change


def _other_kind(table: Mapping[str, tuple[str, ...]]) -> Change:
    def change(rule: Rule, rng: random.Random) -> Rule | None:
        def other(op: Op, ops: Sequence[Op], i: int) -> Op:
            kind = rng.choice(table[op.kind])
            params = dict(op.params)
            if kind in COMMUNICATION:
                params["dim"] = 0 if kind in ("replicate", "reduce") else rng.choice((1, 2))
            return Op(kind, op.inputs, tuple(sorted(params.items())))

        return _changed_op(rule, rng, lambda op: op.kind in table, other)

    return change


def _swapped(rule: Rule, rng: random.Random) -> Rule | None:
    def swap(op: Op, ops: Sequence[Op], i: int) -> Op:
        return replace(op, inputs=op.inputs[::-1])

    return _changed_op(
        rule, rng, lambda op: len(op.inputs) == 2 and op.kind not in ("add", "mul"), swap
    )


def _operand(rule: Rule, rng: random.Random) -> Rule | None:
    def other(op: Op, ops: Sequence[Op], i: int) -> Op:
        values = [Ref(-1, 0, name) for name, _ in rule.ranks]
        values += [Ref(j, k) for j in range(i) for k in range(OPS[ops[j].kind].results)]
        inputs = list(op.inputs)
        inputs[rng.randrange(len(inputs))] = rng.choice(values)
        return replace(op, inputs=tuple(inputs))

    return _changed_op(rule, rng, lambda op: bool(op.inputs), other)


def _part(rule: Rule, rng: random.Random) -> Rule | None:
    """The other part of a split, or another output."""
    pairs = list(rule.outputs)
    k = rng.randrange(len(pairs))
    a, b = pairs[k]
    if len(pairs) > 1 and rng.random() < 0.5:
        pairs[k], pairs[k - 1] = (a, pairs[k - 1][1]), (pairs[k - 1][0], b)
    elif b.op >= 0 and OPS[rule.target[b.op].kind].results == 2:
        pairs[k] = (a, replace(b, output=1 - b.output))
    else:
        return None
    return replace(rule, outputs=tuple(pairs))


def _dropped(kinds: Sequence[str]) -> Change:
    def change(rule: Rule, rng: random.Random) -> Rule | None:
        name = _sides(rule, rng)
        ops = list(getattr(rule, name))
        places = [i for i, op in enumerate(ops) if op.kind in kinds]
        if not places:
            return None
        i = rng.choice(places)
        passed = ops[i].inputs[0]

        def ref(r: Ref) -> Ref:
            if r.op == i:
                return passed
            return replace(r, op=r.op - 1) if r.op > i else r

        rest = [replace(op, inputs=tuple(map(ref, op.inputs))) for op in ops[:i] + ops[i + 1 :]]
        pick = name == "target"
        pairs = tuple(
            tuple(ref(r) if j == pick else r for j, r in enumerate(pair)) for pair in rule.outputs
        )
        sides = {"source": rule.source, "target": rule.target, name: tuple(rest)}
        return replace(rule, **sides, outputs=pairs)

    return change


def _added(rule: Rule, rng: random.Random) -> Rule | None:
    """A function more around an output."""
    pairs = list(rule.outputs)
    k = rng.randrange(len(pairs))
    a, b = pairs[k]
    pairs[k] = (a, Ref(len(rule.target)))
    ops = (*rule.target, Op(rng.choice(UNARY), (b,)))
    return replace(rule, target=ops, outputs=tuple(pairs))


def _twice(rule: Rule, rng: random.Random) -> Rule | None:
    """Two changes."""
    for _ in range(2):
        changed = CHANGES[rng.choice([name for name in CHANGES if name != "two changes"])]
        found = changed(rule, rng)
        if found is None:
            return None
        rule = found
    return rule


CHANGES: Mapping[str, Change] = {
    "wrong axis": _parameter("axis", "dim"),
    "wrong degree": _parameter("degree"),
    "wrong activation": _parameter("activation"),
    "wrong window": _parameter("padding", "stride_h", "stride_w", "kernel_h", "kernel_w"),
    "dropped collective": _dropped(COMMUNICATION),
    "another collective": _other_kind(OTHER_COMMUNICATION),
    "swapped operands": _swapped,
    "another operand": _operand,
    "another op": _other_kind(OTHER_KINDS),
    "another part": _part,
    "dropped scale": _dropped(("scale",)),
    "dropped op": _dropped(("relu", "neg", "exp", "cast", "transpose", "enlarge", "scale")),
    "one op more": _added,
    "two changes": _twice,
}
