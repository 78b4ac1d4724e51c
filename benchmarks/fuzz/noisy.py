# pyright: basic
"""A traced program with a rounding error added to every floating value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir import Literal, Node
from ir.trace import Binding, Program, Traced

Array = Any
RUNS = 6
MOST = 1e-4  # more than one unit only up to so much of a value
# Results on a coarse grid were hardly rounded: bits of the mantissa that are kept free.
FREE_BITS = {24: 12, 53: 30, 11: 4, 8: 3}


def noise(traced: Traced, arguments: Sequence[Array], units: float) -> list[list[Array]]:
    """Results of the program, several times, each floating value of it off by so many units.

    Args:
        traced: the program.
        arguments: its arguments.
        units: in the last place.
    """

    def run(seed: Any, *arrays: Any) -> Any:
        return _Scope(_Noise(seed, units), traced.program).run([*traced.program.consts, *arrays])

    compiled, leaves = jax.jit(run), jax.tree.leaves(tuple(arguments))
    return [list(compiled(jnp.float32(seed), *leaves)) for seed in range(1, RUNS + 1)]


@dataclass
class _Noise:
    """Errors of one run; no two values have the same."""

    seed: Any
    units: float
    count: int = 0

    def __call__(self, x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size or x.dtype.itemsize == 1:
            return x
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return lax.complex(self(jnp.real(x)), self(jnp.imag(x)))
        self.count += 1
        info = jnp.finfo(x.dtype)
        places = lax.iota(np.float32, x.size).reshape(x.shape)
        phase = self.seed * 7.31 + self.count * 1.77
        sign = jnp.round(1.4 * jnp.sin(places * 12.9898 + phase)).astype(x.dtype)
        free = FREE_BITS[info.nmant + 1]
        grid, most = x * (2.0 ** (free // 2)), 2.0 ** (info.nmant + 1 - free + free // 2)
        coarse = (grid == jnp.round(grid)) & (jnp.abs(grid) < most)
        unit = float(info.eps)
        off = (1 + max(unit, min(self.units * unit, MOST)) * sign).astype(x.dtype)
        return jnp.where(coarse, x, x * off)


@dataclass(frozen=True)
class _Scope:
    """One body."""

    noise: _Noise
    program: Program

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        env = [self.noise(jnp.asarray(x)) for x in inputs]
        graph = self.program.graph
        for node, binding in zip(graph.nodes, self.program.bindings, strict=True):
            given = [_read(o, env) for o in node.inputs]
            call = _REGIONS.get(node.op)
            results = call(self, node, binding, given) if call else _bound(binding, given)
            env += [self.noise(x) for x in results]
        return [_read(o, env) for o in graph.outputs]

    def body(self, binding: Binding, number: int) -> Callable[[Sequence[Array]], list[Array]]:
        program = binding.bodies[number]
        return lambda given: _Scope(self.noise, program).run([*program.consts, *given])


def _read(operand: int | Literal, env: Sequence[Array]) -> Array:
    if isinstance(operand, Literal):
        return jnp.asarray(operand.value, jnp.dtype(operand.type.dtype))
    return env[operand]


def _bound(binding: Binding, given: Sequence[Array]) -> list[Array]:
    found = binding.primitive.bind(*given, **binding.params)
    return list(found) if binding.primitive.multiple_results else [found]


def _number(node: Node, name: str) -> int:
    return int(str(node.attr(name)).removeprefix("body "))


def _scan(scope: _Scope, node: Node, binding: Binding, given: list[Array]) -> list[Array]:
    consts, carries = _number(node, "num_consts"), _number(node, "num_carry")
    body = scope.body(binding, 0)

    def step(carry: Any, slices: Any) -> Any:
        results = body([*given[:consts], *carry, *slices])
        return tuple(results[:carries]), tuple(results[carries:])

    last, ys = lax.scan(
        step, tuple(given[consts : consts + carries]), tuple(given[consts + carries :]),
        _number(node, "length"), reverse=bool(node.attr("reverse")),
    )  # fmt: skip
    return [*last, *ys]


def _while(scope: _Scope, node: Node, binding: Binding, given: list[Array]) -> list[Array]:
    tests, steps = _number(node, "cond_nconsts"), _number(node, "body_nconsts")
    test = scope.body(binding, _number(node, "cond_jaxpr"))
    body = scope.body(binding, _number(node, "body_jaxpr"))
    for_test, for_step = given[:tests], given[tests : tests + steps]
    return list(
        lax.while_loop(
            lambda carry: test([*for_test, *carry])[0],
            lambda carry: tuple(body([*for_step, *carry])),
            tuple(given[tests + steps :]),
        )
    )


def _cond(scope: _Scope, node: Node, binding: Binding, given: list[Array]) -> list[Array]:
    bodies = [scope.body(binding, k) for k in range(len(node.bodies))]
    branches = [lambda *xs, run=run: tuple(run(xs)) for run in bodies]
    return list(lax.switch(given[0], branches, *given[1:]))


def _remat(scope: _Scope, node: Node, binding: Binding, given: list[Array]) -> list[Array]:
    del node
    return scope.body(binding, 0)(given)


_REGIONS = {"cond": _cond, "remat": _remat, "scan": _scan, "while": _while}
