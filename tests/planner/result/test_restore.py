# pyright: basic
"""Checkpoints saved under one plan and restored under another."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from planner import Plan, PlanError, plan, restore, structs
from tests.planner.emit.pipelines import CLIPPED, arguments, everything
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import BATCH, PARAMS, filled, mean_loss, slow_machine

RULE = optax.adam(1e-2)


def planned(count: int, spec: str) -> Plan:
    return plan(
        mean_loss, PARAMS, BATCH, cluster=slow_machine(count), optimizer=RULE, baselines=False,
        pins=(("params/w1", spec),),
    )  # fmt: skip


def save(path: Path, tree: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.resolve(), tree)


def equal(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_training_goes_on_under_another_plan(tmp_path: Path) -> None:
    """Two steps on 8 devices, saved, restored on 4, two more; beside four on 8."""
    eight, four = planned(8, "[-,8]"), planned(4, "[4,-]")
    step = eight.compile()
    params = eight.shard(filled(PARAMS), argnum=0)
    state = eight.init(RULE.init, params, argnum=1)
    batch = eight.shard(filled(BATCH), argnum=2)
    for _ in range(2):
        params, state, _ = step(params, state, batch)
    save(tmp_path / "params", params)
    save(tmp_path / "state", state)
    shapes = jax.eval_shape(RULE.init, PARAMS)
    here = restore(four, tmp_path / "params", PARAMS, argnum=0)
    moments = restore(four, tmp_path / "state", shapes, argnum=1)
    equal(here, params)
    equal(moments, state)
    for leaf, spec in zip(
        jax.tree.leaves((here, moments)), jax.tree.leaves(four.in_shardings[:2]), strict=True
    ):
        assert leaf.sharding.spec == spec
        assert len(leaf.sharding.device_set) == 4
    assert here["w1"].addressable_shards[0].data.shape == (4, 32)
    other = four.compile()
    again = four.shard(filled(BATCH), argnum=2)
    for _ in range(2):
        params, state, expected = step(params, state, batch)
        here, moments, found = other(here, moments, again)
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-5)


@without_proof()
def test_a_plan_in_stages_restores_what_one_program_saved(tmp_path: Path) -> None:
    params, batch = arguments()
    made: Any = plan(
        everything, params, batch, cluster=slow_machine(4), microbatches=4, pipeline=2,
        optimizer=CLIPPED, has_aux=True, baselines=False, schedules=("1f1b",), substitutions=False,
    )  # fmt: skip
    assert len(made.stages) == 2
    save(tmp_path / "params", params)
    found = restore(made, tmp_path / "params", params, argnum=0)
    equal(found, params)


def test_structs_are_what_the_plan_wants() -> None:
    four = planned(4, "[4,-]")
    found = structs(four, PARAMS, argnum=0)
    assert {name: x.sharding.spec for name, x in found.items()} == four.in_shardings[0]
    assert {name: x.shape for name, x in found.items()} == {n: p.shape for n, p in PARAMS.items()}


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four = planned(4, "[4,-]")
    save(tmp_path / "other", {"a": jax.numpy.ones(3)})
    with pytest.raises(PlanError, match="is no folder"):
        restore(four, tmp_path / "absent", PARAMS, argnum=0)
    with pytest.raises(PlanError, match="cannot be restored"):
        restore(four, tmp_path / "other", PARAMS, argnum=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match="cannot be restored"):
        restore(four, tmp_path / "empty", PARAMS, argnum=0)
    with pytest.raises(PlanError, match="not argument 0"):
        restore(four, tmp_path / "other", {"a": jax.numpy.ones(3)}, argnum=0)
    with pytest.raises(PlanError, match="needs 4 devices"):
        restore(four, tmp_path / "other", PARAMS, argnum=0, devices=jax.devices()[:2])

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(PlanError, match=r"pip install 'meshwright\[orbax\]'"):
        restore(four, tmp_path / "other", PARAMS, argnum=0)
