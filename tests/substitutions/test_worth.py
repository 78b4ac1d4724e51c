# pyright: basic
"""What rules are worth: derived of the rule, and held against exact arithmetic and JAX."""

from __future__ import annotations

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from substitutions import CATALOGUE, RuleError, Worth, judge, judge_row, worth_of_row
from substitutions.numeric import machine
from substitutions.text import rule_of_text
from substitutions.verify import worth
from substitutions.verify.falsify import domain
from tests.substitutions.published import FLEXFLOW, verdicts

ROWS = {row.name: row for members in CATALOGUE.values() for row in members}


def worth_of(source: str, target: str) -> Worth:
    found = judge(rule_of_text("rule", source, target, dict.fromkeys("xyz", 2))).worth()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("source", "target", "floats", "integers"),
    [
        ("sub(add(x, y), y)", "x", "unbounded", "exact"),
        ("div(mul(x, y), z)", "mul(x, div(y, z))", "unbounded", "unbounded"),
        ("add(sub(x, y), sub(y, x))", "sub(x, x)", "unbounded", "exact"),
        ("exp(mul(x, add(y, z)))", "exp(add(mul(x, y), mul(x, z)))", "unbounded", "unbounded"),
        ("add(add(x, y), z)", "add(x, add(y, z))", "reassociated", "exact"),
        ("mul(mul(x, y), z)", "mul(x, mul(y, z))", "reassociated", "exact"),
        ("mul(x, add(y, z))", "add(mul(x, y), mul(x, z))", "bounded", "exact"),
        ("relu(mul(x, add(y, z)))", "relu(add(mul(x, y), mul(x, z)))", "bounded", "exact"),
        ("matmul(x, identity-matrix)", "x", "bounded", "exact"),
        ("mul(x, ones)", "x", "exact", "exact"),
        ("add(x, y)", "add(y, x)", "exact", "exact"),
        ("neg(neg(x))", "x", "exact", "exact"),
        ("relu(relu(x))", "relu(x)", "exact", "exact"),
        ("exp(transpose(x))", "transpose(exp(x))", "exact", "exact"),
    ],
)  # fmt: skip
def test_worth_follows_from_the_terms(source: str, target: str, floats: str, integers: str) -> None:
    found = worth_of(source, target)
    assert (found.floats, found.integers) == (floats, integers)
    assert bool(found.bound) == (floats in ("reassociated", "bounded"))


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_the_catalogue_is_what_is_derived(name: str) -> None:
    assert judge(next(ROWS[name].rules())).worth() == worth_of_row(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ROWS)
def test_the_table_holds_for_every_rank(name: str) -> None:
    assert judge_row(ROWS[name]).worth() == worth_of_row(name)


def test_a_row_of_which_nothing_is_said_is_an_error() -> None:
    with pytest.raises(RuleError, match="judge_row"):
        worth_of_row("no-such-rule")


def test_rules_that_are_not_accepted_have_none() -> None:
    assert judge(rule_of_text("no", "add(x, y)", "mul(x, y)", {"x": 1, "y": 1})).worth() is None


def test_published_rules_have_one_each() -> None:
    found = [verdict for verdict in verdicts(FLEXFLOW) if verdict.accepted][::6]
    counts = {kind: sum(str(v.worth()).startswith(kind) for v in found)
              for kind in ("exact", "reassociated", "bounded")}  # fmt: skip
    assert sum(counts.values()) == len(found)
    assert all(counts.values())


@pytest.mark.parametrize(
    ("source", "target"),
    [("matmul(matmul(x, y), z)", "matmul(x, matmul(y, z))"),
     ("matmul(x, add(y, z))", "add(matmul(x, y), matmul(x, z))")],
)  # fmt: skip
def test_the_bound_holds_in_jax(source: str, target: str) -> None:
    """Against exact rationals, so that both sides' errors are seen whole."""
    found, rng = worth_of(source, target), np.random.default_rng(3)
    n = 4
    steps = found.ops + found.sums * n
    for _ in range(20):
        x, y, z = (rng.standard_normal((n, n)).astype("float32") for _ in range(3))
        y[:, 1], z[1] = -y[:, 0], -z[0]  # terms cancel
        if "add" in source:
            sides = x @ (y + z), jnp.asarray(x) @ y + jnp.asarray(x) @ z
            terms = np.abs(x).astype("float64") @ (np.abs(y) + np.abs(z))
        else:
            sides = (jnp.asarray(x) @ y) @ z, jnp.asarray(x) @ (jnp.asarray(y) @ z)
            terms = np.abs(x).astype("float64") @ np.abs(y) @ np.abs(z)
        a, b = (np.asarray(side, np.float64) for side in sides)
        assert (np.abs(a - b) <= steps * np.finfo("float32").eps * terms).all()


def test_numbers_overrule_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivation that says too much of a rule is contradicted by what machines compute."""
    rule = rule_of_text("rule", "mul(x, add(y, z))", "add(mul(x, y), mul(x, z))",
                        dict.fromkeys("xyz", 2))  # fmt: skip
    (_, case) = judge(rule).proof or (rule, None)
    assert case is not None
    assert domain(rule, case) is not None
    monkeypatch.setattr("substitutions.verify.worth._Written._one", lambda self, a, b: "exact")
    worth.worth_in.cache_clear()
    assert worth.worth_in(rule, case).floats == "unbounded"
    worth.worth_in.cache_clear()


@pytest.mark.parametrize("dtype", machine.FLOATS)
def test_short_floats_are_rounded_as_jax_rounds_them(dtype: str) -> None:
    m, rng = machine.Machine(dtype), np.random.default_rng(0)
    x, y = (m.array(rng.standard_normal(50) * 9) for _ in range(2))
    for ours, theirs in ((m.add(x, y), jnp.add(x, y)), (m.mul(x, y), jnp.multiply(x, y)),
                         (m.relu(-x), jnp.maximum(-x, 0))):  # fmt: skip
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.astype("float64"), np.asarray(theirs, "float64"))


def test_a_sum_is_what_it_is_in_rationals() -> None:
    m = machine.Machine("float32")
    values = m.array(np.array([0.1, 0.2, 0.3]))
    exact = sum((Fraction(float(v)) for v in values), Fraction(0))
    assert abs(Fraction(float(m.total(values, (0,)))) - exact) <= 3 * exact / 2**23


def test_row_numbers_that_are_computed_with_have_no_worth() -> None:
    both = "gather(x, i); mul(i, i)"
    rule = rule_of_text("rows", both, both, {"x": 2, "i": 1})
    assert judge(rule).worth() == Worth("unbounded", "unbounded")
