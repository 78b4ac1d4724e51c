# pyright: basic
"""Rules in models as they are written: each fires, and keeps what a training step returns."""

from __future__ import annotations

import pytest

from benchmarks.rule_models import FAMILIES
from benchmarks.rule_places import arrays, differs, everywhere, models, outcome
from ir.trace import trace
from planner.sharding.rewrite.retrace import retraced
from substitutions import draft_of, find, patterns
from tests.helpers_exhaustive import usual

# Of the largest element; results in 16 bits are rounded at other places.
TOLERANCE = {"mixed-precision": 0.05}


@pytest.mark.exhaustive
def test_every_rule_fires_in_a_model() -> None:
    fired: set[str] = set()
    for _, fn, args, _ in models(quick=False):
        left = [rule for rule in patterns() if rule not in fired]
        if left:
            fired |= {place.rule for place in find(draft_of(trace(fn, *args).graph), left)}
    assert fired == set(patterns())


# Their rules fire in the others, and in the programs of `test_rewrite_rules.py`; the last two are
# dear, and some of their rules fire there alone.
ALIKE = {"delta-tuning", "layer-scale", "tree-lstm", "clip", "mixed-precision"}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(FAMILIES, {*FAMILIES} - ALIKE))
def test_a_training_step_returns_the_same_after_every_rule(name: str) -> None:
    fn, args = next((fn, args) for family, fn, args, _ in models(quick=True) if family == name)
    traced, values = trace(fn, *args), arrays(args)
    draft, before = draft_of(traced.graph), outcome(trace(fn, *args), values)
    assert any(abs(x).max() > 1e-3 for x in before)
    for rule in sorted({place.rule for place in find(draft, patterns())}):
        after, count = everywhere(draft, rule)
        if count:
            found = differs(before, outcome(retraced(traced, after), values))
            assert found <= TOLERANCE.get(name, 1e-4), rule
