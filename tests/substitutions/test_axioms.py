"""Axioms: true for all sizes by the prover, and on numbers by JAX; saturation agrees with it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from substitutions import Rule
from substitutions.axioms import AXIOMS, CONDITIONAL, Axiom
from substitutions.verify.falsify import domain, refute
from substitutions.verify.prove import Case, Proof, degree_cases, kernel_choices, prove
from substitutions.verify.sample import draw_inputs
from substitutions.verify.saturate import saturates
from tests.substitutions.jax_meaning import outputs
from tests.substitutions.logical_devices import difference, placed
from tests.substitutions.published import FLEXFLOW, TASO, rules, verdicts


def directed(axioms: Sequence[Axiom]) -> tuple[Rule, ...]:
    """The axioms as rules, each way that holds without a condition."""
    return tuple(rule for axiom in axioms for way in axiom.ways for rule in axiom.rules(way))


def redundant(axioms: Sequence[Axiom]) -> tuple[str, ...]:
    """Axioms that the other ones prove, within the limits."""
    found: list[str] = []
    for axiom in axioms:
        others = directed([o for o in axioms if o.name not in (axiom.name, *found)])
        if all(saturates(rule, others) for rule in axiom.rules()):
            found.append(axiom.name)
    return tuple(found)


USED = directed(AXIOMS)
EVERY = {axiom.name: axiom for axiom in AXIOMS}


def proofs(rule: Rule) -> list[Proof]:
    degrees = next(iter(degree_cases(rule)))
    return [prove(rule, Case(degrees, kernels=kernels)) for kernels in kernel_choices(rule)]


@pytest.mark.parametrize("name", EVERY)
def test_holds_without_a_condition_where_it_says(name: str) -> None:
    for way in EVERY[name].ways:
        for rule in EVERY[name].rules(way):
            assert all(proof.proved and not proof.conditions for proof in proofs(rule)), rule


@pytest.mark.parametrize("name", CONDITIONAL)
def test_does_not_hold_so_where_it_does_not_say(name: str) -> None:
    for way in "<>":
        for rule in EVERY[name].rules(way):
            assert not all(proof.proved and not proof.conditions for proof in proofs(rule)), rule


@pytest.mark.parametrize("name", ["conv-enlarge", "concat-conv-outputs", "concat-conv-inner"])
def test_published_axioms_that_not_every_convolution_obeys(name: str) -> None:
    """TASO states these three for all convolutions: grouped ones and even kernels refute them."""
    both = [rule for way in "<>" for rule in EVERY[name].rules(way)]
    cases = [(rule, Case((), kernels=choice)) for rule in both for choice in kernel_choices(rule)]
    found = (domain(rule, case, partly=True) for rule, case in cases)
    assert any(refute(where) for where in found if where)


def instances(axiom: Axiom, count: int) -> Iterator[tuple[Rule, bool]]:
    """Rules of an axiom with whether JAX computes the same for both sides."""
    for rule in axiom.rules(axiom.ways[:1] or ">"):
        for kernels in list(kernel_choices(rule))[: 1 + count // 4]:
            case = Case(next(iter(degree_cases(rule))), kernels=kernels)
            where = domain(rule, case)
            assert where is not None
            for values in where.draws(random.Random(len(kernels)), count):
                made = where.instance(values)
                assert made is not None
                degrees = dict(made.degrees)
                arrays = {
                    key: placed(array, degrees[key], {})
                    for key, array in draw_inputs(made, 0, 3).items()
                }
                constants = {
                    side: {str(i): shape for i, shape in shapes.items()}
                    for side, shapes in zip(("source", "target"), made.constants, strict=True)
                }
                left, right = outputs(made.rule, arrays, constants)
                yield made.rule, not any(map(difference, left, right))


TRUE = tuple(name for name, axiom in EVERY.items() if axiom.ways)


@pytest.mark.parametrize("name", TRUE[::4])
def test_jax_computes_the_same_for_both_sides(name: str) -> None:
    assert all(same for _, same in instances(EVERY[name], 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRUE)
def test_jax_computes_the_same_for_both_sides_of_every_axiom(name: str) -> None:
    assert all(same for _, same in instances(EVERY[name], 24))


@pytest.mark.parametrize("name", [FLEXFLOW, TASO])
def test_saturation_proves_only_what_the_normal_form_proves(name: str) -> None:
    """Two provers that share nothing agree, and saturation proves most rules too."""
    pairs = list(zip(rules(name), verdicts(name), strict=True))
    good = [rule for rule, found in pairs if found.accepted][::12]
    assert sum(saturates(rule, USED) for rule in good) > len(good) // 2
    false = [rule for rule, found in pairs if rule.parallel and not found.accepted][::40]
    for rule in false:
        broken = not rule.free_inputs() and saturates(rule, USED)
        assert not broken, rule


def test_without_axioms_nothing_is_proved() -> None:
    pairs = zip(rules(TASO), verdicts(TASO), strict=True)
    assert not any(saturates(rule, ()) for rule, found in list(pairs)[::10] if found.accepted)


def test_a_consequence_is_redundant() -> None:
    swapped = Axiom("swapped", "add(add(x, y), z)", "add(z, add(y, x))")
    chosen = [EVERY["add-assoc"], EVERY["add-comm"], swapped]
    assert redundant(chosen) == ("swapped",)
