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

from ir import GROUPED, Literal, Node, grouped_sizes, lookup
from ir.trace import Binding, Program, Traced

Array = Any
RUNS = 12
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
# Ops whose results may be reduced over devices.
REDUCED = SUMS | {"add", "add_any", "select_n", "sub"}
# Ops that only move elements.
LAYOUT = frozenset(("broadcast_in_dim", "expand_dims", "reshape", "rev", "slice", "squeeze",
                    "transpose"))  # fmt: skip
LEFT = 16.0  # units in the last place of the largest element: what is left where terms cancel


def noise(
    traced: Traced, arguments: Sequence[Array], *, own_groups: bool = False
) -> list[list[Array]]:
    """Results of the program, several times, each floating value of it off by a rounding error.

    In the first, what cancels nearly in a product of matrices cancels wholly; in the second, a
    product with a bool that was cast to floats selects, as XLA has it: 0 * NaN is then 0.
    In the third no sum is a negative zero, as an all-reduce of XLA's CPU compiler has it; in the
    next two every second one is none.

    Args:
        traced: the program.
        arguments: of it.
        own_groups: as in `of_own_groups`.
    """

    def run(seed: Any, *arrays: Any) -> Any:
        scope = _Scope(_Noise(seed), traced.program, own_groups)
        return scope.run([*traced.program.consts, *arrays])

    compiled, leaves = jax.jit(run), jax.tree.leaves(tuple(arguments))
    return [list(compiled(jnp.float32(seed), *leaves)) for seed in range(RUNS)]


def of_own_groups(traced: Traced, arguments: Sequence[Array]) -> list[Array]:
    """Results where rows of grouped products meet the matrices of their own groups only.

    XLA's CPU compiler makes of `ragged_dot` a dense product of all rows with all matrices, in which
    the rows of other groups are zeros: what is not finite in any matrix is NaN in all rows. A plan
    multiplies rows with their own matrices (`docs/how-to/limits.md`).
    """
    program = traced.program
    run = jax.jit(lambda *x: _Scope(_Exact(0), program, True).run([*program.consts, *x]))
    return list(run(*jax.tree.leaves(tuple(arguments))))


@dataclass
class _Noise:
    """Errors of one run; each value has its own."""

    seed: Any
    count: int = 0
    reduced: int = 0  # values that may be sums over devices

    def __call__(self, x: Array, op: str = "", terms: Array | None = None) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size or x.dtype.itemsize == 1:
            return x
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return lax.complex(self(jnp.real(x), op), self(jnp.imag(x), op))
        info = jnp.finfo(x.dtype)
        sign, other = self._signs(x), self._signs(x)
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
        more = (4 * unit * other if op in FROM_ONE else 0 * other).astype(x.dtype)
        if op == "fft":
            more = unit * other * jnp.max(jnp.abs(x), axis=-1, keepdims=True)
        if terms is not None:
            more = unit * other * jnp.where(jnp.isfinite(terms), terms, 0)
        if op in REDUCED:
            self.reduced += 1
            unsigned = (self.seed == 2) | (self.seed == 3 + self.reduced % 2)
            x = jnp.where(unsigned & (x == 0), jnp.abs(x), x)
        return jnp.where(coarse & (op not in FROM_ONE) & (op != "fft"), x, x * off + more)

    def _signs(self, x: Array) -> Array:
        """-1, 0 or 1 for each element, as if drawn at random."""
        self.count += 1
        places = lax.iota(np.float32, x.size).reshape(x.shape)
        wave = 43758.547 * jnp.sin(places * 12.9898 + self.seed * 7.31 + self.count * 1.77)
        return (jnp.floor(3 * (wave - jnp.floor(wave))) - 1).astype(x.dtype)


class _Exact(_Noise):
    """No errors."""

    def __call__(self, x: Array, op: str = "", terms: Array | None = None) -> Array:
        del op, terms
        return x


@dataclass(frozen=True)
class _Scope:
    """One body."""

    noise: _Noise
    program: Program
    own_groups: bool = False

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        env = [self.noise(jnp.asarray(x)) for x in inputs]
        graph = self.program.graph
        bools: set[int | Literal] = set()  # values that are casts of bools
        for node, binding in zip(graph.nodes, self.program.bindings, strict=True):
            given = [_read(o, env) for o in node.inputs]
            call = _REGIONS.get(node.op)
            results = call(self, node, binding, given) if call else _bound(binding, given)
            if self.own_groups and node.op == GROUPED:
                results = self.grouped(node, binding, given, results)
            if node.op == "convert_element_type" and given[0].dtype == np.bool_:
                bools.add(len(env))
            if node.op in LAYOUT and node.inputs[0] in bools:
                bools.add(len(env))
            selects = not isinstance(self.noise, _Exact) and node.op in ("mul", "dot_general")
            if selects and not bools.isdisjoint(node.inputs):
                chosen = _selected(binding, given, [o in bools for o in node.inputs])
                results = [jnp.where(self.noise.seed == 1, chosen, results[0])]
            terms = _terms(binding, given) if node.op in SUMS else None
            env += [self.noise(x, node.op, terms) for x in results]
        return [_read(o, env) for o in graph.outputs]

    def grouped(
        self, node: Node, binding: Binding, given: list[Array], dense: list[Array]
    ) -> list[Array]:
        """Rows times the matrices of their own groups; `dense` in forms that no plan tiles."""
        types = tuple(self.program.graph.type_of(o) for o in node.inputs)
        sizes = grouped_sizes(types, dict(node.attrs))
        if sizes is None or sizes.contracts_rows:
            return dense
        lhs, rhs, counts = given
        ends, out = jnp.cumsum(counts), jnp.zeros_like(dense[0])
        place, every = jnp.arange(sizes.rows)[:, None], jnp.array([sizes.rows], counts.dtype)
        for group in range(sizes.groups):
            own = lax.slice_in_dim(rhs, group, group + 1, axis=sizes.matrix_dims[0])
            (found,) = _bound(binding, [lhs, own, every])
            rows = (ends[group] - counts[group] <= place) & (place < ends[group])
            out = jnp.where(rows, found, out)
        return [out]

    def body(self, binding: Binding, number: int) -> Callable[[Sequence[Array]], list[Array]]:
        program = binding.bodies[number]
        scope = _Scope(self.noise, program, self.own_groups)
        return lambda given: scope.run([*program.consts, *given])


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


def _selected(binding: Binding, given: list[Array], bools: list[bool]) -> Array:
    """The product, without what is not finite where it is multiplied by a zero that was a bool."""
    if not jnp.issubdtype(given[0].dtype, jnp.floating):
        return _bound(binding, given)[0]
    finite = [
        x if b else jnp.where(jnp.isfinite(x), x, 0) for x, b in zip(given, bools, strict=True)
    ]
    spoilt = [
        x if b else (~jnp.isfinite(x)).astype(x.dtype) for x, b in zip(given, bools, strict=True)
    ]
    (product,) = _bound(binding, finite)
    return jnp.where(_bound(binding, spoilt)[0] == 0, product, _bound(binding, given)[0])


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
