# pyright: basic
"""Refuses programs that map over devices themselves, as with `shard_map`."""

from __future__ import annotations

from typing import Any

from ir import Graph
from ir.jax_internals import equations, is_jaxpr
from ir.trace import Sources

from ..common.errors import PlanError

# Primitives that run their body once on each device of a mesh of their own.
MAPS = {"shard_map": "jax.shard_map or jax.pmap", "xla_pmap": "jax.pmap"}


def check_maps(graph: Graph) -> None:
    """Checks that no op of a traced step, or of its bodies, maps over devices itself.

    Raises:
        PlanError: names the place of such an op.
    """
    for node in graph.nodes:
        if node.op in MAPS:
            raise _refusal(node.op, node.source)
        for body in node.bodies:
            check_maps(body)


def check_maps_in(jaxpr: Any) -> None:
    """As `check_maps`, for a jaxpr.

    Raises:
        PlanError: names the place of such an equation.
    """
    for eqn in equations(jaxpr):
        if eqn.primitive.name in MAPS:
            raise _refusal(eqn.primitive.name, Sources().of(eqn))
        for value in eqn.params.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if is_jaxpr(item):
                    check_maps_in(item)


def _refusal(op: str, source: str) -> PlanError:
    return PlanError(
        f"the planned function uses {MAPS[op]}, which divides the devices by itself and cannot "
        "run inside of a plan, which divides them too",
        kind="nested-map", where=source or "the function",
        remedy="write the mapped part as an ordinary function of whole arrays, or plan the "
        "function without it",
    )  # fmt: skip
