"""Rules with one thing changed: an axis, a degree, an operand or an op."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from substitutions import Op, Ref, Rule, RuleError

# Ops of equal shape of call.
PEERS: Mapping[str, tuple[str, ...]] = {
    "add": ("mul",),
    "mul": ("add",),
    "partition": ("combine", "replicate"),
    "combine": ("partition", "reduce"),
    "replicate": ("reduce", "partition"),
    "reduce": ("replicate", "combine"),
    "avgpool": ("maxpool",),
    "maxpool": ("avgpool",),
    "relu": ("transpose",),
}


def mutants(rule: Rule) -> Iterator[Rule]:
    """Every rule that differs from this one in one place."""
    seen = {str(rule)}
    for name in ("source", "target"):
        side: tuple[Op, ...] = getattr(rule, name)
        for i, op in enumerate(side):
            for changed in _changes(rule, side, i, op):
                ops = (*side[:i], changed, *side[i + 1 :])
                try:
                    found = replace(rule, **{name: ops})
                except RuleError:
                    continue
                if str(found) not in seen:
                    seen.add(str(found))
                    yield found
    yield from _crossed(rule)


def _changes(rule: Rule, side: tuple[Op, ...], i: int, op: Op) -> Iterator[Op]:
    for kind in PEERS.get(op.kind, ()):
        yield replace(op, kind=kind)
    params = dict(op.params)
    for key, values in (
        ("axis", range(4)), ("dim", range(3)), ("degree", (2, 3, 4)), ("activation", (0, 2)),
        ("stride_h", (1, 2)), ("padding", (0, 1)),
    ):  # fmt: skip
        for value in values if key in params else ():
            if value != params[key]:
                yield replace(op, params=tuple(sorted({**params, key: value}.items())))
    if len(op.inputs) == 2:
        yield replace(op, inputs=(op.inputs[1], op.inputs[0]))
    values = list(rule.inputs())
    values += [Ref(j, k) for j in range(i) for k in range(2 if side[j].kind == "split" else 1)]
    for position, ref in itertools.product(range(len(op.inputs)), values):
        if ref != op.inputs[position]:
            inputs = (*op.inputs[:position], ref, *op.inputs[position + 1 :])
            yield replace(op, inputs=inputs)


def _crossed(rule: Rule) -> Iterator[Rule]:
    """Two outputs mapped the wrong way round."""
    if len(rule.outputs) == 2:
        (a, b), (c, d) = rule.outputs
        yield replace(rule, outputs=((a, d), (c, b)))
