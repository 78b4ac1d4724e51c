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
from ir import Literal, Node, Sharding, TensorType, doing, lookup, replicated
from ir.trace import Binding, Program

from ..decisions import Decisions
from ..flatten import REGIONS, Place
from .effects import Effects, has_effects, is_effect
from .local_op import bind_global, literal, local_op, partition_spec
from .regions import body_number, branch, remat, scan
from .run import Mover, run_op
from .slices import INSIDE

Array = Any
Change = Callable[[Array, Place, int], Array]
RunOp = Callable[[Place, Node, Binding, Sequence[TensorType], Sequence[Array]], "list[Array]"]


def constrained_program(
    program: Program, decisions: Decisions, reshard: ReshardModel, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[Array, ...]]:
    """The whole program with a constraint on every value the plan names; partial sums have none.

    Takes the graph's inputs, captured constants first.
    """
    marks = _Marks(decisions, reshard, mesh)
    hooks = _Hooks(marks.value, marks.port, marks.op)

    def run(*arrays: Array) -> tuple[Array, ...]:
        effects = Effects(None, has_effects(program.graph))
        results = _Scope(program, (), hooks, effects).run(arrays)
        effects.finish(lambda token: token)
        return tuple(results)

    return run


def plain_program(program: Program) -> Callable[..., tuple[Array, ...]]:
    """The program as it was traced, on whole arrays, captured constants first."""
    hooks = _Hooks(_unchanged, _unchanged, _as_traced)
    return lambda *arrays: tuple(_Scope(program, (), hooks, Effects(None, False)).run(arrays))


def _unchanged(x: Array, prefix: Place, number: int) -> Array:
    del prefix, number
    return x


def _as_traced(
    place: Place, node: Node, binding: Binding, types: Sequence[TensorType],
    operands: Sequence[Array],
) -> list[Array]:  # fmt: skip
    del place, types
    return bind_global(node, binding, operands)


@dataclass(frozen=True)
class _Hooks:
    """What is made of every value, of what a branch gives to a value, and of every op."""

    value: Change
    port: Change
    op: RunOp


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


# XLA gives slices of one value along a split dimension each other's shapes, and then fails.
_INSIDE = (*INSIDE, "slice", "split")

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


@dataclass(frozen=True)
class _Scope:
    """One body at its place, on whole arrays."""

    program: Program
    prefix: Place
    hooks: _Hooks
    effects: Effects

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        env: list[Array] = [self.hooks.value(x, self.prefix, n) for n, x in enumerate(inputs)]
        nodes = zip(self.program.graph.nodes, self.program.bindings, strict=True)
        for i, (node, binding) in enumerate(nodes):
            operands = [self._read(o, env) for o in node.inputs]
            with doing(f"emitting {node.op} {node.source}".rstrip()):
                if node.op in REGIONS:
                    results = _REGION[node.op](self, i, node, binding, operands)
                elif is_effect(node) and self.effects.active:
                    results = self.effects.run(node, binding, operands)
                else:
                    types = [self.program.graph.type_of(o) for o in node.inputs]
                    place = (*self.prefix, i)
                    results = self.hooks.op(place, node, binding, types, operands)
            for x in results:
                env.append(self.hooks.value(x, self.prefix, len(env)))
        return [self._read(o, env) for o in self.program.graph.outputs]

    def _read(self, operand: int | Literal, env: list[Array]) -> Array:
        return literal(operand) if isinstance(operand, Literal) else env[operand]

    def body(self, i: int, binding: Binding, number: int) -> Callable[[Sequence[Array]], Any]:
        """A body of node i as a function of its arguments."""
        program = binding.bodies[number]
        scope = _Scope(program, (*self.prefix, i, number), self.hooks, self.effects)
        return lambda arrays: scope.run([*program.consts, *arrays])


def _scan(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Array]
) -> list[Array]:
    body, effects = scope.body(i, binding, body_number(node, "jaxpr")), scope.effects
    first = binding.params["num_consts"]
    last = first + binding.params["num_carry"]

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        results = body([*operands[:first], *effects.open(node, carry), *slices])
        return effects.close(node, results[: last - first]), results[last - first :]

    carry = effects.close(node, operands[first:last])
    return list(effects.open(node, scan(binding, step, carry, operands[last:])))


def _while(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Array]
) -> list[Array]:
    test = scope.body(i, binding, body_number(node, "cond_jaxpr"))
    step = scope.body(i, binding, body_number(node, "body_jaxpr"))
    n_test, n_step = binding.params["cond_nconsts"], binding.params["body_nconsts"]
    for_test, for_step = operands[:n_test], operands[n_test : n_test + n_step]
    return list(
        scope.effects.loop(
            node,
            lambda carry: test([*for_test, *carry])[0],
            lambda carry: step([*for_step, *carry]),
            operands[n_test + n_step :],
        )
    )


def _cond(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Array]
) -> list[Array]:
    effects, numbers = scope.effects, scope.program.graph.values_of(i)

    def run(number: int) -> Callable[..., Sequence[Array]]:
        body = scope.body(i, binding, number)

        def taken(*xs: Array) -> Sequence[Array]:
            results = zip(body(effects.open(node, xs)), numbers, strict=True)
            ports = [scope.hooks.port(x, scope.prefix, n) for x, n in results]
            return effects.close(node, ports)

        return taken

    branches = [run(number) for number in range(len(node.bodies))]
    entering = effects.close(node, operands[1:])
    return list(effects.open(node, branch(operands[0], branches, entering)))


def _remat(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Array]
) -> list[Array]:
    body, effects = scope.body(i, binding, 0), scope.effects

    def run(*xs: Array) -> list[Array]:
        return effects.close(node, body(effects.open(node, xs)))

    entering = effects.close(node, operands)
    positions = [None] * (len(entering) - len(operands)) + list(range(len(operands)))
    return list(effects.open(node, remat(binding, run, entering, positions)))


_REGION = {"cond": _cond, "remat": _remat, "scan": _scan, "while": _while}
