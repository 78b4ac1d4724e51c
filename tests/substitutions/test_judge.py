"""Verdicts on the published rules: against JAX, against the typing, against mutants."""

from __future__ import annotations

import functools
import random

import pytest

from substitutions import Op, Ref, Rule, Verdict, judge
from substitutions.verify.judge import ACCEPTED, judge_all
from tests.substitutions.jax_meaning import reproduces
from tests.substitutions.mutants import mutants
from tests.substitutions.published import CONVERTED, EQUATIONS, FLEXFLOW, TASO, rules, verdicts

MUTANTS = 20  # of each file; all of them in benchmarks/rules.py


@functools.cache
def disproved() -> tuple[tuple[Rule, Verdict], ...]:
    """Rules with a counterexample."""
    return tuple(
        (rule, found)
        for name in (FLEXFLOW, TASO, CONVERTED)
        for rule, found in zip(rules(name), verdicts(name), strict=True)
        if found.counterexample is not None
    )


def breaks_typing(op: Op) -> bool:
    """An op of a parallel rule on a kind of dimension that it does not take."""
    if op.kind in ("partition", "combine"):
        return op["dim"] == 0
    if op.kind in ("replicate", "reduce"):
        return op["dim"] != 0
    return op.kind in ("concat", "split") and op["axis"] == 0


def test_flexflow_rules_are_rejected_exactly_where_they_break_the_typing() -> None:
    for rule, found in zip(rules(FLEXFLOW), verdicts(FLEXFLOW), strict=True):
        ops = (*rule.source, *rule.target)
        ill = any(map(breaks_typing, ops)) or bool(rule.free_inputs())
        assert (found.verdict == "ill-formed") == ill, rule.name
        assert found.accepted or ill, rule.name


def test_a_free_input_is_called_as_in_its_file() -> None:
    seen = 0
    for rule, found in zip(rules(FLEXFLOW), verdicts(FLEXFLOW), strict=True):
        if found.reason.startswith("only one side reads"):
            named = found.reason.removeprefix("only one side reads ").split(", ")
            assert sorted(named) == list(rule.free_inputs()), rule.name
            seen += 1
    assert seen > 100


@pytest.mark.exhaustive
def test_equations_are_rejected_exactly_where_an_input_is_free() -> None:
    for rule, found in zip(rules(EQUATIONS), verdicts(EQUATIONS), strict=True):
        assert (found.verdict == "ill-formed") == bool(rule.free_inputs()), rule
        assert found.accepted != bool(rule.free_inputs()), rule


def test_every_rule_of_taso_holds_under_its_condition() -> None:
    assert {found.verdict for found in verdicts(TASO)} <= set(ACCEPTED)


