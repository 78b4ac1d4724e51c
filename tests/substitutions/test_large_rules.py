"""Rules that are small on paper and large when written out end, undecided."""

from __future__ import annotations

import pytest

from substitutions import Op, Ref, Rule, judge
from substitutions.rule import MOST_OPS

X, Y = Ref(-1, 0, "x"), Ref(-1, 0, "y")


def doubled(kind: str, params: tuple[tuple[str, int], ...] = ()) -> tuple[Op, ...]:
    """Ops of which each reads the one before, twice where it can."""
    ops: list[Op] = []
    for i in range(MOST_OPS):
        last = Ref(i - 1) if i else X
        inputs = (last,) if kind == "partition" else (last, last)
        ops.append(Op(kind, inputs, params))
    return tuple(ops)


def rule(left: tuple[Op, ...], right: tuple[Op, ...], *, parallel: bool = False) -> Rule:
    last = Ref(MOST_OPS - 1)
    return Rule("large", left, right, ((last, last),), (("x", 2), ("y", 2)), parallel)


LARGE = {
    "sums": rule(doubled("add"), (Op("add", (X, X)), *doubled("add")[1:])),
    "products": rule(
        (Op("add", (X, Y)), *doubled("mul")[1:]), (Op("add", (Y, X)), *doubled("mul")[1:])
    ),
    "joins": rule(
        doubled("concat", (("axis", 0),)), doubled("concat", (("axis", 0),))
    ),
    "degrees": rule(
        doubled("partition", (("degree", 63), ("dim", 1))),
        doubled("partition", (("degree", 64), ("dim", 1))), parallel=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_rule_that_is_too_large_is_not_decided(name: str) -> None:
    found = judge(LARGE[name])
    assert found.verdict == "unknown"
    assert found.reason
