# pyright: basic
"""Plans with rewrites: faster where they pay, the same where they do not, and never wrong."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from ir import flops_of, lookup
from planner import PlanError, load, plan
from planner.common.stop import REWRITTEN
from planner.sharding.rewrite.search import RewriteSearch
from substitutions import patterns, worth_of_row
from tests.planner.programs import slow_machine
from tests.planner.sealing import resealed
from tests.planner.sharding.rewrite.programs import (
    ATTENTION,
    CELLS,
    added,
    apart,
    attention_twice,
    cells,
    linear_attention,
    low_rank,
    numbers,
)

SGD = optax.sgd(1e-2)


def close(left, right) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        scale = max(1e-3, float(np.abs(np.asarray(b)).max(initial=0)))
        np.testing.assert_allclose(a, b, atol=2e-5 * scale, rtol=0)


@pytest.fixture(scope="module")
def attention():
    """The plan of a training step that was rewritten, and the one of the step as written."""
    both = [
        plan(linear_attention, *ATTENTION, cluster="host", optimizer=SGD, substitutions=on)
        for on in (True, False)
    ]
    return tuple(both)


def test_a_training_step_is_rewritten_forward_and_backward(attention) -> None:
    rewritten, plain = attention
    assert rewritten.substitutions
    assert set(rewritten.substitutions) <= set(patterns())
    assert sum(rewritten.substitutions.values()) > 1
    assert rewritten.step_s < 0.7 * plain.step_s
    assert plain.substitutions == {}
    assert rewritten.baselines == plain.baselines
    rows = rewritten.summary()["substitutions"]
    assert {row["rule"]: row["count"] for row in rows} == rewritten.substitutions
    assert "rewritten" in str(rewritten)


def test_a_rewritten_step_computes_what_the_plain_one_does(attention) -> None:
    rewritten, plain = attention
    params, batch = map(numbers, ATTENTION)
    state = SGD.init(params)
    copy = lambda: jax.tree.map(lambda x: x.copy(), (params, state))  # noqa: E731
    close(rewritten.compile()(*copy(), batch), plain.compile()(*copy(), batch))

    def step(params, state, batch):
        loss, grads = jax.value_and_grad(linear_attention)(params, batch)
        updates, state = SGD.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    close(rewritten.compile()(*copy(), batch), jax.jit(step)(params, state, batch))


def test_a_rewrite_that_saves_memory_leaves_nothing_to_compute_again(tmp_path) -> None:
    args = [ATTENTION[0]] * 2, ATTENTION[1]

    def planned(**options):
        return plan(
            attention_twice, *args, cluster=slow_machine(2), optimizer=SGD, memory_bytes=20_000_000,
            baselines=False, **options,
        )  # fmt: skip

    found, kept = planned(), planned(recompute="none")
    short = planned(substitutions=False, microbatches=1)
    assert short.program.recomputed  # as the scores do not fit
    assert found.substitutions
    assert not found.program.recomputed
    assert kept.program.microbatches == 2
    assert found.step_s < kept.step_s
    assert REWRITTEN in found.warnings
    found.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert (again.step_s, again.substitutions) == (found.step_s, found.substitutions)


@pytest.fixture
def saved(attention, tmp_path) -> Path:
    attention[0].save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_loaded_plan_rewrites_its_function_again(attention, saved) -> None:
    bound = load(saved).bind(linear_attention, *ATTENTION, optimizer=SGD)
    assert bound.graph == attention[0].graph
    bound.save(saved.with_name("again.json"))
    assert saved.read_bytes() == saved.with_name("again.json").read_bytes()


def test_another_function_is_refused_before_it_is_rewritten(saved) -> None:
    with pytest.raises(PlanError, match="before the plan's") as caught:
        load(saved).bind(lambda p, b: 2 * linear_attention(p, b), *ATTENTION, optimizer=SGD)
    assert caught.value.kind == "differs"


@pytest.mark.parametrize(
    "change",
    [{"rule": "no-such-rule"}, {"rule": "merge-lookups"}, {"place": [0, 0]}, {"count": 40}],
)
def test_tampered_rewrites_are_refused(saved, change) -> None:
    raw = json.loads(saved.read_text())
    raw["programs"][0]["substitutions"][0] |= change
    saved.write_text(json.dumps(resealed(raw)))
    with pytest.raises(PlanError) as caught:
        load(saved).bind(linear_attention, *ATTENTION, optimizer=SGD)
    assert caught.value.kind in ("substitutions", "plan-file")


def test_work_is_traded_for_communication_and_not_the_other_way_round() -> None:
    """Keeping a low-rank correction apart costs work and saves moving the corrected weight."""
    args = low_rank(4096, 1024, 8192)
    settings = {"cluster": "8xh100", "pins": (("x", "[8,-]"),), "baselines": False}
    rewritten = plan(added, *args, **settings)
    plain = plan(added, *args, substitutions=False, **settings)
    assert rewritten.substitutions == {"unfold-low-rank": 1}
    assert work(rewritten.graph) > 1.1 * work(plain.graph)
    assert rewritten.program.communication_s < plain.program.communication_s
    assert rewritten.step_s < plain.step_s
    assert plan(apart, *args, **settings).substitutions == {}


def test_on_one_device_the_work_alone_decides() -> None:
    args = low_rank(4096, 1024, 8192)
    assert plan(added, *args, cluster="1xh100").substitutions == {}
    assert plan(apart, *args, cluster="1xh100").substitutions == {"fold-low-rank": 1}


def work(graph) -> int:
    """Floating-point operations of a graph without regions."""
    return sum(
        flops_of(lookup(n.op), n, tuple(graph.type_of(o) for o in n.inputs)) for n in graph.nodes
    )


def test_what_a_loop_only_reads_is_merged_in_front_of_it() -> None:
    fn = jax.grad(cells)
    rewritten = plan(fn, *CELLS, cluster="host", baselines=False)
    plain = plan(fn, *CELLS, cluster="host", baselines=False, substitutions=False)
    assert any("merge" in rule for rule in rewritten.substitutions)
    assert rewritten.step_s < plain.step_s
    loops = [node for node in rewritten.graph.nodes if node.op == "scan"]
    for loop in loops:  # what a rule makes has the line of what it replaces
        inner = [node for node in loop.bodies[0].nodes if node.op == "dot_general"]
        assert inner
        assert all("programs.py:" in node.source for node in (loop, *inner))
    weights = {i.type for i in rewritten.graph.inputs}
    assert any(
        rewritten.graph.type_of(o).size > max(w.size for w in weights if w.rank == 2)
        for o in loops[0].inputs[: int(str(loops[0].attr("num_consts")))]
    )
    args = tuple(map(numbers, CELLS))
    close(rewritten.compile()(*args), jax.jit(fn)(*args))


@pytest.mark.parametrize(
    ("wish", "pays"), [("exact", False), ("reassociated", False), ("bounded", True)]
)
def test_only_rules_of_the_worth_that_is_asked_for(wish, pays) -> None:
    found = plan(linear_attention, *ATTENTION, cluster="host", baselines=False, substitutions=wish)
    assert bool(found.substitutions) == pays
    worths = {worth_of_row(rule).floats for rule in found.substitutions}
    assert worths <= {"exact", "reassociated", wish}


@pytest.mark.parametrize("wish", ["bitwise", 1, None])
def test_another_worth_is_refused(wish) -> None:
    with pytest.raises(PlanError, match="exact, reassociated, bounded, unbounded"):
        plan(linear_attention, *ATTENTION, cluster="host", substitutions=wish)


def test_where_nothing_pays_the_plan_is_as_it_was(tmp_path) -> None:
    def fn(w, x):
        return jax.nn.relu(x @ w).sum()

    args = (ATTENTION[0]["q"], ATTENTION[1]["x"])
    for on in (True, False):
        plan(fn, *args, cluster="8xh100", substitutions=on).save(tmp_path / f"{on}.json")
    assert (tmp_path / "True.json").read_bytes() == (tmp_path / "False.json").read_bytes()


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [(4096, 0.0, 0.3), (4093, 0.85, 1.0)],  # split over all devices; prime, so whole on each
)
def test_what_a_plan_leaves_to_be_saved(monkeypatch, size: int, least: float, most: float) -> None:
    left: list[float] = []
    narrowed = RewriteSearch._narrowed

    def noted(self, draft):
        left.extend(self.left_out.seconds(draft.graph, places) for _, places in self.first)
        return narrowed(self, draft)

    monkeypatch.setattr(RewriteSearch, "_narrowed", noted)
    given = (jax.ShapeDtypeStruct((size, size), "float32"),) * 2
    found = plan(
        lambda w, x: 2.0 * (x @ w), *given, cluster="8xh100", padding=False, baselines=False
    )
    assert left
    assert all(least <= s / found.step_s <= most for s in left)
