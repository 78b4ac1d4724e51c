# pyright: basic
"""Ctrl-C while planning: the best plan so far, named as such; nothing else changes."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import planner
from planner.common.stop import Stop
from tests.planner.cli.runner import TARGETS, Run
from tests.planner.cli.test_process import started
from tests.planner.pipeline.unproved import without_proof

SHAPED = jax.ShapeDtypeStruct
LAYERS, WIDTH = 2, 256
PARAMS = {f"w{n}": SHAPED((WIDTH, WIDTH), jnp.float32) for n in range(LAYERS)}
BATCH = SHAPED((64, WIDTH), jnp.float32)


def loss(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    for n in range(LAYERS):
        batch = jnp.tanh(batch @ params[f"w{n}"])
    return jnp.mean(batch**2)


def at(begin: str) -> Callable[[str], None]:
    """A receiver of progress that presses Ctrl-C, once, at a line that begins so."""
    pressed: list[str] = []

    def heard(line: str) -> None:
        if not pressed and line.startswith(begin):
            pressed.append(line)
            os.kill(os.getpid(), signal.SIGINT)

    return heard


def interrupted(begin: str, cluster: str = "8xh100", **settings: Any) -> planner.Plan:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        planner.plan(
            loss, PARAMS, BATCH, cluster=cluster, optimizer=optax.sgd(0.1), progress=at(begin),
            **settings,
        )  # fmt: skip
    assert isinstance(caught.value, planner.Interrupted)
    assert signal.getsignal(signal.SIGINT) is before
    return caught.value.plan


@functools.cache
def whole(cluster: str = "8xh100", **settings: Any) -> planner.Plan:
    return planner.plan(
        loss, PARAMS, BATCH, cluster=cluster, optimizer=optax.sgd(0.1), **settings
    )  # fmt: skip


@pytest.mark.parametrize("begin", ["mesh x=2,y=2,z=2", "substitute"])
def test_the_best_plan_so_far_is_in_the_exception(begin: str) -> None:
    found, best = interrupted(begin), whole()
    assert found.file.stop is Stop.INTERRUPTED
    assert "interrupted; best found so far returned" in str(found)
    assert found.fits
    assert found.step_s >= best.step_s * (1 - 1e-9)
    assert found.lower_bound_s <= best.step_s * (1 + 1e-9)


def test_it_can_be_saved_and_read(tmp_path: Path) -> None:
    found = interrupted("substitute")
    found.save(tmp_path / "plan.json")
    assert planner.load(tmp_path / "plan.json").file.stop is Stop.INTERRUPTED


def test_it_is_not_kept_in_the_plan_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    interrupted("mesh x=2,y=2,z=2", cache=True)
    again = whole(cache=True)
    assert not again.cached
    assert again.file.stop is not Stop.INTERRUPTED


def test_without_a_plan_it_is_a_plain_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        planner.plan(
            loss, PARAMS, BATCH, cluster="8xh100", optimizer=optax.sgd(0.1), progress=at("trace")
        )
    assert not isinstance(caught.value, planner.Interrupted)


@without_proof()
@pytest.mark.parametrize(("begin", "said"), [("mesh x=2,y=2: best", False), ("a stage on 2", True)])
def test_one_program_is_kept_before_and_while_pipelines_are_planned(
    begin: str, *, said: bool
) -> None:
    found = interrupted(begin, "4xv100-16gb:2", pipeline="auto")
    assert not found.file.in_stages
    assert found.stop is Stop.INTERRUPTED
    assert any("pipelines was interrupted" in text for text in found.warnings) == said


def test_an_interrupt_that_a_library_lost_is_noticed_at_the_next_step() -> None:
    pressed: list[str] = []

    def lost(line: str) -> None:
        if not pressed and line.startswith("mesh x=2,y=2,z=2"):
            pressed.append(line)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                return

    with pytest.raises(KeyboardInterrupt) as caught:
        planner.plan(loss, PARAMS, BATCH, cluster="8xh100", optimizer=optax.sgd(0.1), progress=lost)
    assert isinstance(caught.value, planner.Interrupted)


PRESSES = """
import logging, os, signal
from step import sgd

class Presses(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith(BEGIN):
            logging.getLogger("meshwright").removeHandler(self)
            os.kill(os.getpid(), signal.SIGINT)

def target():
    logging.getLogger("meshwright").addHandler(Presses())
    logging.getLogger("meshwright").setLevel(logging.DEBUG)
    return sgd()
"""


def test_the_command_prints_the_plan_and_writes_it(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "presses.py").write_text(f"BEGIN = 'substitute'\n{PRESSES}", encoding="utf-8")
    words = ("plan", "presses.py:target", "-c", "4xh100", "--json", "--no-cache", "-o", "plan.json")
    out, err = (process := started(tmp_path, *words)).communicate(timeout=120)
    assert process.returncode == 130, err
    assert json.loads(out)["stop"] == Stop.INTERRUPTED.value
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("interrupted: planning was interrupted")
    assert planner.load(tmp_path / "plan.json").file.stop is Stop.INTERRUPTED


def test_progress_without_a_terminal_is_asked_for(run: Run) -> None:
    words = ("plan", "step.py:sgd", "-c", "4xh100", "--no-cache")
    plain, told = run(*words), run(*words, "--progress")
    assert plain.err == ""
    assert told.err.splitlines()[0] == "trace"
    assert plain.out.splitlines()[:5] == told.out.splitlines()[:5]
