# pyright: basic
"""Random programs on sizes that do not divide, with dimensions padded: equal to the unpadded."""

from __future__ import annotations

import pytest

from benchmarks.fuzz.case import BAD, Case, padded_case, run
from benchmarks.fuzz.program import Argument, Program, Step
from planner.sharding.padding.nodes import Writer

SEED, SLICE, WHOLE = 7, range(3), range(500)
TOTAL = Program(
    (Argument((5, 4), "float32"),),
    (Step("exp", (0,)), Step("reduce_sum", (1,), {"axes": [0, 1]})), (2,),
)  # fmt: skip


def test_a_slice_of_padded_programs_is_right() -> None:
    outcomes = {number: run(padded_case(SEED, number)) for number in SLICE}
    assert {n: o.reason for n, o in outcomes.items() if o.verdict in BAD} == {}
    assert sum(o.verdict in ("right", "rounding") for o in outcomes.values()) >= 2


@pytest.mark.exhaustive
def test_500_padded_programs_are_right() -> None:
    outcomes = {number: run(padded_case(SEED, number)) for number in WHOLE}
    assert {n: o.reason for n, o in outcomes.items() if o.verdict in BAD} == {}


def test_padding_that_is_not_hidden_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case(TOTAL, (2,), 0, pad=seed) for seed in range(1, 4)]
    assert {run(case).verdict for case in cases} <= {"right", "rounding"}
    monkeypatch.setattr(Writer, "filled", lambda self, x, sizes, fill, like: x)
    assert "wrong" in {run(case).verdict for case in cases}
