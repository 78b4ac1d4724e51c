"""Every rule of a file has a verdict, whatever it says, after a bounded amount of work."""

from __future__ import annotations

import gzip
import json
import random
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from substitutions import CATALOGUE, VERDICTS, Rule, Unread, judge, judge_all, read_each
from substitutions.axioms import AXIOMS
from substitutions.published import limits
from substitutions.text import rule_of_text
from tests.helpers_exhaustive import usual
from tests.substitutions.published import CONVERTED, FLEXFLOW, FOLDER, TASO, rules
from tests.substitutions.test_published import with_op
from tests.substitutions.wild import wild

MOST_S = 60  # of processor time for one rule, on the slowest machine; the work is counted
SEEDS = range(2)
MUTANTS = 80  # of each seed

# Text of a TENSAT file -> the verdict on its only rule.
ODD = {
    "(ewmul Iewmul Iewmul)=>Iewmul": "ill-formed",
    "concat(0,999,input_1,input_2)==concat(0,999,input_1,input_2)": "ill-formed",
    "concat(999,2,input_1,input_2)==concat(999,2,input_1,input_2)": "ill-formed",
    "relu(concat(0,8,input_1,input_2))==concat(0,8,relu(input_1),relu(input_2))": "proved",
    "relu(input_1)==fft(input_1)": "ill-formed",
    "relu(input_99)==relu(input_1)": "ill-formed",
    "relu(input_1,input_2)==relu(input_1)": "ill-formed",
    "input_1==input_1": "proved",
    "input_1==input_2": "ill-formed",
    "split_0(0,input_1)==split_1(0,input_1)": "false",
    "enlarge(3,3,input_1)==enlarge(3,3,input_1)": "proved",
    "ewadd(enlarge(3,3,input_11),input_1)==ewadd(input_1,input_1)": "false",
    "enlarge(64,64,input_8)==enlarge(64,64,input_8)": "unknown",
    "conv2d(1,1,0,0,input_8,enlarge(64,64,input_11))==conv2d(1,1,0,0,input_8,input_11)": "unknown",
    "poolmax(64,64,1,1,0,input_8)==poolmax(63,64,1,1,0,input_8)": "unknown",
}


@pytest.mark.parametrize("text", ODD)
def test_an_odd_rule_has_a_verdict_and_so_has_the_next(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    last = "(relu (relu ?input_1))=>(relu ?input_1)" if "=>" in text else (
        "relu(relu(input_1))==relu(input_1)"
    )  # fmt: skip
    path.write_text(f"{text}\n{last}\n")
    first, second = judge_all(read_each(path))
    assert first.verdict == ODD[text], first
    assert first.reason or first.verdict in ("proved", "false")
    assert second.verdict == "proved"


def test_a_degree_that_no_rule_may_write_is_not_drawn() -> None:
    found = judge(
        rule_of_text("r", "combine[1, 2](relu(partition[1, 8](x)))", "relu(x)", {"x": 2},
                     parallel=True)
    )  # fmt: skip
    assert found.verdict == "false"


UNREAD: dict[str, dict[str, Any]] = {
    "unknown op": {"type": "OP_FFT"},
    "before it is made": {"input": [{"_t": "Tensor", "opId": 0, "tsId": 0}]},
    "9 inputs": {"input": [{"_t": "Tensor", "opId": -1, "tsId": 0}] * 9},
    "none of the set's": {"input": [{"_t": "Tensor", "opId": -77, "tsId": 0}]},
    "a 32-bit integer": {"input": [{"_t": "Tensor", "opId": -1, "tsId": 10**30}]},
    "is missing or not a list": {"para": 7},
}


@pytest.mark.parametrize("reason", UNREAD)
def test_a_rule_that_breaks_the_form_leaves_the_others(reason: str, tmp_path: Path) -> None:
    good = json.loads(with_op())["rule"][0]
    bad = json.loads(with_op(**UNREAD[reason]))["rule"][0]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"_t": "RuleCollection", "rule": [good, bad, 7, good]}))
    found = list(judge_all(read_each(path)))
    assert [item.verdict for item in found] == ["proved", "ill-formed", "ill-formed", "proved"]
    assert reason in found[1].reason
    assert all(len(item.reason) <= limits.LONGEST_REASON for item in found)


def test_damaged_operators_leave_the_other_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.pb"
    good = gzip.decompress((FOLDER / TASO).read_bytes())
    path.write_bytes(b"\x0a\x04\x0a\x02\x08\x63" + good)  # an op of type 99
    first, *others = read_each(path)
    assert isinstance(first, Unread)
    assert "unknown op type 99" in first.reason
    assert [str(rule) for rule in others] == [str(rule) for rule in rules(TASO)]


def test_an_error_of_the_prover_is_a_verdict_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(rule: Rule) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(import_module("substitutions.verify.judge"), "_judge", fails)
    (found,) = judge_all(rules(TASO)[:1])
    assert found.verdict == "unknown"
    assert "ZeroDivisionError: by chance" in found.reason


def base() -> list[Rule]:
    found = [rule for name in (FLEXFLOW, TASO, CONVERTED) for rule in rules(name)]
    found += [rule for rows in CATALOGUE.values() for row in rows for rule in row.rules()]
    return found + [rule for axiom in AXIOMS for rule in axiom.rules()]


def judged(seed: int, count: int) -> set[str]:
    """Verdicts on random rules, none of which may raise."""
    rng, known, seen = random.Random(seed), base(), set[str]()
    for _ in range(count):
        rule = wild(known, rng)
        start = time.process_time()
        found = judge(rule)
        assert time.process_time() - start < MOST_S, rule
        assert found.verdict in VERDICTS
        assert found.verdict != "unknown" or found.reason, rule
        assert "yet the sides differ" not in found.reason, rule
        seen.add(found.verdict)
    return seen


@pytest.mark.parametrize("seed", usual(SEEDS, [0]))
def test_random_rules_have_verdicts(seed: int) -> None:
    assert {"proved", "false", "ill-formed"} <= judged(seed, MUTANTS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_rules_have_verdicts(seed: int) -> None:
    judged(seed, 20 * MUTANTS)
