# pyright: basic
"""A planned function as StableHLO with Shardy, for programs that do not know the planner."""

from __future__ import annotations

from jax import export

from ir.jax_compilers import without_places

from .context import without_mesh
from .jit import CompiledPlan

# The exported text has collectives and no kernels of one platform: it runs on either.
PLATFORMS = ("cpu", "cuda")


def serialized(program: CompiledPlan) -> tuple[str, bytes]:
    """StableHLO text, and the bytes that `jax.export.deserialize` reads.

    The function takes the flat arguments and gives the flat results.
    """
    with without_places(), without_mesh():
        made = export.export(program.jitted, platforms=PLATFORMS)(*program.structs)
        return str(made.mlir_module()), bytes(made.serialize())
