# pyright: basic
"""Hand-written shardings are priced like any plan: as good if the same, never better."""

from __future__ import annotations

import json
from pathlib import Path

import optax
import pytest
from jax.sharding import PartitionSpec as P

from planner import PlanError, by_hand, compare, plan
from planner.result.by_hand import read_shardings
from tests.helpers_exhaustive import usual
from tests.planner.inspect.export import plans
from tests.planner.programs import slow_machine


@pytest.mark.parametrize("kind", ["layered", "tensor-parallel", "trained"])
def test_a_plans_own_shardings_cost_what_it_costs(kind: str, tmp_path: Path) -> None:
    found = plans.PLANS[kind]()
    found.export("shardings", tmp_path / "s.json")
    wanted = read_shardings(tmp_path / "s.json")
    again = by_hand(found, wanted.arguments, mesh=dict(wanted.mesh))
    assert again.step_s <= found.step_s * 1.01  # completed at least as well as the plan
    assert again.step_s >= found.lower_bound_s * (1 - 1e-9)
    assert again.input_shardings() == found.input_shardings()
    assert again.program.origin == "by hand"
    both = compare(found, again)
    assert both.same_program
    assert both.arguments == ()


def free():
    return plan(
        plans.mlp_loss, plans.MLP, plans.PAIRS, cluster=slow_machine(8), optimizer=optax.adam(1e-2)
    )


EXPERTS = {
    "data": ({"params/*": P(), "batch/*": P(("d", "t"))}, {"d": 8, "t": 1}),
    "fsdp": ({"params/*": P("f"), "batch/*": P("f")}, {"f": 8}),
    "tensor": ({"params/up": P(None, "t"), "params/down": P("t"), "batch/*": P("d")},
               {"d": 2, "t": 4}),
    "nothing said": ({}, {"d": 8}),
}  # fmt: skip


@pytest.mark.parametrize("name", usual(EXPERTS, ("data", "tensor")))
def test_experts_are_not_faster_than_the_bound(name: str) -> None:
    found = free()
    specs, mesh = EXPERTS[name]
    expert = by_hand(found, specs, mesh=mesh)
    assert expert.step_s >= found.lower_bound_s * (1 - 1e-9)
    held = {n: s for n, s in expert.input_shardings().items() if n.startswith("params/")}
    states = expert.input_shardings()
    for path, state in held.items():  # Adam's moments lie where their parameters do
        followers = [s for n, s in states.items() if n.startswith("opt_state") and path[7:] in n]
        assert followers
        assert set(followers) == {state}
    if name == "tensor":
        assert str(held["params/up"]) == "[-,t]"
        assert str(held["params/down"]) == "[t,-]"


def test_what_does_not_fit_is_priced_and_said() -> None:
    found = free()
    tight = found.what_if(memory_bytes=int(found.peak_bytes * 1.05))
    expert = by_hand(tight, {"params/*": P(), "batch/*": P()}, mesh={"x": 8})
    assert not expert.fits
    assert expert.program.limit_bytes == tight.program.limit_bytes


BAD = {
    "devices": ({}, {"d": 4}, "has 4 devices"),
    "axis": ({"params/up": P("q")}, {"d": 8}, "no mesh axis 'q'"),
    "name": ({"params/middle": P("d")}, {"d": 8}, "no argument is called so"),
    "rank": ({"params/up": P(None, None, None, "d")}, {"d": 8}, "has 4 entries"),
    "size": ({"batch/*": P(None, "d")}, {"d": 32}, "has 32 devices"),
    "divides": ({"params/up": P("d")}, {"d": 8}, "no sharding of 'params/up'"),
    "text": ({"params/up": "d"}, {"d": 8}, "is not a PartitionSpec"),
}


@pytest.mark.parametrize("name", BAD)
def test_nonsense_is_named(name: str) -> None:
    specs, mesh, words = BAD[name]
    with pytest.raises(PlanError, match=words) as found:
        by_hand(plans.layered(), specs, mesh=mesh)
    assert found.value.remedy


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": "x"}', '{"format": "meshwright-shardings"}']
)
def test_bad_files_are_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(text, encoding="utf-8")
    with pytest.raises(PlanError) as found:
        read_shardings(tmp_path / "s.json")
    assert found.value.kind == "shardings"
    with pytest.raises(PlanError, match="No such file"):
        read_shardings(tmp_path / "absent.json")


def test_what_if_nothing_changes_the_plan_stays() -> None:
    found = free()
    again = found.what_if()
    assert again.step_s == pytest.approx(found.step_s, rel=2e-3)
    assert json.dumps(again.summary()["mesh"])


def test_what_if_moves_as_it_must() -> None:
    found = plan(
        plans.mlp_loss, plans.MLP, plans.PAIRS, cluster="8xh100", optimizer=optax.adam(1e-2),
        pins=(("params/*", "[*,8]"),), baselines=False,
    )  # fmt: skip
    assert found.what_if(bandwidth=4.0).step_s <= found.step_s * 1.002
    assert found.what_if(bandwidth=0.25).step_s >= found.step_s * 0.998
    pinned = found.what_if(pins=(("batch/*", "[-,-]"),))
    assert pinned.step_s >= found.lower_bound_s * (1 - 1e-9)
    slow = free()
    assert slow.what_if(devices=2).step_s > slow.step_s
    with pytest.raises(PlanError, match="do not fill hosts"):
        slow.what_if(devices=12)
    with pytest.raises(PlanError, match="does not fit"):
        slow.what_if(memory_bytes=10)
