# pyright: basic
"""A training step in stages as one jitted program.

All devices are on one mesh, whose first axis is the stages. Under one `jax.shard_map` a `lax.scan`
runs the rounds of the schedule (`schedule/lockstep.py`): in each phase of a round every device
takes the branch of its stage's task, and what stages send each other goes by `lax.ppermute`, whose
results the next phase but one is the first to read. Each process of a cluster just runs its part.
The optimizer's update is outside, on arrays over the whole mesh, as XLA splits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ir import Sharding
from ir.analysis import offloads

from ....common.compiler_options import options_on
from ....common.surface import public
from ....pipeline.cut.equations import is_float
from ....pipeline.cut.opened_loss import Opened, cut_of
from ....pipeline.cut.solved_stage import Solved
from ....pipeline.cut.stage_gradient import StageProgram
from ....pipeline.schedule import Schedule
from ....pipeline.schedule.lockstep import Lockstep, lockstep
from ....training.microbatch import of_part
from ...context import unmeshed
from ...given import leaves_like, refuse_used
from ...jit import placed
from ...local_op import partition_spec
from ..feed import joiner
from ..holdings import copied
from .branches import Given
from .layout import ScanLayout, refused, scan_layout, sum_types
from .local_rounds import LocalRounds

Array = Any


@dataclass(frozen=True, eq=False, repr=False)
class ScannedPipeline:
    """A training step in stages: (params, opt_state, batch) -> (params, opt_state, loss).

    schedule: whose order of tasks each stage keeps.
    rounds: of the schedule.
    mesh: of all devices, its first axis the stages.
    """

    schedule: Schedule
    rounds: Lockstep
    mesh: Mesh
    layout: ScanLayout
    loss: Opened
    gpu_options: Mapping[str, bool | int]

    @public
    @unmeshed
    def __call__(self, params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
        flat = self._flat(params, opt_state, batch)
        leaves = [
            placed(x, there, carried=True) for x, there in zip(flat, self._places, strict=True)
        ]
        return self.jitted(*self._trees(leaves))

    @public
    @unmeshed
    def lower(self, params: Any, opt_state: Any, batch: Any) -> Any:
        """As `jax.jit(fn).lower(...)`; shapes suffice."""
        return self.jitted.lower(params, opt_state, batch)

    @public
    @unmeshed
    def place(self, tree: Any, argument: int) -> Any:
        """Copies of parameters (0) or optimizer state (1) in their places.

        A step reuses the memory of what it is given, so that nothing here is shared with `tree`.
        """
        name, planned = self._arguments[argument]
        leaves = leaves_like(tree, name, planned)
        refuse_used(leaves, name, planned)
        there = self._shardings[argument]
        found = [
            jax.device_put(copied(x), sharding, may_alias=False)
            for x, sharding in zip(leaves, there, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(planned), found)

    @property
    def _arguments(self) -> tuple[tuple[str, Any], ...]:
        state = self.loss.built.opt_state_structs
        return ("params", self.loss.params), ("opt_state", state), ("batch", self.loss.batch)

    def _flat(self, *args: Any) -> list[Any]:
        found: list[Any] = []
        for tree, (name, planned) in zip(args, self._arguments, strict=True):
            leaves = leaves_like(tree, name, planned)
            if name != "batch":
                refuse_used(leaves, name, planned)
            found += leaves
        return found

    def _trees(self, leaves: Sequence[Any]) -> list[Any]:
        return jax.tree.unflatten(jax.tree.structure([t for _, t in self._arguments]), leaves)

    # --- where arguments lie ----------------------------------------------------------------

    def _on(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    @cached_property
    def _places(self) -> list[NamedSharding]:
        return [there for found in self._shardings for there in found]

    @cached_property
    def _shardings(self) -> tuple[list[NamedSharding], ...]:
        """Of the leaves of each argument between steps."""
        axis = self.layout.axis
        params = [self._on(held.spec(held.stored, axis)) for held in self.layout.held]
        known: dict[tuple[int, ...], NamedSharding] = {}
        for leaf, there in zip(jax.tree.leaves(self.loss.params), params, strict=True):
            known.setdefault(leaf.shape, there)
        whole = self._on(PartitionSpec())
        states = jax.tree.leaves(self.loss.built.opt_state_structs)
        batch = jax.tree.leaves(self.loss.batch)
        return (
            params, [known.get(x.shape, whole) for x in states],
            [self._on(self._batch_spec(k, x)) for k, x in enumerate(batch)],
        )  # fmt: skip

    def _batch_spec(self, leaf: int, x: Any) -> PartitionSpec:
        """Examples as those of a micro-batch are, where they divide."""
        state, parts = self.layout.batch.get(leaf), self.loss.built.parts
        if state is None or (parts is not None and not parts.cuts(parts.roles[leaf])):
            return PartitionSpec()
        axis = parts.axis_of(parts.roles[leaf]) if parts is not None else 0
        if axis >= len(state.dims):
            return PartitionSpec()
        one = Sharding(tuple(d if n == axis else () for n, d in enumerate(state.dims)))
        return partition_spec(one)

    # --- the program ------------------------------------------------------------------------

    @cached_property
    def jitted(self) -> Any:
        """The jitted step."""
        params, state, batch = (
            jax.tree.unflatten(jax.tree.structure(tree), there)
            for there, (_, tree) in zip(self._shardings, self._arguments, strict=True)
        )
        return jax.jit(
            self._step,
            donate_argnums=(0, 1),
            in_shardings=(params, state, batch),
            out_shardings=(params, state, None),
            compiler_options=options_on(self.mesh.devices.flat[0].platform, self.gpu_options),
        )

    def _step(self, params: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        built, leaves = self.loss.built, jax.tree.leaves(params)
        parts, decision, inside = built.parts, built.decision, built.inside
        found = jax.tree.leaves(batch)
        extended = found if inside is None else inside.extended([None] * len(leaves), found)
        values, grads = self._differentiated(leaves, extended)
        results = []
        for k, x in enumerate(values):
            join = joiner(parts, decision, k, self._scale, x.dtype)
            results.append(join(*(x[m] for m in range(self.loss.microbatches))))
        if inside is not None:
            results = self._late(inside, extended, results, len(leaves))
        moves = [is_float(x) for x in leaves]
        slopes = [  # of parameters that no stage reads, zero
            grads[k].astype(x.dtype) if k in grads else jnp.zeros_like(x)
            for k, (x, m) in enumerate(zip(leaves, moves, strict=True)) if m
        ]  # fmt: skip
        own = [x if m else None for x, m in zip(leaves, moves, strict=True)]
        new, state = built.update(own, slopes, state, results[0])
        fresh = iter(new)
        leaves = [next(fresh) if m else x for x, m in zip(leaves, moves, strict=True)]
        loss = results[0]
        if self.loss.has_aux:
            loss = (loss, jax.tree.unflatten(self._aux, results[1:]))
        return jax.tree.unflatten(jax.tree.structure(params), leaves), state, loss

    @property
    def _scale(self) -> float:
        built = self.loss.built
        return built.decision.scale(self.loss.microbatches) if built.parts else 1.0

    def _late(
        self, inside: Any, extended: Sequence[Array], results: Sequence[Array], params: int
    ) -> list[Array]:
        """The loss and the leaves of aux of a loss with edits."""
        late = inside.sliced.late
        if not any(late[1:]):
            return list(results[: len(late)])
        return [results[0], *inside.finished([None] * params, extended, results[1:])]

    @cached_property
    def _aux(self) -> Any:
        found = jax.eval_shape(self.loss.built.fn, *(tree for _, tree in self._arguments))
        return jax.tree.structure(found[2][1])

    def _differentiated(
        self, leaves: Sequence[Array], batch: Sequence[Array]
    ) -> tuple[list[Array], dict[int, Array]]:
        """Results of all micro-batches, and gradients of the parameters that stages read."""
        layout, axis = self.layout, self.layout.axis
        read = sorted(layout.batch)
        rows, cut = self._rows(batch)
        held = layout.held
        types = sum_types(self.loss, layout.stages, held)
        moving = sorted(types)
        states = [layout.batch[leaf] for leaf in read]
        batch_specs = [
            partition_spec(s.stacked() if leaf in cut else s)
            for leaf, s in zip(read, states, strict=True)
        ]
        results = [partition_spec(state.stacked()) for _, _, _, state in layout.results]
        out_specs = (
            tuple(PartitionSpec(axis, *spec) for spec in results),
            tuple(held[leaf].spec(held[leaf].stored, axis) for leaf in moving),
        )

        def local(params: tuple[Array, ...], batch: tuple[Array, ...]) -> Any:
            given = Given(params, dict(zip(read, batch, strict=True)))
            found = LocalRounds(layout, self.rounds, self._scale, cut, self.loss.microbatches)
            values, sums = found.run(given, types)
            return tuple(x[None] for x in values), tuple(sums[leaf] for leaf in moving)

        mapped = jax.shard_map(
            local, mesh=self.mesh,
            in_specs=(tuple(h.spec(h.goal, axis) for h in held), tuple(batch_specs)),
            out_specs=out_specs, check_vma=False,
        )  # fmt: skip
        values, sums = mapped(tuple(leaves), tuple(rows[leaf] for leaf in read))
        stages = [s for s, _, _, _ in layout.results]
        found = [x[s] for x, s in zip(values, stages, strict=True)]
        return found, dict(zip(moving, sums, strict=True))

    def _rows(self, batch: Sequence[Array]) -> tuple[dict[int, Array], frozenset[int]]:
        """Leaves of the batch, and which of them have a first dimension of micro-batches."""
        parts = self.loss.built.parts
        found: dict[int, Array] = {}
        cut: set[int] = set()
        for leaf in self.layout.batch:
            x, role = batch[leaf], parts.roles[leaf] if parts is not None else "same"
            if parts is None or role == "same":
                found[leaf] = x
                continue
            cut.add(leaf)
            if parts.cuts(role):
                found[leaf] = parts.cut(x, role)
            else:
                each = [of_part(x, role, m, iter(())) for m in range(parts.count)]
                found[leaf] = jnp.stack(each)
        return found, frozenset(cut)


def scanned_pipeline(
    loss: Opened,
    cuts: Sequence[int],
    schedule: Schedule,
    devices: Sequence[Any],
    recompute: Sequence[str],
    solved: Sequence[tuple[StageProgram, Solved]],
    gpu_options: Mapping[str, bool | int],
) -> ScannedPipeline:
    """A pipeline whose stages are one program.

    Args:
        loss: the loss to train.
        cuts: first slot of every stage, and the number of slots at the end.
        schedule: with one stage on each group of devices, in order.
        devices: of all stages, stage by stage.
        recompute: of each stage, one of `divide.run_costs.RECOMPUTE`; none if empty.
        solved: the stages' programs with what was decided for them.
        gpu_options: of XLA's compiler.

    Raises:
        PlanError: if the stages have different meshes or uneven parts of stacked parameters, the
            schedule has no rounds, the gradient waits for sums over all micro-batches, or values
            wait in the memory of the host.
    """
    if loss.built.inside is not None and loss.built.inside.twice:
        raise refused("the gradient of a micro-batch waits for sums over all of them")
    if any(offloads(program.program.graph) for program, _ in solved):
        raise refused("values of its stages wait in the memory of the host")
    cut, rounds = cut_of(loss, cuts, recompute), lockstep(schedule)
    layout = scan_layout(loss, cut, solved, recompute, rounds)
    mesh = solved[0][1].decisions.mesh
    count = len(solved) * mesh.num_devices
    grid = np.array(list(devices)[:count], dtype=object).reshape(len(solved), *mesh.sizes)
    return ScannedPipeline(
        schedule, rounds, Mesh(grid, (layout.axis, *mesh.names)), layout, loss, gpu_options
    )
