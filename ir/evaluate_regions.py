# pyright: basic
"""Runs loops, branches and checkpoints of a traced program with other bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from . import jax_internals as internals
from .trace import Binding

Array = Any
Arrays = Sequence[Array]


def scan(
    binding: Binding, step: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]], carry: Arrays,
    xs: Arrays,
) -> list[Array]:  # fmt: skip
    """`step(carry, slices of xs) -> (carry, slices of ys)`, repeated as the binding says."""
    return internals.scan(binding.params, step, carry, xs)


def while_loop(
    test: Callable[[Arrays], Array], step: Callable[[Arrays], Arrays], carry: Arrays
) -> list[Array]:
    """`carry = step(carry)` while `test(carry)`."""
    return list(lax.while_loop(test, lambda carry: tuple(step(carry)), tuple(carry)))


def branch(
    index: Array, branches: Sequence[Callable[..., Arrays]], operands: Arrays
) -> list[Array]:
    """Results of the branch at an index, which is clamped to the number of branches."""
    functions = [lambda *xs, run=run: tuple(run(*xs)) for run in branches]
    return list(lax.switch(index, functions, *operands))


def remat(
    binding: Binding, run: Callable[..., Arrays], operands: Arrays, positions: Sequence[int | None]
) -> list[Array]:
    """The region of `jax.checkpoint` around another body; its policy and barriers stay.

    Args:
        binding: binding of the region as traced.
        run: function of the operands that replaces the body.
        operands: operands of the region.
        positions: for each operand, which one of the traced region's operands it stands for; None
            for one that the traced region lacks.
    """
    closed = jax.make_jaxpr(lambda *xs: tuple(run(*xs)))(*operands)
    # The region's jaxpr is an open one: arrays that the body captured become operands.
    params = {**binding.params, "jaxpr": internals.with_consts_as_arguments(closed)}
    barriers = params["prevent_cse"]
    if isinstance(barriers, tuple):  # one per operand
        kept = tuple(position is None or barriers[position] for position in positions)
        params["prevent_cse"] = (True,) * len(closed.consts) + kept
    return list(binding.primitive.bind(*closed.consts, *operands, **params))
