# pyright: basic
"""Pipelines beside unsharded steps, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from planner.common.options import Options
from planner.common.request import Request
from planner.emit.pipeline.build import build_pipeline
from planner.emit.pipeline.scan import scanned_pipeline
from planner.emit.pipeline.transfer import split_devices
from planner.pipeline.cut.chain import Chain
from planner.pipeline.cut.opened_loss import Opened, cut_of, opened
from planner.pipeline.cut.solved_stage import solved_of
from planner.pipeline.cut.stage_gradient import Joint, joint_of
from planner.pipeline.cut.stage_training_step import ROLES, training_step_of
from planner.pipeline.schedule import build
from planner.sharding.plan_traced import One, plan_traced
from planner.training.step import build_step
from planner.training.step_call import StepCall
from tests.planner.programs import linked, slow_machine

# Schedules that stages run under, task by task.
RUN = (
    "gpipe", "1f1b", "1f1b-eager", "1f1b-deep", "interleaved", "zb-h1", "zb-h2", "zb-v", "chimera",
)  # fmt: skip
CLIPPED = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))


def everything(params: Any, batch: Any) -> Any:
    """Tied embeddings, a scanned stack, a skip past it, dropout, a loss term of every layer."""
    x = skip = params["tok"][batch["ids"]]

    def layer(x: Any, p: Any) -> Any:
        y = jnp.tanh(x @ p["w"].astype(x.dtype) + p["b"])
        return x + y, jnp.mean(jnp.square(y))

    x, terms = lax.scan(layer, x, params["layers"])
    x = jnp.where(jax.random.bernoulli(batch["key"], 0.9, x.shape), x, 0.0)
    x = jax.nn.relu(x + skip * params["gain"]) * params["count"].astype(x.dtype)
    logits = x @ params["tok"].T
    picked = jnp.take_along_axis(logits, batch["ids"][..., None], axis=-1)[..., 0]
    loss = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked) + 0.1 * jnp.sum(terms)
    return loss, {"top": jnp.max(logits, axis=(1, 2)), "terms": terms}


def masked(params: Any, batch: Any) -> Any:
    """The mean over valid tokens, with dropout in every layer of a stack, each computed again."""
    x = params["tok"][batch["ids"]]

    @jax.checkpoint
    def layer(x: Any, p: Any, key: Any) -> Any:
        y = jnp.tanh(x @ p["w"] + p["b"])
        return x + jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0.0)

    keys = jax.random.split(batch["key"], params["layers"]["w"].shape[0])
    x, _ = lax.scan(lambda x, pk: (layer(x, *pk), None), x, (params["layers"], keys))
    each = optax.softmax_cross_entropy_with_integer_labels(x @ params["tok"].T, batch["ids"])
    valid = (batch["ids"] % 3 > 0).astype(each.dtype)
    loss = jnp.sum(each * valid) / jnp.maximum(jnp.sum(valid), 1)
    penalty = 1e-2 * jnp.sum(params["gain"] ** 2)
    return loss + penalty, {"perplexity": jnp.exp(loss), "each": each}


def written_out(params: Any, batch: Any) -> Any:
    """Layers that are written out, with dropout in each, and tied embeddings."""
    x = params["tok"][batch["ids"]]
    keys = jax.random.split(batch["key"], len(params["layers"]))
    for p, key in zip(params["layers"], keys, strict=True):
        y = jnp.tanh(x @ p["w"] + p["b"])
        x = x + jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0.0)
    each = optax.softmax_cross_entropy_with_integer_labels(x @ params["tok"].T, batch["ids"])
    return jnp.mean(each) + 1e-2 * jnp.sum(params["gain"] ** 2), {"each": each}


def arguments(layers: int = 4, batch: int = 8) -> tuple[Any, Any]:
    """Parameters and a batch of `everything`."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape) * 0.3, jnp.float32)

    params = {
        "tok": weight(16, 8), "gain": weight(8), "count": jnp.asarray(1, jnp.int32),
        "layers": {"w": weight(layers, 8, 8), "b": weight(layers, 8)}, "unread": weight(3),
    }  # fmt: skip
    ids = jnp.asarray(rng.integers(0, 16, (batch, 4)))
    return params, {"ids": ids, "key": jax.random.key(1)}


def arguments_apart(layers: int = 4, batch: int = 8) -> tuple[Any, Any]:
    """The same with parameters of each layer apart, for `written_out`."""
    params, data = arguments(layers, batch)
    each = [jax.tree.map(lambda leaf, k=k: leaf[k], params["layers"]) for k in range(layers)]
    return params | {"layers": each}, data


