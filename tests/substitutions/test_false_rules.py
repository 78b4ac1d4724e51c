# pyright: basic
"""False rules that were made without the prover: none is accepted; JAX sees them differ too."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from substitutions import judge
from tests.substitutions.computes import JAX
from tests.substitutions.conditions import holds
from tests.substitutions.false_rules import CHANGES, FalseRule, false_rules, shown_false, true_rules
from tests.substitutions.jax_meaning import RefusedError, outputs
from tests.substitutions.logical_devices import difference

SEED, COUNT = 11, 50
MANY = 2000


def refuse(made: FalseRule) -> None:
    found = judge(made.rule)
    assert not made.accepted(found), (made.change, made.rule, found, made.example.difference)
    assert found.verdict != "proved", made.rule


def test_false_rules_are_not_accepted() -> None:
    made = list(islice(false_rules(SEED), COUNT))
    assert {each.change for each in made} > set(CHANGES) - {"another part", "dropped scale"}
    assert sum(each.example.typed for each in made) > COUNT // 2
    for each in made:
        refuse(each)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20, 24))
def test_many_false_rules_are_not_accepted(seed: int) -> None:
    for each in islice(false_rules(seed), MANY):
        refuse(each)


def test_jax_sees_false_rules_differ() -> None:
    for made in islice(false_rules(SEED), 16):
        try:
            source, target = outputs(made.rule, made.example.inputs, made.example.constants, JAX)
        except RefusedError:
            assert not made.example.typed
            continue
        assert any(map(difference, source, target)), made.rule


def test_true_rules_are_not_shown_false() -> None:
    own, rows, axioms, *_ = true_rules()
    rng = random.Random(SEED)
    chosen = [*own[::5], *rng.sample(list(rows), 12), *rng.sample(list(axioms), 8)]
    for rule in chosen:
        if judge(rule).verdict == "proved":
            assert shown_false(rule, rng, target_refused=True) is None, rule


def test_conditions_are_read() -> None:
    made = next(each for each in false_rules(SEED) if each.rule.parallel and each.example.typed)
    name, x = next((n, x) for n, x in made.example.inputs.items() if x.joins)
    axis, size, degree = 1, x.whole().shape[1], x.degrees[1]
    rule, example = made.rule, made.example
    assert holds(rule, "", example)
    assert holds(rule, f"size({name}, {axis}) = {size}", example)
    assert not holds(rule, f"size({name}, {axis}) = {size + 1}", example)
    assert holds(rule, f"degree({name}, {axis}) divides {degree * 6}", example)
    assert not holds(rule, f"{size + 1} divides size({name}, {axis})", example)
    assert not holds(rule, f"{degree} divides {degree} and 2 = 3", example)
    assert holds(rule, f"size({name}, {axis})'1 = 3", example)  # a name of the prover's own
