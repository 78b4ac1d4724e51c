# pyright: basic
"""Random training steps: losses, optimizers, micro-batches, stages, schedules; never wrong.

A step that runs in parts must be the step on the whole batch, parameters, optimizer state, loss
and aux alike. What no micro-batches give is refused with one error of ours, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from planner import NotAProgramError, PlanError, plan
from planner.emit.pipeline.build import build_pipeline
from planner.emit.pipeline.transfer import split_devices
from planner.pipeline.cut.opened_loss import opened
from planner.pipeline.schedule import build
from planner.training.step import build_step
from tests.planner.programs import slow_machine

from .training_losses import arguments, random_loss

STEPS = 2
RTOL, ATOL = 2e-3, 2e-5
GROUPS = ((4, 4), (2, 2), (1, 1), (2, 2, 2, 2), (6, 2), (3, 5), (1, 3))
SCHEDULES = (
    "gpipe", "1f1b", "1f1b-eager", "1f1b-deep", "interleaved", "zb-h1", "zb-h2", "zb-v",
)  # fmt: skip
RECOMPUTE = ("none", "stage", "selective", "full")
# How the step runs: one program as it is built, planned on devices, or in stages.
HOW, SHARES = ("step", "plan", "stages"), (0.45, 0.1, 0.45)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optax.adamw(1e-2, eps=1e-2),  # not the sign of what is all but zero
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
    "lion": lambda: optax.chain(optax.trace(0.9), optax.scale(-0.1)),
    "schedule": lambda: optax.sgd(optax.linear_schedule(0.1, 0.01, 10)),
    "lamb": lambda: optax.lamb(1e-2, eps=1e-2),
}


class Settings(NamedTuple):
    """How a training step runs.

    how: step (one program, not split), plan (planned for eight devices), or stages.
    sizes: devices of each group; recompute: of each stage.
    refusable: it may be refused: no micro-batches give the loss, or they have one example each.
    """

    how: str
    microbatches: int
    has_aux: bool
    schedule: str
    sizes: tuple[int, ...]
    recompute: tuple[str, ...]
    refusable: bool
    seed: int
    what: str


class Outcome(NamedTuple):
    """What became of a random training step: `wrong` says how it differs, empty if it does not."""

    what: str
    refused: str = ""
    wrong: str = ""


def random_training(seed: int) -> tuple[Callable[..., Any], Any, Any, Any, Settings]:
    """A loss, parameters, a batch, an optimizer, and how the step is run."""
    draw = np.random.default_rng(seed)
    count = int(draw.choice([2, 3, 4]))
    batch = count * int(draw.choice([1, 2, 3], p=[0.1, 0.6, 0.3]))
    sizes = GROUPS[int(draw.integers(len(GROUPS)))]
    schedule = str(draw.choice(SCHEDULES))
    how = str(draw.choice(HOW, p=SHARES))
    params, data = arguments(draw, batch, int(draw.integers(4, 7)))
    has_aux = bool(draw.random() < 0.25)
    loss, what, whole_only = random_loss(draw, has_aux)
    if schedule == "interleaved" and count % len(sizes):
        schedule = "1f1b"
    name = str(draw.choice(list(OPTIMIZERS)))
    recompute = tuple(str(r) for r in draw.choice(RECOMPUTE, 16))
    run = f"{schedule} on {sizes}" if how == "stages" else how
    settings = Settings(
        how, count, has_aux, schedule, sizes, recompute, whole_only or batch == count, seed,
        f"{what}, {name}, {batch} examples in {count} parts, {run}",
    )  # fmt: skip
    return loss, params, data, OPTIMIZERS[name](), settings


def check_training(seed: int) -> str | None:
    """How the random step of a seed is wrong; None if it is right, or refused."""
    return tried(seed).wrong or None


def tried(seed: int) -> Outcome:
    """Runs a random step in parts and as it is."""
    loss, params, batch, optimizer, settings = random_training(seed)
    try:
        step, init = _step(loss, params, batch, optimizer, settings)
    except PlanError as error:
        defect = isinstance(error, NotAProgramError)
        if not defect and (settings.refusable or error.kind == "so-few-layers"):
            return Outcome(settings.what, refused=str(error))
        return Outcome(settings.what, wrong=f"seed {seed}: {settings.what}: refused: {error}")
    except Exception as error:
        return Outcome(settings.what, wrong=f"seed {seed}: {type(error).__name__}: {error}")
    whole = whole_step(loss, optimizer, settings.has_aux)
    expected = run_steps(jax.jit(whole), params, optimizer.init(params), batch)
    try:
        found = run_steps(step, params, init(params), batch)
    except Exception as error:
        return Outcome(settings.what, wrong=f"seed {seed}: {type(error).__name__}: {error}")
    wrong = difference_of(found, expected)
    return Outcome(settings.what, wrong=f"seed {seed}: {settings.what}: {wrong}" if wrong else "")


def _step(loss: Any, params: Any, batch: Any, optimizer: Any, s: Settings) -> tuple[Any, Any]:
    """The step in parts, and what makes its optimizer state."""
    if s.how == "step":
        built = build_step(
            loss, params, batch, optimizer, microbatches=s.microbatches, has_aux=s.has_aux
        )
        return jax.jit(built.fn), built.init
    if s.how == "plan":
        made = plan(
            loss, params, batch, optimizer=optimizer, cluster=slow_machine(8), has_aux=s.has_aux,
            microbatches=s.microbatches, pipeline="off", baselines=False, time_limit_s=5.0,
        )  # fmt: skip
        return made.compile(), optimizer.init
    opened_ = opened(loss, params, batch, optimizer, microbatches=s.microbatches, has_aux=s.has_aux)
    table = build(s.schedule, len(s.sizes), s.microbatches)
    stages = table.placement.stages
    draw = np.random.default_rng(s.seed)
    places = [c for c in opened_.chain.places() if 0 < c < len(opened_.chain.slots)]
    if len(places) < stages - 1:
        raise PlanError("so few layers", kind="so-few-layers")
    cuts = sorted(draw.choice(places, stages - 1, replace=False).tolist())
    groups = split_devices(jax.devices(), s.sizes)
    recompute = s.recompute[:stages] if draw.random() < 0.5 else ()
    cuts = (0, *cuts, len(opened_.chain.slots))
    pipeline = build_pipeline(opened_, cuts, table, groups, recompute)
    return pipeline, opened_.built.init


def whole_step(loss: Any, optimizer: Any, has_aux: bool) -> Any:
    """The step on the whole batch, as anyone would write it."""

    def step(params: Any, state: Any, batch: Any) -> Any:
        found, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, found

    return step


def run_steps(step: Any, params: Any, state: Any, batch: Any) -> Any:
    found = []
    params, state = jax.tree.map(lambda x: x + 0, (params, state))  # steps may donate them
    for _ in range(STEPS):
        params, state, result = step(params, state, batch)
        found.append(jax.tree.map(np.asarray, result))
    return jax.tree.map(np.asarray, (params, state)), found


def difference_of(found: Any, expected: Any) -> str:
    """What differs first, in words."""
    a, form = jax.tree_util.tree_flatten_with_path(found)
    b, other = jax.tree.flatten(expected)
    if form != other:
        return f"the result is a {form}, expected a {other}"
    for (path, x), y in zip(a, b, strict=True):
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{jax.tree_util.keystr(path)} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        # an infinite tolerance would take anything
        scale = max(1.0, float(np.abs(y).max(initial=0.0, where=np.isfinite(y))))
        if not np.allclose(x, y, rtol=RTOL, atol=ATOL * scale, equal_nan=True):
            with np.errstate(invalid="ignore"):
                off = float(np.abs(x - y).max())
            return f"{jax.tree_util.keystr(path)} is off by {off:.3g} at a size of {scale:.3g}"
    return ""
