# pyright: basic
"""Options of XLA's compiler in plan files, and in the programs of stages."""

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
from planner.common import compiler_options
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import BATCH, PARAMS, mean_loss
from tests.planner.sealing import resealed, with_program

SETTINGS = {"optimizer": optax.sgd(0.1), "microbatches": 2, "loss_reduction": "mean"}


def zeros(structs):
    return jax.tree.map(lambda s: jnp.asarray(np.zeros(s.shape, s.dtype)), structs)


def run(made, tmp_path: Path, options: dict[str, bool]) -> None:
    """Runs a step of a plan whose file has other options."""
    made.save(tmp_path / "plan.json")
    raw = json.loads((tmp_path / "plan.json").read_text())
    for program in raw["programs"]:
        assert program["compiler_options"] == compiler_options.compiler_options(overlap=True)
        program["compiler_options"] = options
    (tmp_path / "plan.json").write_text(json.dumps(resealed(raw)))
    changed = load(tmp_path / "plan.json").bind(
        mean_loss, PARAMS, BATCH, optimizer=SETTINGS["optimizer"]
    )
    assert changed.compiler_options == options
    step = changed.compile()
    params, batch = zeros(PARAMS), zeros(BATCH)
    state = SETTINGS["optimizer"].init(params)
    if changed.file.in_stages:
        params, state = step.place(params, 0), step.place(state, 1)
    jax.block_until_ready(step(params, state, batch)[-1])


@without_proof()
@pytest.mark.parametrize("pipeline", ["off", 2])
def test_the_options_of_a_file_are_set_on_gpus(pipeline, tmp_path: Path, monkeypatch) -> None:
    quick: Any = SETTINGS | {"cluster": "2xh100", "baselines": False, "substitutions": False}
    made = plan(mean_loss, PARAMS, BATCH, pipeline=pipeline, **quick)
    assert made.compiler_options
    unknown = {"xla_gpu_no_such_option": True}
    run(made, tmp_path, unknown)
    monkeypatch.setattr(compiler_options, "GPU_PLATFORMS", ("cpu",))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_no_such_option"):
        run(made, tmp_path, unknown)


def test_only_options_of_the_gpu_compiler_are_read(tmp_path: Path) -> None:
    made = plan(mean_loss, PARAMS, BATCH, cluster="8xh100", optimizer=SETTINGS["optimizer"],
                overlap=False)  # fmt: skip
    assert made.compiler_options == made.program.compiler_options == {}
    made.save(tmp_path / "plan.json")
    raw = json.loads((tmp_path / "plan.json").read_text())
    for options in ({"xla_dump_to": True}, {"xla_gpu_dump_llvmir": "/tmp"}):
        (tmp_path / "plan.json").write_text(
            json.dumps(resealed(with_program(raw, compiler_options=options)))
        )
        with pytest.raises(PlanError, match="compiler_options"):
            load(tmp_path / "plan.json")
