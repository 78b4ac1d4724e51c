# pyright: basic
"""Explanations: what a tensor or op could have been, solved, and what forced it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import optax
import pytest

from planner import Plan, PlanError, load, plan
from planner.inspect.analysed_plan import AnalysedPlan
from planner.inspect.explanation import Matches, Overview
from tests.planner.programs import BATCH, PARAMS, mean_loss, slow_machine

PINS = (("params/w1", "[-,4]"),)
FORBIDDEN = (("params/w2", 0),)


def made(**settings: Any) -> Plan:
    return plan(mean_loss, PARAMS, BATCH, cluster=slow_machine(), mesh=(2, 4), baselines=False,
                **settings)  # fmt: skip


@pytest.fixture(name="p", scope="module")
def _p() -> Plan:
    return made()


@pytest.fixture(name="pinned", scope="module")
def _pinned() -> Plan:
    return made(pins=PINS, forbidden=FORBIDDEN)


@pytest.fixture(name="by_hand", scope="module")
def _by_hand() -> Plan:
    return plan(mean_loss, PARAMS, BATCH, cluster=slow_machine(), mesh=(2, 4),
                baseline="data-parallel")  # fmt: skip


def analysed(p: Plan) -> AnalysedPlan:
    return AnalysedPlan(p.program, p.decisions, p.cluster, "here")


def found(p: Plan, what: str, alternatives: int = 6) -> Matches:
    reason = analysed(p).reason(what, alternatives)
    assert isinstance(reason, Matches)
    return reason


def test_an_argument(p: Plan) -> None:
    (match,) = found(p, "params/w1").matches
    assert match.name == "params/w1"
    assert match.chosen == str(p.input_shardings()["params/w1"])
    assert match.forced == ""
    options = [a.option for a in match.alternatives]
    assert len(set(options)) == len(options) == 6
    assert match.chosen not in options
    assert match.unsolved > 0


def test_alternatives_cost_more_and_the_cheapest_come_first(p: Plan) -> None:
    for what in ("params/w1", "batch/x", "dot_general"):
        for match in found(p, what).matches:
            added = [a.added_s for a in match.alternatives if a.added_s is not None]
            assert added == sorted(added)
            assert all(seconds >= -1e-9 * p.step_s for seconds in added)


def test_an_alternative_costs_what_a_plan_pinned_to_it_costs(p: Plan) -> None:
    for other in found(p, "params/w1").matches[0].alternatives[:3]:
        assert other.added_s is not None
        pinned = made(pins=(("params/w1", other.option),))
        assert pinned.step_s == pytest.approx(p.step_s + other.added_s, rel=2e-3)


def test_a_plan_that_is_not_the_best_is_explained_by_its_options_alone(by_hand: Plan) -> None:
    """What a better plan would do elsewhere is no reason for or against an option."""
    (match,) = found(by_hand, "params/w1").matches
    own = made(pins=(("params/w1", match.chosen),))
    assert match.better_s == pytest.approx(by_hand.step_s - own.step_s, rel=1e-3)
    for other in match.alternatives:
        pinned = made(pins=(("params/w1", other.option),))
        assert other.added_s == pytest.approx(pinned.step_s - own.step_s, abs=1e-3 * own.step_s)
        assert sum(abs(c.added_s) for c in other.because) <= 2 * abs(other.added_s or 0.0)
    assert "faster than the plan" in str(match)
    assert f"{by_hand.gap:.2%}" in str(match)


def test_an_option_that_is_better_is_said_to_be(by_hand: Plan) -> None:
    (match,) = found(by_hand, "batch/x").matches
    assert min(a.added_s for a in match.alternatives if a.added_s is not None) < 0
    assert "an option is faster than the one chosen" in str(match)


def test_what_is_no_slower_adds_nothing_and_differs_nowhere(p: Plan, by_hand: Plan) -> None:
    said = 0
    for plan_ in (p, by_hand):
        for what in ("params/*", "batch/x", "batch/y"):
            for match in found(plan_, what).matches:
                for other in match.alternatives:
                    if other.added_s is not None:
                        tiny = 0 < abs(other.added_s) < 1e-9 * plan_.step_s
                        assert not tiny
                        assert all(abs(c.added_s) > 1e-9 * plan_.step_s for c in other.because)
                        said += "no slower" in str(other)
    assert said


def test_pins_of_other_arguments_hold_for_alternatives(pinned: Plan) -> None:
    """Without them an alternative of `x` would be cheaper than the plan."""
    (match,) = found(pinned, "batch/x").matches
    assert match.forced == ""
    for other in match.alternatives[:2]:
        again = made(pins=(*PINS, ("batch/x", other.option)), forbidden=FORBIDDEN)
        assert other.added_s is not None
        assert again.step_s == pytest.approx(pinned.step_s + other.added_s, rel=2e-3)


def test_what_forced_it_is_named(pinned: Plan) -> None:
    text = pinned.explain("params/w1")
    assert "pinned as [-,4] by 'params/w1'" in text
    assert "params/w1: [-,y]" in text
    assert "dimension 0 is kept whole by 'params/w2'" in pinned.explain("params/w2")
    assert "forced" not in pinned.explain("params/b1")


def test_an_op_a_place_and_a_source_line(p: Plan) -> None:
    text = p.explain("dot_general")
    assert "dot_general@0 (programs.py:" in text
    assert "factors  m0 k0+, k0+ n1 -> m0 n1" in text
    line = text.split("(programs.py:")[1].split(")")[0]
    by_line = found(p, f"programs.py:{line}")
    assert by_line.matches[0].name.startswith("dot_general@0")
    assert by_line.more
    (only,) = found(p, "dot_general@0").matches
    assert only == by_line.matches[0]


def test_patterns_and_ends_of_names(p: Plan) -> None:
    assert [m.name for m in found(p, "params/*").matches] == sorted(f"params/{k}" for k in PARAMS)
    assert found(p, "w1").matches[0].name == "params/w1"


def test_many_matches_are_cut_and_named() -> None:
    p = plan(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster=slow_machine(),
             mesh=(8,), baselines=False)  # fmt: skip
    reason = found(p, "*", 1)
    assert len(reason.matches) == 3
    assert len(reason.more) == len(p.input_shardings()) - 3
    assert f"{len(reason.more)} more match: " in str(reason)


def test_an_optimizer_state_is_explained_with_its_parameter_s_ties() -> None:
    p = plan(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster=slow_machine(),
             mesh=(8,), baselines=False)  # fmt: skip
    assert "opt_state/0/mu/w1: " in p.explain("opt_state/0/mu/w1")


def test_the_whole_plan(p: Plan) -> None:
    reason = analysed(p).reason("")
    assert isinstance(reason, Overview)
    assert reason.account.step_s == pytest.approx(p.step_s)
    assert reason.account.peak_bytes == pytest.approx(p.peak_bytes)
    assert "compute" in p.explain()
    assert "communication" in p.explain()


def test_reasons_are_data(p: Plan) -> None:
    for what in ("", "params/w1", "dot_general"):
        assert json.dumps(analysed(p).reason(what).summary())


def test_number_of_alternatives(p: Plan) -> None:
    assert not found(p, "params/w1", 0).matches[0].alternatives
    assert len(found(p, "params/w1", 2).matches[0].alternatives) == 2


def test_a_scalar_has_no_other_option() -> None:
    p = plan(lambda s, x: s * x, 2.0, BATCH["x"], cluster="8xhost", baselines=False)
    assert "there is no other option" in p.explain("s")


def test_nothing_is_called_so(p: Plan) -> None:
    for what in ("parms/w1", "conv", "programs.py:1", "[", "*?["):
        with pytest.raises(PlanError) as error:
            p.explain(what)
        assert error.value.kind == "unknown-name"
        assert f"'{what}'" in str(error.value)
        assert error.value.remedy
    with pytest.raises(PlanError, match="did you mean 'params/w1'"):
        p.explain("parms/w1")


def test_explaining_needs_the_file_only(p: Plan, tmp_path: Path) -> None:
    p.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").explain("params/w1") == p.explain("params/w1")


def test_the_choice_of_a_plan_is_found_again(p: Plan, pinned: Plan) -> None:
    for each in (p, pinned):
        reason = analysed(each)
        assert reason.built.problem.cost(reason.choice) == pytest.approx(each.step_s)


def test_decisions_of_another_space_are_refused(p: Plan) -> None:
    op = next(iter(p.decisions.ops))
    strange = dataclasses.replace(p.decisions, ops={**p.decisions.ops, op: ("q", "q")})
    with pytest.raises(PlanError, match="not in this planner's space") as error:
        AnalysedPlan(p.program, strange, p.cluster, "here").reason("")
    assert error.value.where == "here"
