# pyright: basic
"""Prices of hand-written plans over all meshes, and which of them are made to fit in memory."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
import pytest

from planner import Interrupted, Options, Plan, plan
from planner.sharding.problem.records import Limits
from planner.sharding.problem.restricted import Within
from planner.sharding.search import hand_written
from planner.sharding.search.baselines import Baseline
from planner.sharding.search.context import Candidate
from planner.sharding.search.hand_written import HandWritten
from planner.sharding.search.on_mesh import MeshSearch
from planner.solver.options import ROUGH
from tests.planner.programs import slow_machine
from tests.planner.sharding.search.test_baselines import EXPERTS, TOKENS, expert_loss

FITS_S = 1.0


def training(**settings: Any) -> Plan:
    optimizer = optax.adam(1e-3)
    return plan(
        expert_loss, EXPERTS, TOKENS, optimizer=optimizer, cluster=slow_machine(), **settings
    )


def test_the_table_holds_the_best_mesh_of_each_at_the_memory_limit() -> None:
    free = training()
    limit = int(0.7 * max(row.peak_bytes for row in free.baselines.values()))
    rows = training(memory_bytes=limit).baselines
    assert {row.fits for row in rows.values()} == {True, False}
    for mesh in ((8,), (2, 4)):
        for name, row in training(memory_bytes=limit, mesh=mesh).baselines.items():
            if row.fits and name in rows:
                assert rows[name].fits, name
                assert rows[name].step_s <= row.step_s * (1 + 2 * ROUGH.tolerance), name


def excessive(name: str, bound_s: float, *, out_of_time: bool = False) -> Any:
    """A plan that exceeds the memory limit, on another mesh."""
    scope = SimpleNamespace(
        out_of_time=out_of_time, late=False, say=lambda _: None,
        request=SimpleNamespace(options=Options()),
    )  # fmt: skip
    return SimpleNamespace(
        search=SimpleNamespace(scope=scope, mesh="x=8"), names=(name,), bound_s=bound_s
    )


@pytest.mark.parametrize(("bound_s", "tried"), [(0.9 * FITS_S, True), (1.1 * FITS_S, False)])
def test_plans_slower_than_the_same_on_another_mesh_are_left_out(
    monkeypatch: pytest.MonkeyPatch, bound_s: float, tried: bool
) -> None:
    seen: list[Any] = []

    def noted(self: HandWritten, one: Any) -> Candidate | None:
        seen.append(one)
        return None

    monkeypatch.setattr(HandWritten, "made_to_fit_one", noted)
    one = excessive("fsdp", bound_s)
    assert not [*HandWritten({"fsdp": Baseline(FITS_S, 1.0, True)}, [one]).made_to_fit()]
    assert seen == [one] * tried
    assert not [*HandWritten({"fsdp": Baseline(FITS_S, 1.0, False)}, [one]).made_to_fit()]
    assert seen == [one] * (1 + tried)


def test_what_is_not_known_once_the_time_is_over_is_not_in_the_table() -> None:
    one, again = (excessive("fsdp", bound_s, out_of_time=True) for bound_s in (0.5, 0.6))
    fits = excessive("zero-1", 0.5, out_of_time=True)
    table = {"fsdp": Baseline(FITS_S, 2.0, False), "zero-1": Baseline(FITS_S, 1.0, True)}
    assert not [*HandWritten(table, cast(Any, [one, again, fits])).made_to_fit()]
    assert [*table] == ["zero-1"]
    assert one.search.scope.late


def test_what_is_not_known_after_an_interruption_is_not_in_the_table() -> None:
    free = training()
    limit = int(0.7 * max(row.peak_bytes for row in free.baselines.values()))
    pressed: list[str] = []

    def heard(line: str) -> None:
        if line.startswith("mesh x=2,y=2,z=2: best step") and not pressed:
            pressed.append(line)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        training(memory_bytes=limit, progress=heard)
    stopped = caught.value.plan
    whole = training(memory_bytes=limit).baselines
    for name, row in stopped.baselines.items():
        assert row.fits or not whole[name].fits, name


def blocks(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for up, down in params:
        x = x + jax.nn.relu(x @ up) @ down
    return jnp.mean(x**2)


def test_plans_that_leave_the_same_options_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[tuple[int, tuple[int, ...], tuple[str, ...]]] = []

    def noted(search: MeshSearch, names: tuple[str, ...], limits: Limits, left: Within) -> object:
        solved.append((id(left.cuts), left.key, names))
        return priced(search, names, limits, left)

    priced = hand_written._priced
    monkeypatch.setattr(hand_written, "_priced", noted)
    tokens = jnp.zeros((16, 7, 64))  # a sequence that nothing divides
    params = [(jnp.zeros((64, 256)), jnp.zeros((256, 64)))] * 2
    found = plan(
        blocks, params, tokens, optimizer=optax.sgd(0.1), cluster=slow_machine()
    ).baselines  # fmt: skip
    assert len({(mesh, key) for mesh, key, _ in solved}) == len(solved)
    assert any({"megatron", "megatron-sp"} <= {*names} for _, _, names in solved)
    assert found["megatron"] == found["megatron-sp"]
