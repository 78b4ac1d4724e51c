# pyright: basic
"""Every rule that programs can meet: it fires on a JAX program, and values stay what they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import check, digest
from ir.evaluate import plain_program
from ir.trace import trace
from planner.sharding.rewrite.retrace import retraced
from substitutions import CATALOGUE, Row, apply, draft_of, find, judge_row, patterns
from substitutions.ops import STRIDES
from substitutions.verify.judge import ACCEPTED
from tests.substitutions.rewritten_programs import PROGRAMS, numbers

OFTEN = ("merge-three-projections", "merge-k", "unfold-low-rank", "merge-lookups")
ROWS = {row.name: row for members in CATALOGUE.values() for row in members}


def rewritten(traced, rules):
    """The program with the first of some rules that fits at all of its places, and at how many."""
    draft, total = draft_of(traced.graph), 0
    for rule in rules:
        places = find(draft, [rule])
        for depth in sorted({len(place.prefix) for place in places}):
            draft, count = apply(draft, [p for p in places if len(p.prefix) == depth])
            total += count
            places = find(draft, [rule]) if count else places
    return draft, total


def agree(before, after, args):
    """Whether two programs have equal results: floats within rounding, all else exactly."""
    left, right = (jax.jit(plain_program(t.program))(*args) for t in (before, after))
    for a, b in zip(left, right, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jnp.floating):
            scale = float(jnp.max(jnp.abs(a.astype(jnp.float32)), initial=1.0))
            eps = float(jnp.finfo(a.dtype).eps)
            np.testing.assert_allclose(
                np.asarray(a, np.float32), np.asarray(b, np.float32), atol=64 * eps * scale, rtol=0
            )
        else:
            assert (np.asarray(a) == np.asarray(b)).all()


def test_every_rule_of_one_device_has_a_program() -> None:
    """The others split values over devices: the planner decides that by strategies and states."""
    assert set(patterns()) == set(PROGRAMS) == {n for n, row in ROWS.items() if not row.parallel}
    kinds = ("partition", "combine", "replicate", "reduce")
    assert all(any(k in r.left + r.right for k in kinds) for r in ROWS.values() if r.parallel)


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_rule_fires_and_keeps_values(rule: str) -> None:
    fn, args = PROGRAMS[rule]
    traced = trace(fn, *args)
    draft, count = rewritten(traced, [rule])
    assert count
    assert digest(draft.graph) != digest(traced.graph)
    after = retraced(traced, draft)
    assert digest(after.graph) == digest(draft.graph)
    agree(traced, after, numbers(args))


def fires_beside_gradients(rule):
    """The rule in the body of a loop that is differentiated: the program, rewritten, numbers."""
    fn, args = PROGRAMS[rule]

    def loss(*xs):
        def body(carry, _):
            found = jax.tree.leaves(fn(*[x + carry.astype(x.dtype) for x in xs]))
            return carry + 1e-3 * sum(jnp.sum(jnp.sin(y.astype(jnp.float32))) for y in found), None

        return lax.scan(body, jnp.float32(0), None, length=2)[0]

    floats = tuple(k for k, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating))
    traced = trace(jax.value_and_grad(loss, argnums=floats), *args)
    draft, count = rewritten(traced, [rule])
    assert count
    check(draft.graph, after="rewriting")
    return traced, retraced(traced, draft), numbers(args)


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_rule_fires_inside_a_loop_and_beside_gradients(rule: str) -> None:
    before, after, given = fires_beside_gradients(rule)
    if rule in OFTEN:
        agree(before, after, given)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", [rule for rule in PROGRAMS if rule not in OFTEN])
def test_other_rules_keep_values_inside_a_loop_and_beside_gradients(rule: str) -> None:
    agree(*fires_beside_gradients(rule))


def windows() -> list[tuple[int, int, int]]:
    return [(h, w, padding) for h in STRIDES for w in STRIDES for padding in (0, 1)]


def with_window(row: Row, window: tuple[int, int, int]) -> Row:
    """The row with other strides and padding in all of its convolutions."""
    text = f"conv[0, {window[0]}, {window[1]}, {window[2]}]("
    left, right = (side.replace("conv(", text) for side in (row.left, row.right))
    return Row(row.name, left, right, row.ranks)


@pytest.mark.parametrize("window", [(1, 2, 0), (3, 1, 1)])
@pytest.mark.parametrize("rule", [n for n, row in ROWS.items() if "conv(" in row.left])
def test_convolutions_are_proved_for_other_windows(rule, window) -> None:
    assert judge_row(with_window(ROWS[rule], window)).verdict in ACCEPTED


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", [n for n, row in ROWS.items() if "conv(" in row.left])
def test_convolutions_are_proved_for_all_windows(rule) -> None:
    for window in windows():
        assert judge_row(with_window(ROWS[rule], window)).verdict in ACCEPTED, window