@pytest.mark.parametrize("wanted", [pytest.param(10**6, marks=pytest.mark.exhaustive, id="all"), 8])
def test_counterexamples_are_reproduced_by_jax(wanted: int) -> None:
    cases = disproved()
    for rule, found in cases[:: max(1, len(cases) // wanted)]:
        assert found.counterexample is not None
        assert reproduces(rule, found.counterexample), rule.name


def accepted_mutants(name: str) -> list[Rule]:
    """Mutants of accepted rules, in a random order."""
    pairs = zip(rules(name), verdicts(name), strict=True)
    found = [mutant for rule, verdict in pairs if verdict.accepted for mutant in mutants(rule)]
    random.Random(name).shuffle(found)
    return found


@pytest.mark.parametrize(
    "name", [FLEXFLOW, TASO, CONVERTED, pytest.param(EQUATIONS, marks=pytest.mark.exhaustive)]
)
def test_mutants_are_refuted_or_true(name: str) -> None:
    """JAX sees each false one differ; a proof never meets numbers that contradict it."""
    seen: set[str] = set()
    for mutant in accepted_mutants(name)[:MUTANTS]:
        found = judge(mutant)
        seen.add(found.verdict)
        assert "yet the sides differ" not in found.reason, mutant
        if found.counterexample is not None:
            assert reproduces(mutant, found.counterexample), mutant
    assert "false" in seen


def plain(name: str, source: tuple[Op, ...], target: tuple[Op, ...], rank: int = 2) -> Rule:
    outputs = ((Ref(len(source) - 1), Ref(len(target) - 1)),)
    names = sorted({r.name for op in (*source, *target) for r in op.inputs if r.op < 0})
    return Rule(name, source, target, outputs, tuple((n, rank) for n in names))


X, Y = Ref(-1, 0, "x"), Ref(-1, 0, "y")


def test_a_false_rule_has_a_small_counterexample() -> None:
    found = judge(plain("swap", (Op("matmul", (X, Y), (("activation", 0),)),),
                        (Op("matmul", (Y, X), (("activation", 0),)),)))  # fmt: skip
    assert found.verdict == "false"
    assert found.counterexample is not None
    assert max(max(shape) for shape in found.counterexample["shapes"].values()) <= 2


def test_relu_has_no_property_but_that_twice_is_once() -> None:
    add = Op("add", (X, Y))
    relu = (Op("relu", (X,)), Op("relu", (Y,)), Op("add", (Ref(0), Ref(1))))
    assert judge(plain("sum", (add, Op("relu", (Ref(0),))), relu)).verdict == "false"
    twice = (Op("relu", (X,)), Op("relu", (Ref(0),)))
    assert judge(plain("twice", twice, (Op("relu", (X,)),))).verdict == "proved"


def test_what_only_real_relu_could_refute_is_not_accepted() -> None:
    """relu(x) * relu(x) = relu(x) * x is true of relu and of no other function: not proved."""
    source = (Op("relu", (X,)), Op("mul", (Ref(0), Ref(0))))
    target = (Op("relu", (X,)), Op("mul", (Ref(0), X)))
    assert judge(plain("square", source, target)).verdict == "unknown"


def parallel(source: tuple[Op, ...], target: tuple[Op, ...]) -> Rule:
    outputs = ((Ref(len(source) - 1), Ref(len(target) - 1)),)
    names = sorted({r.name for op in (*source, *target) for r in op.inputs if r.op < 0})
    return Rule("parallel", source, target, outputs, tuple((n, 2) for n in names), parallel=True)


def op(kind: str, x: Ref, dim: int, degree: int) -> Op:
    return Op(kind, (x,), (("degree", degree), ("dim", dim)))


def test_reduce_of_replicas_is_no_identity() -> None:
    source = (op("replicate", X, 0, 2), op("reduce", Ref(0), 0, 2))
    assert judge(parallel(source, (Op("relu", (X,)),))).verdict == "false"


def test_row_parallel_is_derived_for_any_degree() -> None:
    linear = (Op("linear", (X, Y), (("activation", 0),)),)
    cut = (
        op("partition", X, 2, 2), op("partition", Y, 2, 2),
        Op("linear", (Ref(0), Ref(1)), (("activation", 0),)), op("reduce", Ref(2), 0, 2),
    )  # fmt: skip
    found = judge(parallel(linear, cut))
    assert found.verdict == "proved-with-condition"
    assert "divides size(x, 2)" in found.condition
    assert judge(parallel(cut, linear)).verdict == "proved"


def test_degrees_of_different_size_are_independent() -> None:
    source = (op("partition", X, 1, 2), op("partition", Ref(0), 1, 3))
    target = (op("partition", X, 1, 3), op("partition", Ref(0), 1, 2))
    assert judge(parallel(source, target)).verdict == "proved"
    once = (op("partition", X, 1, 2), op("partition", Ref(0), 1, 2))
    assert judge(parallel(once, (op("partition", X, 1, 4),))).verdict == "proved"


def test_verdicts_do_not_depend_on_names_or_order() -> None:
    chosen = rules(TASO)[90:100]
    backwards = list(judge_all(chosen[::-1]))[::-1]
    assert [said(v) for v in judge_all(chosen)] == [said(v) for v in backwards]


def said(found: Verdict) -> tuple[object, ...]:
    return found.name, found.verdict, found.condition, found.counterexample
