# pyright: basic
"""Plan files of one program and of pipelines."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import optax

from planner import PlanError, load, plan
from planner.files.seal import sealed
from tests.planner.programs import BATCH, PARAMS, X, mean_loss, mlp, slow_machine
from tests.planner.sealing import resealed

from ..kind import ACCEPTED, EQUAL, Files, Kind, expect
from ..values import as_json, changed

NAME = "plan.json"
EXPLAIN = ("explain", "{file}")
BOUND, EXPLAINED = 0.02, 0.01  # shares of those that load


def branching(params: Any, x: Any) -> Any:
    """With a loop, a branch and a partial sum."""

    def step(carry: Any, _: Any) -> Any:
        return jax.lax.cond(carry.sum() > 0, jnp.tanh, jnp.sin, carry), carry.sum(0)

    return jax.lax.scan(step, mlp(params, x), None, length=2)


def layered(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - batch["y"]) ** 2)


LAYERS = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 4


def _branching() -> Any:
    return plan(
        branching, PARAMS, X, cluster=slow_machine(), mesh=(2, 4), pins=(("x", "[x,-]"),),
        donate_argnums=(1,),
    )  # fmt: skip


def _trained() -> Any:
    return plan(
        mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster=slow_machine(4),
        microbatches=2, pipeline="off", baselines=False,
    )  # fmt: skip


def _pipeline() -> Any:
    return plan(
        layered, LAYERS, BATCH, optimizer=optax.sgd(0.1), cluster=slow_machine(4), pipeline=2,
        microbatches=2, baselines=False, loss_reduction="mean",
    )  # fmt: skip


BIND: dict[str, Callable[[Any], Any]] = {
    "branching": lambda p: p.bind(branching, PARAMS, X),
    "mean_loss": lambda p: p.bind(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3)),
    "layered": lambda p: p.bind(layered, LAYERS, BATCH, optimizer=optax.sgd(0.1)),
}


@cache
def _saved(make: Callable[[], Any]) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        make().save(path)
        return {NAME: path.read_bytes()}


def _rewritten(rng: Random, files: Files) -> tuple[str, Files]:
    """Other data, under the seal of what was written."""
    how, value = changed(rng, json.loads(files[NAME]))
    return f"data: {how}", {NAME: as_json(rng, value)}


def _sealed(rng: Random, files: Files) -> tuple[str, Files]:
    """Other data, under a seal of its own."""
    how, value = changed(rng, json.loads(files[NAME]))
    return f"sealed data: {how}", {NAME: as_json(rng, resealed(value))}


def _text_of(found: Any) -> bytes:
    return sealed(found.file, "here")


def _name_of(files: Files) -> str:
    raw = json.loads(files[NAME])
    return (raw["pipeline"] or raw["programs"][0])["name"]


def _as_written(folder: Path, seed: Files, rng: Random) -> str:
    found = load(folder / NAME)
    expect(_text_of(found) == seed[NAME], "a changed plan was taken as it is")
    if rng.random() < BOUND:
        BIND[_name_of(seed)](found)
    return EQUAL


def _sound(folder: Path, seed: Files, rng: Random) -> str:
    """What has a seal may be another plan, but it is one of its own program."""
    found = load(folder / NAME)
    expect(str(found).replace("\n", "").isprintable(), "a page that a terminal cannot show")
    json.dumps(found.summary(), allow_nan=False)
    for one in found.file.programs:
        expect(one.lower_bound_s <= one.step_s * (1 + 1e-9), "a step below its bound")
    if rng.random() < EXPLAINED:
        _may(lambda: found.explain())
    if rng.random() < BOUND:
        _may(lambda: _places(BIND[_name_of(seed)](found)))
    return EQUAL if _text_of(found) == seed[NAME] else ACCEPTED


def _places(bound: Any) -> None:
    if bound.file.pipeline is None:
        expect(bool(bound.in_shardings) and bool(bound.out_shardings), "no shardings")


def _may(call: Callable[[], Any]) -> None:
    """Does something that may be refused."""
    with contextlib.suppress(PlanError):
        call()


def saved_plans() -> tuple[Files, ...]:
    """Plans of one program, as they were saved."""
    return (_saved(_branching), _saved(_trained))


def kinds(*, quick: bool) -> list[Kind]:
    seeds = saved_plans()
    found = [
        Kind("plan", seeds, _as_written, (_rewritten,), 4.0, EXPLAIN),
        Kind("plan, sealed anew", seeds, _sound, (_sealed,), 1.0, EXPLAIN),
    ]
    if not quick:
        stages = (_saved(_pipeline),)
        found += [
            Kind("pipeline", stages, _as_written, (_rewritten,), 2.0, EXPLAIN),
            Kind("pipeline, sealed anew", stages, _sound, (_sealed,), 0.5, EXPLAIN),
        ]
    return found
