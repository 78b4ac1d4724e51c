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

from ir import (
    ATTENTION,
    SHIFT,
    LoweredPlan,
    Node,
    Sharding,
    Strategy,
    TensorType,
    lookup,
    replicated,
    strategy_of,
)
from ir.analysis import Place, has_effects
from ir.evaluate import Hooks, Scope, bind_global
from ir.trace import Binding, Program

from .effects import Effects
from .local_op import LocalOp, partition_spec
from .run import Mover, run_op
from .slices import INSIDE
from .steps import finishing

Array = Any


def constrained_program(
    program: Program, plan: LoweredPlan, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[Array, ...]]:
    """The whole program with a constraint on every value the plan names; partial sums have none.

    Takes the graph's inputs, captured constants first.
    """
    marks = _Marks(plan, mesh)
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

    plan: LoweredPlan
    mesh: jax.sharding.Mesh

    def value(self, x: Array, prefix: Place, number: int) -> Array:
        """A value with its constraint, if it has a state that one can say."""
        state = self.plan.state(prefix, number)
        return x if state is None or state.partial else self._held(x, state)

    def port(self, x: Array, prefix: Place, number: int) -> Array:
        """What a branch gives: XLA wants one sharding from all of them."""
        state = self.plan.state(prefix, number) or replicated(x.ndim)
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
        strategy = self._strategy(place, node, tuple(types))
        op = LocalOp(node, binding, tuple(types), strategy, self.plan.mesh)

        def local(*shards: Array) -> tuple[Array, ...]:
            mover = Mover(self.plan.mesh)
            results = zip(run_op(op, shards, mover), node.outputs, strategy.results, strict=True)
            return tuple(mover.move(x, t, finishing(state), 1.0) for x, t, state in results)

        run = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=tuple(partition_spec(state) for state in strategy.operands),
            out_specs=tuple(partition_spec(s.without_partial()) for s in strategy.results),
            check_vma=False,
        )
        return list(run(*operands))

    def _strategy(self, place: Place, node: Node, types: tuple[TensorType, ...]) -> Strategy:
        """The strategy of an op, without partial sums that pass it: what it reads is finished."""
        planned = self.plan.strategies[self.plan.op_at[place]]
        if planned is not None and not any(role.startswith("@") for role in planned.roles):
            return planned
        given = planned.roles if planned else ("",) * len(self.plan.mesh.names)
        roles = tuple("" if role.startswith("@") else role for role in given)
        spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
        return strategy_of(spec, self.plan.mesh, roles)


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
    it does not know on layouts that its kernels do not take. Attention has exchanges of
    its own along the sequence.
    """
    family = lookup(node.op).family
    reduces = family == "reduction" and node.op not in _SPLIT_BY_XLA
    by_hand = node.op in _INSIDE or node.op in (*ATTENTION, SHIFT)
    return by_hand or family in ("convolution", "linalg") or reduces
