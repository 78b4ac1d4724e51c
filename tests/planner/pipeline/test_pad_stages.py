# pyright: basic
"""Padding in stages: where it pays, saved and loaded, equal to the step as written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner import PlanError, load, plan
from tests.planner.pipeline.unproved import without_proof
from tests.planner.sealing import resealed

FEATURES, SGD = 509, optax.sgd(1.0, momentum=0.9)


def loss(params: Any, batch: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], params["layers"])
    return jnp.mean(jax.nn.logsumexp(x @ params["last"], axis=-1))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


ARGS = (
    {"layers": struct(2, FEATURES, FEATURES), "last": struct(FEATURES, 30)},
    {"x": struct(202, FEATURES)},
)


def planned(padding: bool) -> Any:
    """A pipeline of two stages on four devices each, of 101 rows a micro-batch."""
    with without_proof():
        return plan(
            loss, *ARGS, optimizer=SGD, cluster="8xhost", pipeline=2, microbatches=2,
            substitutions=False, baselines=False, padding=padding,
        )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Any:
    return planned(padding=True)


def test_stages_are_padded(found: Any) -> None:
    rows = [program.padded for program in found.file.programs]
    assert all(rows)
    assert all(row.size % 4 == 0 and row.was % 4 for each in rows for row in each)
    assert 0.0 < found.lower_bound_s <= found.step_s
    assert "509 to 512" in str(found)


@pytest.mark.exhaustive
def test_it_pays(found: Any) -> None:
    without = planned(padding=False)
    assert not any(program.padded for program in without.file.programs)
    assert found.step_s < 0.6 * without.step_s


def test_a_padded_pipeline_is_loaded_and_trains_as_the_step_does(
    found: Any, tmp_path: Path
) -> None:
    found.save(tmp_path / "plan.json")
    run = load(tmp_path / "plan.json").bind(loss, *ARGS, optimizer=SGD).compile()
    rng = np.random.default_rng(0)
    params, batch = jax.tree.map(lambda t: jnp.asarray(rng.normal(size=t.shape) / 8, t.dtype), ARGS)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = SGD.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    theirs = (params, SGD.init(params))
    mine: Any = jax.tree.map(jnp.copy, theirs)
    for _ in range(2):
        *mine, value = run(*mine, batch)
        *theirs, expected = step(*theirs, batch)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_a_padding_that_does_not_fit_the_stages_is_refused(found: Any, tmp_path: Path) -> None:
    found.save(tmp_path / "plan.json")
    raw = json.loads((tmp_path / "plan.json").read_text())
    for program in raw["programs"]:
        for row in program["padded"]:
            row[3] -= 1
    (tmp_path / "plan.json").write_text(json.dumps(resealed(raw)))
    with pytest.raises(PlanError, match="it pads dimension"):
        load(tmp_path / "plan.json").bind(loss, *ARGS, optimizer=SGD)