def pipeline_of(
    loss_fn: Any,
    params: Any,
    batch: Any,
    *,
    schedule: str = "1f1b",
    sizes: Sequence[int] = (4, 4),
    microbatches: int = 4,
    optimizer: Any = CLIPPED,
    shares: Sequence[float] = (),
    cuts: Sequence[int] = (),
    recompute: Sequence[str] = (),
    mesh: tuple[int, ...] | None = None,
    planned: bool = False,
    scanned: bool = False,
    edited: Callable[[Joint, int], Joint] | None = None,
    **settings: Any,
) -> tuple[Opened, Any]:
    """A pipeline with a stage for every chunk of a schedule, on groups of the given sizes.

    With `mesh` every stage is split as the planner decides for that shape, with `planned` for the
    best one; `edited` makes another program of each stage, given its number. If `scanned` it is one
    program, whose stages are planned.
    """
    loss = opened(loss_fn, params, batch, optimizer, microbatches=microbatches, **settings)
    table = build(schedule, len(sizes), microbatches)
    cuts = cuts or cuts_near(loss.chain, shares or (1.0,) * table.placement.stages)
    groups = split_devices(jax.devices(), sizes)
    solved = []
    if mesh is not None or planned:
        cut = cut_of(loss, cuts, recompute)
        for s in range(len(cut.stages)):
            joint = joint_of(loss.program, cut, s)
            joint = edited(joint, s) if edited else joint
            stage = training_step_of(joint, microbatches, optimizer)
            machine = linked(slow_machine(sizes[table.placement.device[s]]))
            one = One(StepCall(loss_fn, (), (), "auto"), microbatches, (0, 1), ROLES, f"stage {s}")
            request = Request(machine, Options(mesh=mesh, baselines=False))
            _, found = plan_traced(one, stage.traced, request, 0.0)
            best = found.best
            solved.append(
                (stage.program, solved_of(stage, best.decisions, best.builder.cache.reshard))
            )
    if scanned:
        return loss, scanned_pipeline(loss, cuts, table, jax.devices(), recompute, solved, {})
    return loss, build_pipeline(loss, cuts, table, groups, recompute, solved)


def cuts_near(chain: Chain, shares: Sequence[float]) -> tuple[int, ...]:
    """Cuts at the places nearest to where the work is divided as the shares say."""
    places, cuts = list(chain.places()), [0]
    for s in range(1, len(shares)):
        wanted = chain.work[-1] * sum(shares[:s]) / sum(shares)
        left = len(shares) - 1 - s
        free = [c for c in places if c > cuts[-1]]
        cuts.append(min(free[: len(free) - left], key=lambda c: abs(chain.work[c] - wanted)))
    return (*cuts, len(chain.slots))


def three_steps(step: Any, params: Any, state: Any, batch: Any) -> tuple[Any, Any, list[Any]]:
    """Parameters, state and all results of three steps."""
    found = []
    for _ in range(3):
        params, state, result = step(params, state, batch)
        found.append(jax.tree.map(np.asarray, result))
    return params, state, found


def unsharded_steps(
    loss_fn: Any,
    params: Any,
    batch: Any,
    *,
    optimizer: Any = CLIPPED,
    microbatches: int = 4,
    **settings: Any,
) -> tuple[Any, Any, list[Any]]:
    """Three steps of the unsharded program; settings as of `build_step`."""
    built = build_step(loss_fn, params, batch, optimizer, microbatches=microbatches, **settings)
    return three_steps(jax.jit(built.fn), params, built.init(params), batch)


def assert_equal_steps(
    loss_fn: Any,
    params: Any,
    batch: Any,
    *,
    optimizer: Any = CLIPPED,
    expected: tuple[Any, Any, list[Any]] | None = None,
    **settings: Any,
) -> None:
    """Three steps of a pipeline are three steps of the unsharded program on the whole batch.

    Args:
        loss_fn: what is trained.
        params: of it.
        batch: of every step.
        optimizer: of the parameters.
        expected: `unsharded_steps`, where they are known.
        settings: of `pipeline_of`.
    """
    loss, pipeline = pipeline_of(loss_fn, params, batch, optimizer=optimizer, **settings)
    state = loss.built.init(params)
    if expected is None:
        has_aux = settings.get("has_aux", False)
        expected = unsharded_steps(
            loss_fn, params, batch, optimizer=optimizer, microbatches=1, has_aux=has_aux
        )
    found = three_steps(pipeline, params, state, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        b = np.asarray(b)
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        np.testing.assert_allclose(np.asarray(a), b, rtol=2e-4, atol=2e-5 * scale)
