# pyright: basic
"""A `while` loop whose test was batched by `jax.vmap`, as one with a single test."""

from __future__ import annotations

from typing import Any

import jax

from .jax_internals import function_of, struct_of


def one_answer(given: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a batched `while` as JAX lowers it.

    The loop continues while any test holds, and changes only entries whose test holds. Its body
    runs the test too, so that it takes the test's constants before its own.
    """
    test, step = given["cond_jaxpr"], given["body_jaxpr"]
    tests, steps = given["cond_nconsts"], given["body_nconsts"]

    def any_goes_on(*args: Any) -> Any:
        return jax.numpy.any(function_of(test)(*args)[0])

    def where_it_goes_on(*args: Any) -> Any:
        carry = args[tests + steps :]
        (goes,) = function_of(test)(*args[:tests], *carry)
        after = function_of(step)(*args[tests:])
        kept = (jax.lax.broadcast_in_dim(goes, x.shape, tuple(range(goes.ndim))) for x in carry)
        return tuple(map(jax.lax.select, kept, after, carry))

    held = [struct_of(aval) for aval in test.in_avals[:tests]]
    return given | {
        "cond_jaxpr": jax.make_jaxpr(any_goes_on)(*map(struct_of, test.in_avals)),
        "body_jaxpr": jax.make_jaxpr(where_it_goes_on)(*held, *map(struct_of, step.in_avals)),
        "body_nconsts": tests + steps,
    }
