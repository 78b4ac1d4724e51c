# pyright: basic
"""What a plan says of experts: what they are split by, what is assumed, what else takes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.experts_model import Experts, small
from planner import Options, Plan, plan
from planner.common.units_text import seconds_text
from planner.inspect.expert_products import BOTH
from planner.inspect.experts import expert_rows
from planner.inspect.explanation import Explanation, Matches

SEQUENCES, PRODUCTS = 64, 9  # of three matrices: forward, and backward of both operands
TOKENS, HIDDEN, WIDTH = 256, 512, 1024


def step(model: Experts, params: Any, tokens: Any) -> Any:
    def loss(params: Any, tokens: Any) -> Any:
        weights, chosen, uneven = model.route(tokens, params["router"])
        found = getattr(model, f"by_{model.form}")(tokens, weights, chosen, params)
        return jnp.sum(jnp.sin(found)) + uneven

    return jax.grad(loss, argnums=(0, 1))(params, tokens)


def planned(form: str, baseline: str | None) -> Plan:
    plain = small(form)
    dense = replace(plain.dense, hidden=HIDDEN, seq=TOKENS, dtype="bfloat16")
    model = replace(plain, dense=dense, width=WIDTH, capacity=1.25)
    params = {
        name: jax.ShapeDtypeStruct(shape.shape[1:], shape.dtype)
        for name, shape in model.parameters()["layers"].items()
        if name in ("router", "up", "gate", "down")
    }
    tokens = jax.ShapeDtypeStruct((SEQUENCES, TOKENS, HIDDEN), jnp.bfloat16)
    options = Options(baseline=baseline, mesh=(8,), substitutions=False)
    return plan(partial(step, model), params, tokens, cluster="8xh100", options=options)


def matches(found: Plan, what: str) -> tuple[Explanation, ...]:
    answer = found.analysed.reason(what)
    assert isinstance(answer, Matches)
    return answer.matches


@pytest.fixture(scope="module")
def sent() -> Plan:
    """Sorted rows exchanged between devices, which hold an expert each."""
    return planned("ragged", "expert-parallel")


def test_the_page_says_what_a_plan_does_with_sorted_rows(sent: Plan, tmp_path: Path) -> None:
    said = sent.summary()["at_a_glance"]["experts"]
    text = "; ".join(said)
    ways = {way for row in expert_rows(sent.analysed) for way in row.split.items()}
    assert ways <= {("tokens and experts", 8), ("experts", 8)}  # the second in a gradient
    assert said[0].startswith("products are split by tokens and experts over 8 devices")
    spent = [row for row in sent.collectives if row.kind == "all-to-all"]
    assert sum(row.seconds for row in spent) > 0
    assert "all-to-alls of the step take" in text
    assert "never dropped" in text
    assert "capacity" not in text
    assert f"  experts      {text}" in str(sent)
    assert "experts over 8 devices are priced as if the busiest had 1.52 times" in str(sent)
    sent.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert all(each in page for each in said)
    assert "Products with matrices of experts" in page


def test_every_way_to_split_one_is_priced(sent: Plan) -> None:
    first = matches(sent, "ragged_dot_general")[0]
    assert first.chosen == "x splits near (tokens and experts over 8 devices)"
    options = {each.option: each.added_s for each in first.alternatives}
    for way in ("tokens", "experts", "features"):
        assert any(f"({way} over 8 devices)" in option for option in options), way


def test_all_of_them_are_split_another_way_at_once(sent: Plan) -> None:
    (found,) = matches(sent, "experts")
    assert found.name == f"experts, {PRODUCTS} products"
    priced = {each.option.split(",")[0]: each for each in found.alternatives}
    assert set(priced) == {f"all by {w}" for w in ("tokens", "experts", "features", BOTH)}
    assert all(each.added_s is not None for each in priced.values())
    by_tokens = priced["all by tokens"].added_s
    fastest = planned("ragged", "fsdp").step_s  # rows split, and matrices gathered
    assert by_tokens is not None
    assert sent.step_s + by_tokens <= fastest * (1 + 1e-3)


@pytest.mark.parametrize(
    ("baseline", "way"),
    [
        ("expert-parallel", "experts over 8 devices"),
        *(pytest.param(*more, marks=pytest.mark.exhaustive) for more in (
            ("fsdp", "tokens over 8 devices"), ("megatron", "experts over 8 devices"))),
    ],
)  # fmt: skip
def test_hand_written_plans_are_what_they_are_called(baseline: str, way: str) -> None:
    found = planned("slots", baseline)
    (said, *_) = found.summary()["at_a_glance"]["experts"]
    assert said == f"products are split by {way} ({PRODUCTS} of {PRODUCTS})"
    assert "capacity" in str(found)
    assert "never dropped" not in str(found)


def test_ways_by_hand_stand_side_by_side() -> None:
    found = planned("slots", None)
    said = found.summary()["at_a_glance"]["experts"][-1]
    for name in ("expert-parallel", "fsdp"):
        assert f"{name} {seconds_text(found.baselines[name].step_s)} (" in said


def test_programs_without_experts_say_nothing() -> None:
    args = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 2
    found = plan(jnp.dot, *args, cluster="8xh100", options=Options(mesh=(8,)))
    assert found.summary()["at_a_glance"]["experts"] == []
    assert expert_rows(found.analysed) == ()
    assert "  experts  " not in str(found)
