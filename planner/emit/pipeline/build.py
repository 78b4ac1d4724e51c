# pyright: basic
"""From a loss and a cut to a pipeline that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ir.trace import Traced, cudnn_assumed, trace

from ...common.errors import PlanError
from ...pipeline.cut.equations import is_float
from ...pipeline.cut.opened_loss import Opened, cut_of
from ...pipeline.cut.solved_stage import Solved
from ...pipeline.cut.stage_gradient import StageProgram, joint_of, stage_program
from ...pipeline.cut.uses import Use
from ...pipeline.schedule import Schedule
from ...training.microbatch import wide
from .feed import Feed, Whole, joiner
from .holdings import where_of
from .layout import Layout, Plain, Planned
from .order import order_of
from .places import Stack, Where
from .programs import ChunkPrograms
from .runtime import Pipeline
from .transfer import Devices, whole
from .update import Update, update_of


def build_pipeline(
    loss: Opened,
    cuts: Sequence[int],
    schedule: Schedule,
    groups: Sequence[Devices],
    recompute: Sequence[str] = (),
    solved: Sequence[tuple[StageProgram, Solved]] = (),
    gpu_options: Sequence[Mapping[str, bool | int]] = (),
) -> Pipeline:
    """A pipeline with a stage between any two cuts.

    Args:
        loss: the loss to train.
        cuts: first slot of every stage, and the number of slots at the end.
        schedule: with as many stages and micro-batches.
        groups: devices of each device of the schedule.
        recompute: of each stage, one of `divide.run_costs.RECOMPUTE`; none if empty.
        solved: the stages' programs with what was decided for them; data parallel if empty.
        gpu_options: of XLA's compiler, of each stage.

    Raises:
        PlanError: if these do not fit together, or the schedule cannot run.
    """
    _check(loss, cuts, schedule, groups)
    cut = cut_of(loss, cuts, recompute)
    count = len(cut.stages)
    programs = [p for p, _ in solved] or [
        stage_program(joint_of(loss.program, cut, s)) for s in range(count)
    ]
    placement = schedule.placement
    readers = {key: cut.readers(key) for stage in cut.stages for key in stage.gives}
    chunks = tuple(
        ChunkPrograms(
            programs[stage], _layout(solved, gpu_options, stage, groups[placement.device[c]]),
            readers,
            recompute=bool(recompute) and recompute[stage] == "stage", name=f"stage{stage}",
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
    stored = _stored(chunks, where, uses)
    update, state_where, of_state = _update(loss, leaves, where, moves, groups, stored, chunks)
    parts, decision = loss.built.parts, loss.built.decision
    feeds = {
        (c, leaf): Feed.of(parts, leaf, groups[placement.device[c]], goal)
        for c, chunk in enumerate(chunks)
        for leaf, goal in zip(chunk.stage.batch, chunk.goals("batch"), strict=True)
    }
    scale = decision.scale(loss.microbatches) if parts else 1.0
    finish = tuple(
        (stage, key, joiner(parts, decision, k, scale, cut.structs[key].dtype))
        for k, (stage, key) in enumerate(cut.outputs)
    )
    seeds = {
        c: chunks[c].seed(scale) for c, stage in enumerate(placement.stage) if stage == finish[0][0]
    }
    types = (loss.params, loss.built.opt_state_structs, loss.batch)
    return Pipeline(
        schedule, tuple(groups), chunks, order_of(schedule), where, state_where, moves, feeds,
        update, finish, types, _aux(loss), seeds, _routes(schedule), _unread(uses, leaves, groups),
        _goals(chunks), (stored, of_state), Whole.of(loss.built.inside, loss.params),
    )  # fmt: skip


def _layout(
    solved: Sequence[tuple[StageProgram, Solved]], gpu_options: Sequence[Mapping[str, bool | int]],
    stage: int, devices: Devices,
) -> Layout:  # fmt: skip
    if not solved:
        return Plain(devices)
    return Planned(solved[stage][1], devices, gpu_options[stage] if gpu_options else {})


def _goals(chunks: Sequence[ChunkPrograms]) -> dict[tuple[Any, ...], Any]:
    """Shardings in which values and gradients are wanted where they arrive."""
    goals: dict[tuple[Any, ...], Any] = {}
    for c, chunk in enumerate(chunks):
        for key, goal in zip(chunk.stage.takes, chunk.goals("takes"), strict=True):
            goals[c, "takes", key] = goal
        for slope, goal in zip(chunk.incoming, chunk.goals("slopes"), strict=False):
            goals[c, slope.source, slope.key] = goal
    return goals


def _stored(
    chunks: Sequence[ChunkPrograms],
    where: Sequence[Where],
    uses: dict[int, list[tuple[int, Use]]],
) -> dict[tuple[int, int], Any]:
    """Shardings of parameters between steps, as their first readers want them."""
    found: dict[tuple[int, int], Any] = {}
    for leaf, readers in uses.items():
        for c, use in readers:
            there = where[leaf]
            n = 0
            if isinstance(there, Stack):
                n = [(low, high) for _, low, high in there.pieces].index((use.low, use.high))
            stage = chunks[c].stage
            rank = len(chunks[c].program.program.graph.types[
                chunks[c].program.args["params"][stage.params.index(use)]
            ].shape)  # fmt: skip
            goal = chunks[c].layout.stored(stage.params.index(use), rank)
            found.setdefault((leaf, n), goal)
    return found


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


def _aux(loss: Opened) -> Any:
    """Structure of aux; None without aux."""
    if not loss.has_aux:
        return None
    found = jax.eval_shape(loss.built.fn, loss.params, loss.built.opt_state_structs, loss.batch)
    return jax.tree.structure(found[2][1])


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
    stored: dict[tuple[int, int], Any],
    chunks: Sequence[ChunkPrograms],
) -> tuple[Update, tuple[Where, ...], dict[tuple[int, int], Any]]:
    """The optimizer's update, the places of its state, and its shardings there."""
    numbers = [k for k, m in enumerate(moves) if m]
    traced = trace_update(loss, moves, [_plain(leaves[k]) for k in numbers])
    places = [where[k] for k in numbers]
    heads, count = len(traced.program.consts), len(numbers)
    known = {heads + k: w for k, w in enumerate((*places, *places))}
    states = len(traced.args_info) - 2 * count - 1
    ties = [(heads + k, k) for k in range(count)]
    ties += [(heads + 2 * count + k, count + k) for k in range(states)]
    types = [traced.graph.type_of(o) for o in traced.graph.outputs]
    layouts = {chunk.layout.devices: chunk.layout for chunk in reversed(chunks)}

    def sharding(k: int, n: int, there: Where) -> Any:
        if k < count and (numbers[k], n) in stored:
            return stored[numbers[k], n]
        shape = types[k].shape
        if isinstance(there, Stack):
            group, low, high = there.pieces[n]
            shape = (high - low, *shape[1:])
        else:
            group = there.group
        layout = layouts.get(groups[group])
        return layout.state(shape) if layout else whole(groups[group], len(shape))

    ends: dict[int, Where] = {}
    update = update_of(
        traced.program, known, ties, dict(enumerate(places)), groups, [a for a, _ in ties],
        sharding, ends,
    )  # fmt: skip
    of_state = {
        (k, n): sharding(count + k, n, ends[count + k])
        for k in range(states)
        for n in range(len(update.written.outputs[count + k]))
    }
    return update, tuple(ends[count + k] for k in range(states)), of_state


@cudnn_assumed()
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
