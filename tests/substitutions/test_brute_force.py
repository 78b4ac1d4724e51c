"""Proved rules on random shapes that no solver chose: a third way to the same answer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from substitutions import Rule
from substitutions.numeric.arrays import Field, NotTypedError
from substitutions.numeric.devices import Run, Tensor, tensor
from substitutions.ops import CONSTANTS
from substitutions.verify.concrete import evaluate
from tests.substitutions.published import FLEXFLOW, TASO, rules, verdicts

TRIES = 1500
ENOUGH = 3  # typed instances of each rule


def proved(name: str) -> list[Rule]:
    """Rules that are said to hold wherever their source is well-typed."""
    return [
        rule
        for rule, found in zip(rules(name), verdicts(name), strict=True)
        if found.verdict == "proved"
        and not any(op.kind in CONSTANTS for op in (*rule.source, *rule.target))
    ]


def random_inputs(rule: Rule, rng: random.Random, seed: int) -> dict[str, Tensor]:
    """Inputs whose sizes and degrees are drawn from few values, so that they often fit."""
    sizes = rng.choices([1, 2, 3, 4, 6], k=2)
    degrees = [1, 1, rng.choice([1, 2, 3])]
    found: dict[str, Tensor] = {}
    for name, rank in rule.ranks:
        held = rng.choices(degrees, k=rank + 1) if rule.parallel else [1] * (rank + 1)
        shape = [held[0]]
        for degree in held[1:]:
            more = degree * rng.choice([1, 2]) if rule.parallel else 1
            shape.append(rng.choice(sizes) * more)
        values = np.random.default_rng(seed).integers(-9, 9, size=shape)
        found[name] = tensor(Field(seed).array(values), held)
    return found


@pytest.mark.parametrize("name", [FLEXFLOW, TASO])
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_where_the_source_is_typed_so_is_the_target_and_equal(name: str, part: int) -> None:
    chosen = proved(name)
    for rule in chosen[::8] if part == 0 else chosen:
        rng, typed = random.Random(5), 0
        for seed in range(TRIES):
            run = Run(Field(seed), rule.parallel)
            try:
                given = random_inputs(rule, rng, seed)
                source = evaluate(rule.source, given, run, {})
            except NotTypedError:
                continue
            target = evaluate(rule.target, given, run, {})
            for a, b in rule.outputs:
                left, right = source[a.op][a.output], target[b.op][b.output]
                assert left.degrees == right.degrees, rule
                np.testing.assert_array_equal(left.whole, right.whole, err_msg=str(rule))
            typed += 1
            if typed == ENOUGH:
                break
        assert typed, rule
