# pyright: basic
"""Loops whose stacks of results begin when the loop does, and not at the start of the program.

`jax.lax.scan` fills its stacks with zeros, which depend on nothing: XLA's scheduler writes them
while it waits for something, or first of all, and they take memory from then on. Stacks of the
gradients of weights are thus there while the loss is computed. Here a stack begins as copies of one
number that the loop is entered with. Every iteration writes its slice, so that no copy is read.

Such a loop is a `while` loop, which JAX does not differentiate in reverse: the derivatives of a
planned function are those of `jax.lax.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import eval_jaxpr
from jax.custom_derivatives import SymbolicZero

from ir import Graph
from ir.evaluate_regions import scan, while_loop
from ir.trace import Binding

Array = Any
Arrays = Sequence[Array]
Step = Callable[[Arrays, Arrays], "tuple[Arrays, Arrays]"]


def entered_last(graph: Graph, carry: Sequence[tuple[int, Array]]) -> Array | None:
    """Of the values that a loop is entered with, the array of that which most nodes lead to.

    Args:
        graph: the body that the loop is in.
        carry: number and array of each value.
    """
    usable = [(sum(1 for _ in _before(graph, v)), x) for v, x in carry if _is_usable(x)]
    return max(usable, key=lambda pair: pair[0])[1] if usable else None


def _before(graph: Graph, value: int) -> Iterator[int]:
    """Nodes that lead to a value."""
    seen, waiting = set[int](), [value]
    while waiting:
        i = graph.maker.get(waiting.pop())
        if i is not None and i not in seen:
            seen.add(i)
            waiting += [v for v in graph.nodes[i].inputs if isinstance(v, int)]
            yield i


def stacked_loop(
    binding: Binding, step: Step, carry: Arrays, xs: Arrays, entered: Array | None
) -> list[Array]:
    """`step(carry, slices of xs) -> (carry, slices of ys)`, repeated as the binding says.

    Args:
        binding: binding of the loop as traced.
        step: its body.
        carry: what the first iteration reads of the one before.
        xs: stacks whose slices the iterations read.
        entered: a value that the loop is entered with, whose first number the stacks of ys begin
            with; None where they begin as in `jax.lax.scan`.
    """
    length, reverse = binding.params["length"], binding.params["reverse"]
    if entered is None or not length or binding.params["unroll"] != 1:
        return scan(binding, step, carry, xs)
    count, read = len(carry), len(carry) + len(xs)
    slices = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in xs]
    body = jax.make_jaxpr(step)(list(carry), slices)
    types = body.out_avals[count:]
    if not types or not all(map(_is_plain, types)):
        return scan(binding, step, carry, xs)

    def run(consts: Arrays, carry: Arrays, slices: Arrays) -> tuple[Arrays, Arrays]:
        results = eval_jaxpr(body.jaxpr, consts, *carry, *slices)
        return results[:count], results[count:]

    def scanned(*arrays: Array) -> list[Array]:
        carry, xs, consts = arrays[:count], arrays[count:read], arrays[read:-1]
        return scan(binding, lambda carry, slices: run(consts, carry, slices), carry, xs)

    @jax.custom_jvp
    def looped(*arrays: Array) -> list[Array]:
        carry, xs, consts, first = arrays[:count], arrays[count:read], arrays[read:-1], arrays[-1]
        stacks = [lax.broadcast(first.astype(t.dtype), (length, *t.shape)) for t in types]

        def iterate(state: Arrays) -> Arrays:
            n, carry, stacks = state[0], state[1 : 1 + count], state[1 + count :]
            at = length - n - 1 if reverse else n
            after, ys = run(consts, carry, [_slice_of(x, at) for x in xs])
            written = [_written(stack, y, at) for stack, y in zip(stacks, ys, strict=True)]
            return [n + 1, *after, *written]

        begin = [jnp.int32(0), *carry, *stacks]
        return while_loop(lambda state: state[0] < length, iterate, begin)[1:]

    def derivative(arrays: Arrays, tangents: Arrays) -> tuple[list[Array], list[Array]]:
        moving = [k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def of(*some: Array) -> list[Array]:
            given = dict(zip(moving, some, strict=True))
            return scanned(*[given.get(k, x) for k, x in enumerate(arrays)])

        return jax.jvp(of, [arrays[k] for k in moving], [tangents[k] for k in moving])

    looped.defjvp(derivative, symbolic_zeros=True)
    first = lax.index_in_dim(entered.reshape(-1), 0, keepdims=False)
    return looped(*carry, *xs, *body.consts, lax.stop_gradient(first))


def _is_usable(x: Array) -> bool:
    """Whether any stack may begin with the first number of an array."""
    real = jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)
    return real and x.size > 0 and _is_plain(jax.typeof(x))


def _is_plain(type_: Any) -> bool:
    """Whether an array holds numbers in the memory of the device."""
    numbers = jnp.issubdtype(type_.dtype, jnp.number) or type_.dtype == jnp.bool_
    return numbers and type_.memory_space == jax.memory.Space.Device


def _slice_of(x: Array, at: Array) -> Array:
    return lax.dynamic_index_in_dim(x, at, keepdims=False, allow_negative_indices=False)


def _written(stack: Array, y: Array, at: Array) -> Array:
    return lax.dynamic_update_index_in_dim(stack, y, at, 0, allow_negative_indices=False)
