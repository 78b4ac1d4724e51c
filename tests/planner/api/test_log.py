# pyright: basic
"""What the planner says: one line for a plan, and a log that is silent unless it is asked for."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from meshwright import NotFollowedWarning, load, parallelize, plan
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import BATCH, PARAMS, mean_loss, slow_machine, struct

ROOT = Path(__file__).resolve().parents[3]
X = struct(16, 8)


def multiplied(x: Any, y: Any, unused: Any) -> Any:
    return jnp.tanh(x @ y.T)


@without_proof()
def test_the_repr_of_a_plan_is_one_short_line() -> None:
    one = plan(multiplied, X, X, X, cluster="8xh100", mesh={"data": 8}, baselines=False)
    assert repr(one) == (
        f"<Plan of multiplied on 8xh100, data=8: step {one.step_s * 1e6:.3g} us, "
        f"{one.peak_bytes / 1e3:.2f} kB of 72.00 GB per device, gap {one.gap:.2%}>"
    )
    stages = plan(
        mean_loss, PARAMS, BATCH, cluster=slow_machine(2), optimizer=optax.sgd(0.1), pipeline=2,
        microbatches=2, baselines=False,
    )  # fmt: skip
    assert repr(stages).startswith("<Plan of mean_loss on 2xslow, 2 stages: step ")
    for text in (repr(stages), repr(stages.compile()), repr(parallelize(multiplied, plan=one))):
        assert len(text) < 160
        assert "\n" not in text


def test_the_log_says_what_is_done_by_pass(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    heard: list[str] = []
    with caplog.at_level(logging.DEBUG, logger="meshwright"):
        found = plan(multiplied, X, X, X, cluster=slow_machine(8), progress=heard.append)
        found.save(tmp_path / "plan.json")
        load(tmp_path / "plan.json").bind(multiplied, X, X, X).compile()
    assert {record.name for record in caplog.records} == {"meshwright"}
    told = {
        level: [r.getMessage() for r in caplog.records if r.levelno == level]
        for level in (logging.DEBUG, logging.INFO, logging.WARNING)
    }
    assert told[logging.DEBUG] == heard
    assert heard[0] == "trace"
    assert any(line.startswith("mesh x=8: best step") for line in heard)
    begins = (
        "planning multiplied on 8xslow",
        "planned: multiplied",
        "read ",
        "bound: ",
        "emitting",
    )
    assert len(told[logging.INFO]) == len(begins)
    assert all(line.startswith(b) for line, b in zip(told[logging.INFO], begins, strict=True))
    assert told[logging.WARNING] == list(found.warnings) != []


def test_a_parallelized_function_warns_of_what_its_plan_does_not_follow() -> None:
    def offloads(x: jax.Array) -> jax.Array:
        return jax.device_put(jnp.tanh(x), jax.memory.Space.Host)

    step = parallelize(offloads, cluster="host", baselines=False)
    with pytest.warns(NotFollowedWarning, match="nothing is offloaded") as caught:
        step(jnp.ones((8, 8)))
    assert caught[0].filename == __file__
    for size, ahead in enumerate((step.plan_for, step.structs_for, step.lower)):
        with pytest.warns(NotFollowedWarning) as caught:
            ahead(jnp.ones((size + 9, 8)))
        assert caught[0].filename == __file__
    step(jnp.ones((8, 8)))  # once for each plan: warnings are errors in tests


SCRIPT = """
import jax.numpy as jnp, numpy as np
from meshwright import parallelize
step = parallelize(lambda x, unused: jnp.tanh(x).sum(), cluster="host")
step(np.ones((8, 8), "f"), 1.0)
assert step.plan.warnings
"""


@pytest.mark.exhaustive
def test_it_is_silent_unless_it_is_asked() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], check=True, cwd=ROOT, capture_output=True)
    assert (ran.stdout, ran.stderr) == (b"", b"")
