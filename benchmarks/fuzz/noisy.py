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

from ir import Literal, Node, lookup
from ir.trace import Binding, Program, Traced

Array = Any
RUNS = 6
MOST = 3e-5  # of a value that a series was summed up to
# Results on a coarse grid were hardly rounded: bits of the mantissa that are kept free.
FREE_BITS = {24: 12, 53: 30, 11: 4, 8: 3}


# Sums of series that end when all elements are near enough: how near depends on the neighbours.
SERIES = frozenset(("igamma", "igamma_grad_a", "igammac", "polygamma", "random_gamma",
                    "regularized_incomplete_beta", "zeta"))  # fmt: skip
# Differences of terms of about 1, in other vectors of other lengths: off by so much of 1.
FROM_ONE = frozenset(("acosh", "digamma", "erf_inv", "erfc", "lgamma", "log1p", "tan"))
# Sums of terms that are added in another order elsewhere: off by so much of their magnitudes' sum.
SUMS = frozenset(("conv_general_dilated", "cumsum", "dot_general", "reduce_sum",
                  "reduce_window_sum", "scatter-add"))  # fmt: skip
LEFT = 16.0  # units in the last place of the largest element: what is left where terms cancel


def noise(traced: Traced, arguments: Sequence[Array]) -> list[list[Array]]:
    """Results of the program, several times, each floating value of it off by a rounding error.

    In the first, what cancels nearly in a product of matrices cancels wholly.
    """

    def run(seed: Any, *arrays: Any) -> Any:
        return _Scope(_Noise(seed), traced.program).run([*traced.program.consts, *arrays])

    compiled, leaves = jax.jit(run), jax.tree.leaves(tuple(arguments))
    return [list(compiled(jnp.float32(seed), *leaves)) for seed in range(RUNS)]


@dataclass
class _Noise:
    """Errors of one run; no two values have the same."""

    seed: Any
    count: int = 0

    def __call__(self, x: Array, op: str = "", terms: Array | None = None) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size or x.dtype.itemsize == 1:
            return x
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return lax.complex(self(jnp.real(x), op), self(jnp.imag(x), op))
        self.count += 1
        info = jnp.finfo(x.dtype)
        places = lax.iota(np.float32, x.size).reshape(x.shape)
        phase = self.seed * 7.31 + self.count * 1.77
        sign = jnp.round(1.4 * jnp.sin(places * 12.9898 + phase)).astype(x.dtype)
        free = FREE_BITS[info.nmant + 1]
        most = 2.0 ** (info.nmant + 1 - free + free // 2)

        def is_coarse(y: Array) -> Array:
            grid = y * (2.0 ** (free // 2))
            return (grid == jnp.round(grid)) & (jnp.abs(grid) < most)

        coarse = is_coarse(x) if terms is None else is_coarse(x) & is_coarse(terms)
        unit = float(info.eps)
        relative = max(unit, MOST) if op in SERIES else unit
        off = (1 + relative * sign).astype(x.dtype)
        if op == "dot_general" or (op and lookup(op).family == "linalg"):
            largest = jnp.max(jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
            x = jnp.where((self.seed == 0) & (jnp.abs(x) < LEFT * unit * largest), 0, x)
        more = (4 * unit * sign if op in FROM_ONE else 0 * sign).astype(x.dtype)
        if op == "fft":
            more = unit * sign * jnp.max(jnp.abs(x), axis=-1, keepdims=True)
        if terms is not None:
            more = unit * sign * jnp.where(jnp.isfinite(terms), terms, 0)
        return jnp.where(coarse & (op not in FROM_ONE) & (op != "fft"), x, x * off + more)


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
            terms = _terms(binding, given) if node.op in SUMS else None
            env += [self.noise(x, node.op, terms) for x in results]
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


def _terms(binding: Binding, given: Sequence[Array]) -> Array | None:
    """The sum of the magnitudes of the terms, for sums of real floats."""
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in given):
        return None
    sizes = [jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in given]
    (found,) = _bound(binding, sizes)
    return found if jnp.issubdtype(found.dtype, jnp.floating) else None


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
