# pyright: basic
"""Runs a traced program on whole arrays, op by op; loops and branches keep their form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from .analysis import Place
from .analysis.effects import is_effect
from .errors import doing
from .evaluate_regions import branch, remat, scan, while_loop
from .graph import Literal, Node
from .high_words import multiply_high
from .jax_internals import on_lines
from .regions import REGIONS, Scan, While
from .trace import Binding, Program
from .trip_counts import STATED
from .types import TensorType

Array = Any
Arrays = Sequence[Array]


# Placement hints of the user's program; the plan places every value itself.
PLACEMENT = ("device_put", "mesh_cast", "reshard", "sharding_constraint")


def bind(binding: Binding, operands: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    """Runs a primitive; the results are always a list."""
    if binding.primitive.name == "mulhi":
        return [multiply_high(*operands)]
    primitive = binding.primitive
    if primitive.name == "fft":  # XLA for CPU requires row-major order but does not request it
        (x,) = operands
        return [_row_major(primitive.bind(_row_major(x), **params))]
    found = primitive.bind(*operands, **params)
    return list(found) if primitive.multiple_results else [found]


def _row_major(x: Array) -> Array:
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def bind_global(node: Node, binding: Binding, operands: Sequence[Array]) -> list[Array]:
    """Runs a node with its traced parameters, without the user's placement."""
    if node.op in PLACEMENT:
        return list(operands)
    return bind(binding, operands, binding.params)


def literal(operand: Literal) -> Array:
    """A literal as an array of rank 0."""
    return np.asarray(operand.value).astype(jnp.dtype(operand.type.dtype))


Change = Callable[[Array, Place, int], Array]
RunOp = Callable[[Place, Node, Binding, Sequence[TensorType], Sequence[Array]], "list[Array]"]


def plain_program(program: Program) -> Callable[..., tuple[Array, ...]]:
    """The program as it was traced, on whole arrays, captured constants first."""
    hooks = Hooks(unchanged, unchanged, _as_traced)
    return lambda *arrays: tuple(Scope(program, (), hooks, AsTraced()).run(arrays))


def unchanged(x: Array, prefix: Place, number: int) -> Array:
    """The hook of values that leaves each as it is computed."""
    del prefix, number
    return x


def _as_traced(
    place: Place, node: Node, binding: Binding, types: Sequence[TensorType],
    operands: Sequence[Array],
) -> list[Array]:  # fmt: skip
    del place, types
    with on_lines(binding.traceback):
        return bind_global(node, binding, operands)


class EffectOrder(Protocol):
    """How the effects of a program are kept in order: at ops and around regions."""

    @property
    def active(self) -> bool:
        """Whether it runs effects itself."""
        ...

    def run(self, node: Node, binding: Binding, operands: Sequence[Array]) -> list[Array]:
        """Runs an effect."""
        ...

    def close(self, node: Node, arrays: Arrays) -> list[Array]:
        """Arrays that enter or leave a region, with the tokens that order the effects in it."""
        ...

    def open(self, node: Node, arrays: Arrays) -> Arrays:
        """The arrays without these tokens."""
        ...

    def loop(
        self, node: Node, test: Callable[[Arrays], Array], step: Callable[[Arrays], Arrays],
        carry: Arrays,
    ) -> Arrays:  # fmt: skip
        """`carry = step(carry)` while `test(carry)`, of a `while` node."""
        ...


@final
class AsTraced:
    """Effects run like every op; nothing is added to keep their order."""

    active = False

    def run(self, node: Node, binding: Binding, operands: Sequence[Array]) -> list[Array]:
        return bind_global(node, binding, operands)

    def close(self, node: Node, arrays: Arrays) -> list[Array]:
        del node
        return list(arrays)

    def open(self, node: Node, arrays: Arrays) -> Arrays:
        del node
        return arrays

    def loop(
        self, node: Node, test: Callable[[Arrays], Array], step: Callable[[Arrays], Arrays],
        carry: Arrays,
    ) -> Arrays:  # fmt: skip
        del node
        return while_loop(test, step, carry)


@dataclass(frozen=True)
class Hooks:
    """Functions applied to every value, to every result of a branch, and to every op."""

    value: Change
    port: Change
    op: RunOp


@dataclass(frozen=True)
class Scope:
    """One body at its place, on whole arrays."""

    program: Program
    prefix: Place
    hooks: Hooks
    effects: EffectOrder

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
        scope = Scope(program, (*self.prefix, i, number), self.hooks, self.effects)
        return lambda arrays: scope.run([*program.consts, *arrays])


def _scan(scope: Scope, i: int, node: Node, binding: Binding, operands: list[Array]) -> list[Array]:
    body, effects, wiring = scope.body(i, binding, 0), scope.effects, Scan.of(node)
    consts, carry, xs = wiring.operands(operands)

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        after, ys = wiring.results(body([*consts, *effects.open(node, carry), *slices]))
        return effects.close(node, after), ys

    return list(effects.open(node, scan(binding, step, effects.close(node, carry), xs)))


def _while(
    scope: Scope, i: int, node: Node, binding: Binding, operands: list[Array]
) -> list[Array]:
    wiring = While.of(node)
    test, step = (scope.body(i, binding, b) for b in (wiring.test, wiring.step))
    for_test, for_step, carry = wiring.operands(operands)
    stated = node.attr(STATED) if node.has_attr(STATED) else None
    with jax.named_scope(f"{STATED}={stated}") if stated else contextlib.nullcontext():
        return list(
            scope.effects.loop(
                node,
                lambda carry: test([*for_test, *carry])[0],
                lambda carry: step([*for_step, *carry]),
                carry,
            )
        )


def _cond(scope: Scope, i: int, node: Node, binding: Binding, operands: list[Array]) -> list[Array]:
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
    scope: Scope, i: int, node: Node, binding: Binding, operands: list[Array]
) -> list[Array]:
    body, effects = scope.body(i, binding, 0), scope.effects

    def run(*xs: Array) -> list[Array]:
        return effects.close(node, body(effects.open(node, xs)))

    entering = effects.close(node, operands)
    positions = [None] * (len(entering) - len(operands)) + list(range(len(operands)))
    return list(effects.open(node, remat(binding, run, entering, positions)))


_REGION = {"cond": _cond, "remat": _remat, "scan": _scan, "while": _while}
