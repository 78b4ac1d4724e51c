# pyright: basic
"""A planned function as StableHLO with Shardy, for programs that do not know the planner."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import jax
from jax import export

from .jit import CompiledPlan

# The exported text has collectives and no kernels of one platform: it runs on either.
PLATFORMS = ("cpu", "cuda")


def serialized(program: CompiledPlan) -> tuple[str, bytes]:
    """StableHLO text, and the bytes that `jax.export.deserialize` reads.

    The function takes the flat arguments and gives the flat results.
    """
    with _without_places():
        made = export.export(program.jitted, platforms=PLATFORMS)(*program.structs)
        return str(made.mlir_module()), bytes(made.serialize())


@contextlib.contextmanager
def _without_places() -> Generator[None]:
    """Leaves the caller's source lines out, so that one plan gives one text."""
    name = "jax_traceback_in_locations_limit"
    before = jax.config.values[name]
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, before)
