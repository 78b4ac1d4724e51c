# pyright: basic
"""Random programs under random plans: the machine finds what is wrong, and finds it again."""

from __future__ import annotations

import jax
import msgspec
import pytest

from benchmarks.fuzz.case import Case, random_case, run
from benchmarks.fuzz.program import Argument, Program, Step, encoded
from benchmarks.fuzz.shrink import shrunk
from planner.emit import index, steps

ROWS = Step("take", (0, 1), {"dim": 0, "mode": "clip"})
LOOKUP = Program((Argument((8, 4), "float32"), Argument((6,), "int32")), (ROWS,), (2,))
SCALED = Program(LOOKUP.arguments, (ROWS, Step("tanh", (2,)), Step("mul", (3, 3))), (3, 4))


def test_cases_are_the_same_for_the_same_seed() -> None:
    first, again, other = (random_case(seed, 5) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_case_survives_its_file() -> None:
    case = random_case(1, 2)
    assert msgspec.json.decode(encoded(case), type=Case) == case


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of a lookup take their neighbours' rows for their own."""
    monkeypatch.setattr(index, "shift", lambda op, state, dim, size: jax.numpy.int32(0))


def outcomes(program: Program, draws: int = 6) -> set[str]:
    return {run(Case(program, (2,), draw)).verdict for draw in range(draws)}


def test_a_wrong_emission_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcomes(SCALED, 3) <= {"right", "rounding"}
    broken(monkeypatch)
    cases = (Case(SCALED, (2, 2), draw) for draw in range(20))
    bad = next(case for case in cases if run(case).is_bad)
    small, outcome = shrunk(bad, 300.0)
    assert outcome.verdict == "wrong"
    assert [step.kind for step in small.program.steps] == ["take"]
    assert small.mesh == (2,)


def test_a_lost_reduction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    total = Program(
        (Argument((8, 4), "float32"),), (Step("reduce_sum", (0,), {"axes": [0]}),), (1,)
    )
    monkeypatch.setattr(steps, "_reduced", lambda x, step: x)
    assert "wrong" in outcomes(total)
