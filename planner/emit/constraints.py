# pyright: basic
"""A plan as an annotated program: published states become sharding constraints.

Which collectives run is then up to XLA's partitioner, and so, rarely, are the numbers; see
docs/design/0002-manual-emission.md. For readers that expect annotations, and for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from costmodel import ReshardModel
from ir import Node, Sharding, TensorType, lookup, replicated
from ir.analysis import Decisions, Place, has_effects
from ir.evaluate import Hooks, Scope, bind_global
from ir.trace import Binding, Program

from .effects import Effects
from .local_op import local_op, partition_spec
from .run import Mover, run_op
from .slices import INSIDE

Array = Any


def constrained_program(
    program: Program, decisions: Decisions, reshard: ReshardModel, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[Array, ...]]:
    """The whole program with a constraint on every value the plan names; partial sums have none.

    Takes the graph's inputs, captured constants first.
    """
    marks = _Marks(decisions, reshard, mesh)
    hooks = Hooks(marks.value, marks.port, marks.op)

    def run(*arrays: Array) -> tuple[Array, ...]:
        effects = Effects(None, has_effects(program.graph))
        results = Scope(program, (), hooks, effects).run(arrays)
        effects.finish(lambda token: token)
        return tuple(results)

    return run


@dataclass(frozen=True)
class _Marks:
    """What a plan writes into a program."""

    decisions: Decisions
    reshard: ReshardModel
    mesh: jax.sharding.Mesh

    def value(self, x: Array, prefix: Place, number: int) -> Array:
        """A value with its constraint, if it has a state that one can say."""
        state = self.decisions.values.get((prefix, number))
        return x if state is None or state.partial else self._held(x, state)

    def port(self, x: Array, prefix: Place, number: int) -> Array:
        """What a branch gives: XLA wants one sharding from all of them."""
        state = self.decisions.values.get((prefix, number), replicated(x.ndim))
        return self._held(x, state.without_partial())

    def _held(self, x: Array, state: Sharding) -> Array:
        spec = partition_spec(state)
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def op(
        self, place: Place, node: Node, binding: Binding, types: Sequence[TensorType],
        operands: Sequence[Array],
    ) -> list[Array]:  # fmt: skip
        """Runs an op; what the partitioner does not split as it should on local shards."""
        if not _on_shards(node):
            return bind_global(node, binding, operands)
        mesh = self.decisions.mesh
        roles = self.decisions.ops.get(place, ("",) * len(mesh.names))
        roles = tuple("" if role.startswith("@") else role for role in roles)
        op = local_op(node, binding, tuple(types), roles, mesh)
        ends = [state.without_partial() for state in op.strategy.results]

        def local(*shards: Array) -> tuple[Array, ...]:
            mover = Mover(self.reshard)
            moves = zip(
                run_op(op, shards, mover), node.outputs, op.strategy.results, ends, strict=True
            )
            return tuple(mover.move(*move) for move in moves)

        run = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=tuple(partition_spec(state) for state in op.strategy.operands),
            out_specs=tuple(partition_spec(state) for state in ends),
            check_vma=False,
        )
        return list(run(*operands))


# XLA gives slices of one value along a split dimension each other's shapes, and then fails; it pads
# such a dimension at one end and cuts it at the other with wrong numbers.
_INSIDE = (*INSIDE, "pad", "slice", "split")

# Of reductions the partitioner splits sums and products as they are.
_SPLIT_BY_XLA = ("reduce_prod", "reduce_sum")


def _on_shards(node: Node) -> bool:
    """Whether an op runs on local shards, with collectives that the plan writes.

    Where a dimension that is indexed is split, the partitioner computes other numbers or fails. It
    ends the process at some windows, makes reductions that no backend for CPUs has, maxima that
    leave out NaN, products of infinite elements with the zeros it pads filters with, and runs what
    it does not know on layouts that its kernels do not take.
    """
    family = lookup(node.op).family
    reduces = family == "reduction" and node.op not in _SPLIT_BY_XLA
    return node.op in _INSIDE or family in ("convolution", "linalg") or reduces
