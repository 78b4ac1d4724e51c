# pyright: basic
"""Lookups under rules: every mode, element type and index gives what the program gave."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import check
from ir.evaluate import plain_program
from ir.trace import trace
from planner import plan
from planner.sharding.rewrite.retrace import retraced
from substitutions import apply, draft_of, find

MODES = {
    "clip": ("clip", None),
    "fill": ("fill", None),
    "fill-nan": ("fill", np.nan),
    "fill-number": ("fill", 3),
}
TYPES = ("int8", "float32")
ASKED = np.array([0, -1, 4, 5, -6, 127, -128], "int8")


def rows(table, index, mode, fill):
    """Rows as `gather` takes them, negative indices not turned into others."""
    if fill is not None and not jnp.issubdtype(table.dtype, jnp.floating):
        fill = 3
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(
        table, index[:, None], numbers, (1, *table.shape[1:]), mode=mode, fill_value=fill
    )


# rule -> program of (table, its columns, indices, how to look up)
LOOKUPS = {
    "cast-rows": lambda t, w, i, at: rows(t, i, *at).astype("bfloat16"),
    "cast-less-rows": lambda t, w, i, at: rows(t.astype("bfloat16"), i, *at),
    "merge-lookups": lambda t, w, i, at: (rows(t, i, *at), rows(t, i[::2], *at)),
    "lookup-after-product": lambda t, w, i, at: rows(t, i, *at) @ w,
    "lookup-before-product": lambda t, w, i, at: rows(
        lax.dot(t, w, preferred_element_type="float32"), i, *at
    ),
    "lookup-after-relu": lambda t, w, i, at: jnp.maximum(rows(t, i, *at), 0),
    "lookup-of-columns": lambda t, w, i, at: rows(jnp.concatenate([t, t[:, :1]], 1), i, *at),
    "merge-tables": lambda t, w, i, at: jnp.concatenate(
        [rows(t, i, *at), rows(t[:, :1], i, *at)], 1
    ),
}


def both(rule, fn, args):
    """Results before and after a rule, and how often it fired."""
    traced = trace(fn, *args)
    draft = draft_of(traced.graph)
    draft, count = apply(draft, find(draft, [rule]))
    check(draft.graph, after="rewriting")
    after = retraced(traced, draft)
    found = [plain_program(t.program)(*t.program.consts, *args) for t in (traced, after)]
    return (*found, count)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", LOOKUPS)
def test_rows_that_are_not_there_stay_what_they_were(rule, mode, dtype) -> None:
    table = np.arange(-6, 9).reshape(5, 3).astype(dtype)
    weight = np.array([[1, 0], [2, -1], [0, 3]]).astype(dtype)
    how = MODES[mode]
    before, after, count = both(
        rule, lambda t, w, i: LOOKUPS[rule](t, w, i, how), (table, weight, ASKED)
    )
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, "float64"), np.asarray(b, "float64"))
    if how[0] != "fill" and (dtype == "float32" or "product" not in rule):
        assert count


def test_a_sum_of_no_products_does_not_keep_nan() -> None:
    at = ("fill", None)
    empty = np.zeros((4, 0), "float32"), np.zeros((0, 2), "float32"), np.array([0, 9])
    for rule in ("lookup-after-product", "lookup-before-product"):
        before, after, _ = both(rule, lambda t, w, i, rule=rule: LOOKUPS[rule](t, w, i, at), empty)
        np.testing.assert_array_equal(np.asarray(before[0]), np.asarray(after[0]))


def test_what_cannot_be_joined_is_left_alone() -> None:
    table = np.arange(8, dtype="float32").reshape(4, 2)
    _, _, count = both(
        "merge-lookups",
        lambda t, i, j: (rows(t, i, "clip", None), rows(t, j, "clip", None)),
        (table, np.array([1, 9], "int32"), np.array([255], "uint8")),
    )
    assert not count
    _, _, count = both(
        "cast-whole",
        lambda x, y: jnp.concatenate([x.astype("float16"), y.astype("float16")]),
        (table[0], np.arange(3, dtype="int32")),
    )
    assert not count


def test_negative_zero_is_another_relu() -> None:
    zeros = np.array([[-0.0, 0.0]], "float32")
    _, _, count = both("transpose-after-relu", lambda x: lax.max(x.T, jnp.float32(-0.0)), (zeros,))
    assert not count
    whole = np.arange(-3, 3, dtype="int32").reshape(2, 3)
    before, after, count = both("transpose-after-relu", lambda x: jnp.maximum(x.T, 0), (whole,))
    assert count
    np.testing.assert_array_equal(np.asarray(before[0]), np.asarray(after[0]))


@pytest.mark.parametrize("precision", [("highest", "default"), ("default", "highest")])
def test_precision_of_one_operand_stays_with_it(precision) -> None:
    def fn(x, y):
        return lax.transpose(lax.dot(x, y, precision=precision), (1, 0))

    args = np.ones((2, 3), "float32"), np.ones((3, 4), "float32")
    assert not both("transpose-product", fn, args)[2]


@pytest.mark.parametrize(("mode", "rules"), [("clip", {"cast-less-rows": 1}), ("fill", {})])
def test_a_plan_keeps_what_take_fills_in(mode, rules) -> None:
    table = jax.ShapeDtypeStruct((200_000, 256), "int8")
    asked = jax.ShapeDtypeStruct((64,), "int32")
    fn = lambda t, i: jnp.take(t.astype("float32"), i, axis=0, mode=mode) * 0.5  # noqa: E731
    assert plan(fn, table, asked, cluster="host", baselines=False).substitutions == rules
