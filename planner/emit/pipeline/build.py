# pyright: basic
"""From a loss and a cut to a pipeline that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ir.trace import Traced, trace

from ...errors import PlanError
from ...inter.chain import Chain
from ...microbatch import wide
from ...schedule import Schedule
from ...step import BuiltStep, build_step
from .equations import Equations, is_float, open_loss
from .feed import Feed, joiner
from .gradient import stage_program
from .holdings import where_of
from .layers import Layers, chain_of, layers_of
from .order import order_of
from .places import Stack, Where
from .programs import ChunkPrograms
from .runtime import Pipeline
from .stage import Use, staged
from .transfer import Devices, whole
from .update import Update, update_of


@dataclass(frozen=True)
class Opened:
    """A loss at the size of one micro-batch, ready to be cut.

    built: the unsharded step with as many micro-batches.
    params, batch: structs of the arguments.
    """

    built: BuiltStep
    program: Equations
    layers: Layers
    chain: Chain
    params: Any
    batch: Any
    microbatches: int
    has_aux: bool


def opened(
    loss_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    optimizer: Any,
    *,
    microbatches: int,
    has_aux: bool = False,
    loss_reduction: str = "auto",
    batch_axis: int = 0,
) -> Opened:
    """Traces a loss for a pipeline; arguments as of `build_step`.

    Raises:
        PlanError: if the batch or the loss cannot be cut, or the program has effects.
    """
    built = build_step(
        loss_fn, params, batch, optimizer, has_aux=has_aux, microbatches=microbatches,
        loss_reduction=loss_reduction, batch_axis=batch_axis,
    )  # fmt: skip
    params, batch = jax.eval_shape(lambda *trees: trees, params, batch)
    program = open_loss(loss_fn, params, _micro(batch, built))
    layers = layers_of(program)
    return Opened(built, program, layers, chain_of(layers), params, batch, microbatches, has_aux)


def _micro(batch: Any, built: BuiltStep) -> Any:
    """Structs of one micro-batch."""
    parts = built.parts
    if parts is None:
        return batch
    leaves, tree = jax.tree.flatten(batch)
    found = []
    for leaf, role in zip(leaves, parts.roles, strict=True):
        shape = list(leaf.shape)
        if role == "rows":
            shape[parts.axis] //= parts.count
        found.append(jax.ShapeDtypeStruct(tuple(shape), leaf.dtype))
    return jax.tree.unflatten(tree, found)


def build_pipeline(
    loss: Opened,
    cuts: Sequence[int],
    schedule: Schedule,
    groups: Sequence[Devices],
    recompute: Sequence[bool] = (),
) -> Pipeline:
    """A pipeline with a stage between any two cuts.

    Args:
        loss: what is trained.
        cuts: first slot of every stage, and the number of slots at the end.
        schedule: with as many stages and micro-batches.
        groups: devices of each device of the schedule.
        recompute: of each stage, whether it keeps only what comes in; none of them if empty.

    Raises:
        PlanError: if these do not fit together, or the schedule cannot run.
    """
    _check(loss, cuts, schedule, groups)
    cut = staged(loss.layers, cuts)
    count = len(cut.stages)
    programs = [stage_program(loss.program, cut, s) for s in range(count)]
    placement = schedule.placement
    readers = {key: cut.readers(key) for stage in cut.stages for key in stage.gives}
    chunks = tuple(
        ChunkPrograms(
            programs[stage], groups[placement.device[c]], readers,
            recompute=bool(recompute) and recompute[stage], name=f"stage{stage}",
        )
        for c, stage in enumerate(placement.stage)
    )  # fmt: skip
    uses: dict[int, list[tuple[int, Use]]] = {}
    for c, stage in enumerate(placement.stage):
        for use in cut.stages[stage].params:
            uses.setdefault(use.leaf, []).append((c, use))
    leaves = jax.tree.leaves(loss.params)
    where = tuple(where_of(uses.get(k, ()), placement.device) for k in range(len(leaves)))
    moves = tuple(is_float(leaf) for leaf in leaves)
    update, state_where = _update(loss, leaves, where, moves, groups)
    parts, decision = loss.built.parts, loss.built.decision
    feeds = {
        (placement.device[c], leaf): Feed.of(parts, leaf, groups[placement.device[c]])
        for c, stage in enumerate(placement.stage)
        for leaf in cut.stages[stage].batch
    }
    scale = 1 / loss.microbatches if parts and decision.reduction == "mean" else 1.0
    finish = tuple(
        (stage, key, joiner(parts, decision, k, scale, cut.structs[key].dtype))
        for k, (stage, key) in enumerate(cut.outputs)
    )
    seeds = {
        c: chunks[c].seed(scale) for c, stage in enumerate(placement.stage) if stage == finish[0][0]
    }
    return Pipeline(
        schedule, tuple(groups), chunks, order_of(schedule), where, state_where, moves, feeds,
        update, finish, _trees(loss), seeds, _routes(schedule), _unread(uses, leaves, groups),
    )  # fmt: skip


def _check(
    loss: Opened, cuts: Sequence[int], schedule: Schedule, groups: Sequence[Devices]
) -> None:
    found = (len(cuts) - 1, loss.microbatches, len(groups))
    wanted = (schedule.placement.stages, schedule.microbatches, schedule.devices)
    if found != wanted:
        names = ("stages", "micro-batches", "groups of devices")
        what = ", ".join(f"{n} {name}" for n, name in zip(found, names, strict=True))
        raise PlanError(
            f"'{schedule.name}' is for {', '.join(map(str, wanted))}, there are {what}",
            kind="bad-schedule", where="schedule", remedy="build it for these numbers",
        )  # fmt: skip


def _trees(loss: Opened) -> tuple[Any, Any, Any, Any]:
    found = jax.eval_shape(loss.built.fn, loss.params, loss.built.opt_state_structs, loss.batch)
    aux = jax.tree.structure(found[2][1]) if loss.has_aux else None
    trees = (loss.params, loss.built.opt_state_structs, loss.batch)
    return (*map(jax.tree.structure, trees), aux)  # type: ignore[return-value]


def _routes(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    placement = schedule.placement
    return tuple(
        tuple(sorted(placement.routes[r], key=lambda c: placement.stage[c])) for r in schedule.route
    )


def _unread(
    uses: dict[int, Any], leaves: Sequence[Any], groups: Sequence[Devices]
) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for k, leaf in enumerate(leaves):
        if k not in uses and is_float(leaf):
            shape, dtype = leaf.shape, wide(leaf.dtype)
            found[k] = jax.jit(
                lambda shape=shape, dtype=dtype: jnp.zeros(shape, dtype),
                out_shardings=whole(groups[0], len(shape)),
            )
    return found


def _update(
    loss: Opened,
    leaves: Sequence[Any],
    where: Sequence[Where],
    moves: Sequence[bool],
    groups: Sequence[Devices],
) -> tuple[Update, tuple[Where, ...]]:
    """The optimizer's update, and the places of its state."""
    moving = [_plain(x) for x, m in zip(leaves, moves, strict=True) if m]
    traced = trace_update(loss, moves, moving)
    places = [w for w, m in zip(where, moves, strict=True) if m]
    heads, count = len(traced.program.consts), len(moving)
    known = {heads + k: w for k, w in enumerate((*places, *places))}
    states = len(traced.args_info) - 2 * count - 1
    outputs = range(count, count + states)
    ties = [(heads + k, k) for k in range(count)]
    ties += [(heads + 2 * count + k, outputs[k]) for k in range(states)]
    donated = [a for a, _ in ties]
    ranks = [traced.graph.type_of(o).rank for o in traced.graph.outputs]
    goals: dict[int, Where] = dict(enumerate(places))

    def sharding(k: int, n: int) -> Any:
        there = update_places[k]
        group = there.pieces[n][0] if isinstance(there, Stack) else there.group
        return whole(groups[group], ranks[k])

    update_places: dict[int, Where] = {}
    update = update_of(traced.program, known, ties, goals, groups, donated, sharding, update_places)
    return update, tuple(update_places[k] for k in outputs)


def trace_update(loss: Opened, moves: Sequence[bool], moving: Sequence[Any]) -> Traced:
    """The update as a program: (parameters, sums of gradients, state, loss) -> (new, state)."""
    loss_struct = jax.eval_shape(
        loss.built.fn, loss.params, loss.built.opt_state_structs, loss.batch
    )[2]
    loss_struct = loss_struct[0] if loss.has_aux else loss_struct

    def update(moving: Any, sums: Any, state: Any, value: Any) -> Any:
        fresh = iter(moving)
        leaves = [next(fresh) if m else None for m in moves]
        grads = [s.astype(p.dtype) for s, p in zip(sums, moving, strict=True)]
        return loss.built.update(leaves, grads, state, value)

    sums = [jax.ShapeDtypeStruct(x.shape, wide(x.dtype)) for x in moving]
    state = jax.tree.map(_plain, loss.built.opt_state_structs)
    return trace(update, list(moving), sums, state, _plain(loss_struct))


def _plain(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
