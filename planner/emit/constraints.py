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
from jax.sharding import NamedSharding, PartitionSpec

from ir import Literal, Node, doing
from ir.trace import Binding, Program

from ..decisions import Decisions
from ..flatten import REGIONS, Place
from .effects import Effects, has_effects, is_effect
from .local_op import bind_global, literal
from .regions import body_number, branch, remat, scan

Array = Any
Constrain = Callable[[Array, Place, int], Array]


def constrained_program(
    program: Program, decisions: Decisions, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[Array, ...]]:
    """The whole program with a constraint on every value the plan names; partial sums have none.

    Takes the graph's inputs, captured constants first.
    """

    def constrain(x: Array, prefix: Place, number: int) -> Array:
        state = decisions.values.get((prefix, number))
        if state is None or state.partial:
            return x
        spec = PartitionSpec(*(axes or None for axes in state.dims))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def run(*arrays: Array) -> tuple[Array, ...]:
        effects = Effects(None, has_effects(program.graph))
        results = _Scope(program, (), constrain, effects).run(arrays)
        effects.finish(lambda token: token)
        return tuple(results)

    return run


def plain_program(program: Program) -> Callable[..., tuple[Array, ...]]:
    """The program as it was traced, on whole arrays, captured constants first."""
    return changed_program(program, _unchanged)


def changed_program(program: Program, change: Constrain) -> Callable[..., tuple[Array, ...]]:
    """The program on whole arrays with a change made to every value, which is told its place."""
    return lambda *arrays: tuple(_Scope(program, (), change, Effects(None, False)).run(arrays))


def _unchanged(x: Array, prefix: Place, number: int) -> Array:
    del prefix, number
    return x


@dataclass(frozen=True)
class _Scope:
    """One body at its place, on whole arrays."""

    program: Program
    prefix: Place
    constrain: Constrain
    effects: Effects

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        env: list[Array] = [self.constrain(x, self.prefix, n) for n, x in enumerate(inputs)]
        nodes = zip(self.program.graph.nodes, self.program.bindings, strict=True)
        for i, (node, binding) in enumerate(nodes):
            operands = [self._read(o, env) for o in node.inputs]
            with doing(f"emitting {node.op} {node.source}".rstrip()):
                if node.op in REGIONS:
                    results = _REGION[node.op](self, i, node, binding, operands)
                elif is_effect(node) and self.effects.active:
                    results = self.effects.run(node, binding, operands)
                else:
                    results = bind_global(node, binding, operands)
            for x in results:
                env.append(self.constrain(x, self.prefix, len(env)))
        return [self._read(o, env) for o in self.program.graph.outputs]

    def _read(self, operand: int | Literal, env: list[Array]) -> Array:
        return literal(operand) if isinstance(operand, Literal) else env[operand]

    def body(self, i: int, binding: Binding, number: int) -> Callable[[Sequence[Array]], Any]:
        """A body of node i as a function of its arguments."""
        program = binding.bodies[number]
        scope = _Scope(program, (*self.prefix, i, number), self.constrain, self.effects)
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
    effects = scope.effects
    bodies = [scope.body(i, binding, number) for number in range(len(node.bodies))]
    branches = [
        lambda *xs, run=run: effects.close(node, run(effects.open(node, xs))) for run in bodies
    ]
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
