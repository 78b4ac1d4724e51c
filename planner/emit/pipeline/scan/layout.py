# pyright: basic
"""What the one program of a pipeline holds: parameters over stages, wires, pools, sums, results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ir import Sharding, TensorType, replicated

from ....common.errors import PlanError
from ....pipeline.cut.equations import is_float
from ....pipeline.cut.opened_loss import Opened
from ....pipeline.cut.solved_stage import Solved, finished
from ....pipeline.cut.stage import Staged
from ....pipeline.cut.stage_gradient import Slope, StageProgram
from ....pipeline.cut.uses import Use, use_struct
from ....pipeline.schedule.lockstep import Lockstep
from ....training.microbatch import wide
from ...local_op import partition_spec
from .local_stage import LocalStage
from .wires import Form, Pool, Wires, pool_of, wires_of

STAGES = "stages"  # the mesh axis of the stages


@dataclass(frozen=True)
class Held:
    """A parameter: the same part of it on each stage, or all of it on every stage.

    rows: entries of its first dimension that each stage holds, consecutive ones; 0 for all of it.
    goal: sharding within a stage while it computes, of the part.
    stored: the same between steps, also of sums of its gradient.
    """

    rows: int
    goal: Sharding
    stored: Sharding

    def spec(self, state: Sharding, axis: str) -> PartitionSpec:
        """Of the whole parameter, for `goal` or `stored`."""
        if not self.rows:
            return partition_spec(state)
        first, *rest = state.dims
        return partition_spec(Sharding(((axis, *first), *rest)))

    def entries(self, use: Use) -> tuple[int, int] | None:
        """Where in the part of its stage a program reads it; None for all of that."""
        if not self.rows or use.high - use.low == self.rows:
            return None
        return use.low % self.rows, use.low % self.rows + use.high - use.low


@dataclass(frozen=True)
class ScanLayout:
    """What the devices of each stage hold while they run the rounds.

    axis: name of the mesh axis of the stages.
    stages: of the pipeline.
    held: of each parameter.
    batch: sharding within a stage of each leaf of a micro-batch that some stage reads.
    ahead, back: wires for values and for gradients.
    saved, between: what the forward and the input gradient keep.
    sums: of the gradients; each array has one entry for each of its sums.
    results: for each result of the loss, its stage, value, type and sharding.
    """

    axis: str
    stages: tuple[LocalStage, ...]
    held: tuple[Held, ...]
    batch: Mapping[int, Sharding]
    ahead: Wires
    back: Wires
    saved: Pool
    between: Pool
    sums: Pool
    results: tuple[tuple[int, Hashable, TensorType, Sharding], ...]

    @property
    def result_forms(self) -> tuple[Form, ...]:
        """Local shapes and types of the results of a micro-batch."""
        return tuple(self.stages[s].form(type_, state) for s, _, type_, state in self.results)


def scan_layout(
    loss: Opened,
    cut: Staged,
    solved: Sequence[tuple[StageProgram, Solved]],
    recompute: Sequence[str],
    rounds: Lockstep,
) -> ScanLayout:
    """Chooses how values lie where stages meet.

    Raises:
        PlanError: if stages have other meshes, or do not divide the stacked parameters evenly.
    """
    meshes = {(s.decisions.mesh.names, s.decisions.mesh.sizes) for _, s in solved}
    if len(meshes) > 1:
        found = ", ".join(str(s.decisions.mesh) for _, s in solved)
        raise refused(f"its stages have different meshes: {found}")
    again = [bool(recompute) and kind == "stage" for kind in recompute or [""] * len(solved)]
    stages = [LocalStage(p, s, r) for (p, s), r in zip(solved, again, strict=True)]
    held = _held(loss, stages)
    batch: dict[int, Sharding] = {}
    for stage in stages:
        for leaf, v in zip(stage.stage.batch, stage.program.args["batch"], strict=True):
            batch.setdefault(leaf, _known(stage, v))
    ahead, back = _ahead(cut, stages), _back(cut, stages)
    results = tuple(_result(cut, stages, s, key, ahead) for s, key in cut.outputs)
    own = {(s, key): state for s, key, _, state in results}
    stages = [
        replace(
            stage, arrives=_arrives(stage, held, batch, ahead, back),
            leaves=_leaves(stage, ahead, back, own),
        )
        for stage in stages
    ]  # fmt: skip
    saved = [stage.forms(stage.saved) for stage in stages]
    late = any(rounds.between.most)
    between = [stage.forms(stage.program.parts.between) if late else [] for stage in stages]
    names = stages[0].solved.decisions.mesh.names
    axis = next(name for name in (STAGES, STAGES + "_", "_" + STAGES) if name not in names)
    return ScanLayout(
        axis, tuple(stages), held, batch, ahead, back, pool_of(saved, rounds.saved.most),
        pool_of(between, rounds.between.most),
        pool_of([stage.sum_forms() for stage in stages], (1,) * len(stages)), results,
    )  # fmt: skip


def _known(stage: LocalStage, v: int) -> Sharding:
    """What was decided for an argument; those that no op reads have negative numbers."""
    return finished(stage.solved.decisions.values[(), v])


def _held(loss: Opened, stages: Sequence[LocalStage]) -> tuple[Held, ...]:
    uses: dict[int, list[tuple[int, Use, Sharding, Sharding]]] = {}
    for s, stage in enumerate(stages):
        args = zip(stage.stage.params, stage.program.args["params"], strict=True)
        for n, (use, v) in enumerate(args):
            item = (s, use, _known(stage, v), stage.solved.params[n])
            uses.setdefault(use.leaf, []).append(item)
    found: list[Held] = []
    for leaf, param in enumerate(loss.program.params):
        readers = uses.get(leaf, [])
        if not readers:
            whole = replicated(loss.program.avals[param].ndim)
            found.append(Held(0, whole, whole))
            continue
        rows = 0
        if not readers[0][1].whole:
            rows = _even_rows(loss, leaf, [(s, use) for s, use, _, _ in readers], len(stages))
        (goal, stored), _ = Counter((a, b) for _, _, a, b in readers).most_common(1)[0]
        found.append(Held(rows, goal, stored))
        apart = any(found[-1].entries(use) for _, use, _, _ in readers)
        if apart and (goal.dims[0] or stored.dims[0]):
            raise refused("devices of a stage split entries of a stack that are read apart")
    return tuple(found)


def _even_rows(loss: Opened, leaf: int, readers: Sequence[tuple[int, Use]], stages: int) -> int:
    """Entries of a stack that each stage holds: the same number on each, in order."""
    length = loss.program.avals[loss.program.params[leaf]].shape[0]
    rows, spans = length // stages, dict[int, list[tuple[int, int]]]()
    for s, use in readers:
        own = spans.setdefault(s, [])
        if own and own[-1][1] == use.low:
            own[-1] = (own[-1][0], use.high)
        else:
            own.append((use.low, use.high))
    if rows * stages != length or spans != {s: [(s * rows, (s + 1) * rows)] for s in range(stages)}:
        found = (f"{low} to {high - 1}" for own in spans.values() for low, high in own)
        raise refused(
            f"its stages hold layers {', '.join(found)} of a stack, not {length / stages:g} each",
            f"plan with {stages} "
            "stages of equal layers: a number of layers that they divide, and ends that are light",
        )
    return rows


def _form(cut: Staged, key: Hashable, state: Sharding, stage: LocalStage) -> Form:
    struct = cut.structs[key]
    return stage.form(TensorType(tuple(struct.shape), str(struct.dtype)), state)


def _ahead(cut: Staged, stages: Sequence[LocalStage]) -> Wires:
    states: dict[Any, Sharding] = {}
    last: dict[Any, int] = {}
    for s, stage in enumerate(stages):
        for key, v in zip(stage.stage.takes, stage.program.args["takes"], strict=True):
            states.setdefault(key, _known(stage, v))
            last[key] = s
    made = {key: s for s, stage in enumerate(stages) for key in stage.stage.gives}
    crossing = [
        [key for key in states if made[key] <= b < last[key]] for b in range(len(stages) - 1)
    ]
    forms = {key: _form(cut, key, state, stages[0]) for key, state in states.items()}
    return wires_of(crossing, forms, states)


def _back(cut: Staged, stages: Sequence[LocalStage]) -> Wires:
    states: dict[Slope, Sharding] = {}
    for stage in stages:
        pairs = zip(stage.program.incoming, stage.program.args["slopes"], strict=False)
        states.update({slope: _known(stage, v) for slope, v in pairs})
    crossing = [
        [slope for slope in states if slope.target <= b < slope.source]
        for b in range(len(stages) - 1)
    ]
    forms = {slope: _form(cut, slope.key, state, stages[0]) for slope, state in states.items()}
    return wires_of(crossing, forms, states)


def _result(
    cut: Staged, stages: Sequence[LocalStage], s: int, key: Hashable, ahead: Wires
) -> tuple[int, Hashable, TensorType, Sharding]:
    stage, struct = stages[s], cut.structs[key]
    made = stage.program.parts.forward.makes[stage.stage.gives.index(key)]
    state = ahead.states.get(key) or stage.state(made)
    return s, key, TensorType(tuple(struct.shape), str(struct.dtype)), state


def _arrives(
    stage: LocalStage,
    held: Sequence[Held],
    batch: Mapping[int, Sharding],
    ahead: Wires,
    back: Wires,
) -> dict[int, Sharding]:
    args = stage.program.args
    kinds: dict[str, list[Sharding]] = {
        "params": [held[use.leaf].goal for use in stage.stage.params],
        "batch": [batch[leaf] for leaf in stage.stage.batch],
        "takes": [ahead.states[key] for key in stage.stage.takes],
        "slopes": [back.states[slope] for slope in stage.program.incoming],
    }
    found = {
        v: state
        for name, states in kinds.items()
        for v, state in zip(args[name], states, strict=False)
    }
    seeds = args["slopes"][len(stage.program.incoming) :]
    return found | {v: replicated(0) for v in seeds}


def _leaves(
    stage: LocalStage,
    ahead: Wires,
    back: Wires,
    results: Mapping[tuple[int, Hashable], Sharding],
) -> dict[str, list[Sharding]]:
    makes, s = stage.program.parts.forward.makes, stage.stage.number
    return {
        "gives": [
            ahead.states.get(key) or results.get((s, key)) or stage.state(made)
            for key, made in zip(stage.stage.gives, makes, strict=False)
        ],
        "slopes": [back.states[slope] for slope in stage.program.outgoing],
    }


def sum_types(
    loss: Opened, stages: Sequence[LocalStage], held: Sequence[Held]
) -> dict[int, TensorType]:
    """Type of the sums of gradients of the part of each parameter that a stage holds."""
    found: dict[int, TensorType] = {}
    for stage in stages:
        for use in stage.stage.params:
            struct, rows = use_struct(loss.program, use), held[use.leaf].rows
            if is_float(struct):
                shape = (rows, *struct.shape[1:]) if rows else tuple(struct.shape)
                found[use.leaf] = TensorType(shape, str(jnp.dtype(wide(struct.dtype))))
    return found


def refused(what: str, remedy: str = "compile it with runtime='dispatch'") -> PlanError:
    return PlanError(
        f"the pipeline cannot run as one program: {what}", kind="bad-option", where="runtime",
        remedy=remedy,
    )  # fmt: skip
