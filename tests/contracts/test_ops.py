# pyright: basic
"""Every record: it has an example, NumPy agrees with JAX, and each legal split is exact."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from ir.errors import doing
from ir.factors import FactorSpec
from ir.interpret import apply
from ir.opdef import FactorRule
from ir.ops.elementwise import pointwise
from ir.passing import passing_groups
from ir.placements import HOST_COPIES
from ir.table import OPS, lookup
from ir.types import TensorType, dtype_kind
from tests import helpers_split
from tests.helpers_internals import has_primitive
from tests.helpers_layouts import moving
from tests.helpers_split import (
    Call,
    Pairs,
    assert_same,
    calls_of,
    every_two,
    neighbours,
    no_two,
    plain_array,
    simulate,
    splits_of,
)
from tests.op_examples import computing

EXAMPLES = {f"{i}-{example.label}": example for i, example in enumerate((*computing(), *moving()))}
# JAX leaves whatever was in the upper triangle.
DEFINED = {"cholesky": np.tril}


@cache
def calls(label: str) -> tuple[Call, ...]:
    return tuple(calls_of(EXAMPLES[label]))


# Ops of newer versions of JAX.
LACKING = {n for n in ("log2", "one_minus_square", "polynomial") if not has_primitive(n)}


# Over a mesh of its own: tests/planner/api/test_shard_map.py; in pairs, as other ops do not take
# what is in the memory of the host: tests/planner/sharding/test_offload.py.
ELSEWHERE = {"shard_map", *HOST_COPIES}


def test_every_record_has_an_example() -> None:
    assert sorted(OPS) == sorted(
        {example.op for example in EXAMPLES.values()} | LACKING | ELSEWHERE
    )


def test_names_are_sorted_and_their_own() -> None:
    assert list(OPS) == sorted(OPS)
    assert all(record.name == name for name, record in OPS.items())


def test_an_unknown_op_is_left_whole() -> None:
    assert "no-such-op" not in OPS
    record = lookup("no-such-op")
    types = (TensorType((4, 6), "float32"), TensorType((), "int32"))
    spec = record.factors(types, types[:1], {})
    assert str(spec) == "o0d0! o0d1!,  -> r0d0! r0d1!"
    assert record.family == "opaque"


@pytest.mark.parametrize(
    "label", [label for label, example in EXAMPLES.items() if lookup(example.op).meaning]
)
def test_numpy_agrees_with_jax(label: str) -> None:
    for call in calls(label):
        found = apply(call.node, [plain_array(x) for x in call.operands])
        for mine, theirs in zip(found, call.results, strict=True):
            part = DEFINED.get(call.node.op, np.asarray)
            assert_same(part(mine), part(theirs), label, rtol=2e-3 if "gamma" in label else 1e-4)


@pytest.mark.parametrize("label", list(EXAMPLES))
def test_splits_are_exact(label: str) -> None:
    """Of each factor, and of neighbouring ones together."""
    for call in calls(label):
        check_splits(call, label)


@pytest.mark.exhaustive
@pytest.mark.parametrize("label", list(EXAMPLES))
def test_all_splits_of_two_factors_are_exact(label: str) -> None:
    for call in calls(label):
        check_splits(call, label, every_two)


def check_splits(call: Call, label: str, pairs: Pairs = neighbours) -> None:
    pairs = no_two if call.record.family == "elementwise" else pairs
    for mesh, axes in splits_of(call.spec, pairs):
        what = f"{label}: {call.spec} split as {axes} on {mesh}"
        with doing(what):
            found = simulate(call, mesh, axes)
        for mine, theirs in zip(found, call.results, strict=True):
            assert_same(mine, theirs, what, rtol=1e-4)


@pytest.mark.parametrize(
    ("op", "rule"),
    [("cumsum", pointwise), ("dot_general", OPS["dot_general"].factors), ("rev", pointwise)],
)
def test_a_wrong_record_would_be_found(
    op: str, rule: FactorRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the harness is worth: wrong factors, or factors all said to be plain, do not pass."""

    def careless(*given: Any) -> FactorSpec:
        return dataclasses.replace(rule(*given), kinds=())

    (call,) = calls(next(label for label in EXAMPLES if label.endswith(f"-{op}")))
    wrong = dataclasses.replace(OPS[op], factors=careless)
    monkeypatch.setattr(helpers_split, "lookup", lambda name: wrong)
    with pytest.raises(AssertionError):
        check_splits(call, op)


@pytest.mark.parametrize(
    "label", [label for label, example in EXAMPLES.items() if lookup(example.op).linear]
)
def test_linear_groups_keep_sums(label: str) -> None:
    for call in calls(label):
        record, rng = call.record, np.random.default_rng(0)
        assert record.linear is not None
        for group in record.linear(call.operand_types, call.node.outputs, dict(call.node.attrs)):
            first, second = list(call.operands), list(call.operands)
            for i in group:
                shift = jnp.asarray(rng.integers(-9, 9, first[i].shape), first[i].dtype)
                first[i], second[i] = shift, call.operands[i] - shift
            terms = zip(call.run(first, {}), call.run(second, {}), strict=True)
            for (a, b), expected in zip(terms, call.results, strict=True):
                wide = np.asarray(a + b, np.asarray(expected).dtype)
                short = any(
                    t.dtype == "bfloat16" for t in (*call.operand_types, *call.node.outputs)
                )
                np.testing.assert_allclose(
                    np.asarray(wide, np.complex128 if wide.dtype.kind == "c" else np.float64),
                    np.asarray(expected, np.complex128 if wide.dtype.kind == "c" else np.float64),
                    rtol=1e-1 if short else 1e-3,
                    atol=1e-1 if short else 1e-3,
                    err_msg=f"{label}: {group}",
                )


@pytest.mark.parametrize(
    "label", [label for label, example in EXAMPLES.items() if lookup(example.op).linear]
)
def test_terms_pass_whatever_the_other_operands_are(label: str) -> None:
    """Terms of both signs beside infinities, NaN, zeros and what is nearly too large."""
    for call in calls(label):
        floats = [i for i, t in enumerate(call.operand_types) if dtype_kind(t.dtype) == "float"]
        for group in passing_groups(call.node, call.operand_types):
            if not group or not set(group) <= set(floats):
                continue
            operands = [
                hostile(x) if i in floats and i not in group else x
                for i, x in enumerate(call.operands)
            ]
            first = [3 * x if i in group else x for i, x in enumerate(operands)]
            second = [-2 * x if i in group else x for i, x in enumerate(operands)]
            runs = [call.run(given, {}) for given in (operands, first, second)]
            for whole, one, other in zip(*runs, strict=True):
                found, expected = (np.asarray(x, np.complex128) for x in (one + other, whole))
                np.testing.assert_allclose(found, expected, rtol=1e-1, atol=1e-1, err_msg=label)


def hostile(x: Any) -> Any:
    """Of the same shape and type, of values that few functions bear."""
    values = np.array([np.inf, -np.inf, np.nan, 0.0, 3e38, -3e38])
    with np.errstate(over="ignore"):
        return jnp.asarray(np.resize(values, x.shape), x.dtype)


@pytest.mark.parametrize("label", list(EXAMPLES))
def test_flops_are_whole_and_not_negative(label: str) -> None:
    for call in calls(label):
        if call.record.flops is not None:
            flops = call.record.flops(call.operand_types, call.node.outputs, dict(call.node.attrs))
            assert isinstance(flops, int)
            assert flops >= 0
