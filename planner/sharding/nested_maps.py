# pyright: basic
"""Refuses programs that map over devices in ways that no plan can keep."""

from __future__ import annotations

from typing import Any

from ir import SHARD_MAP, Graph, Node
from ir.jax_internals import equations, is_jaxpr
from ir.trace import Sources

from ..common.errors import PlanError

# Primitives that run their body once on each device of a mesh of their own.
MAPS = {SHARD_MAP: "jax.shard_map or jax.pmap", "xla_pmap": "jax.pmap"}


def check_maps(graph: Graph, emission: str) -> None:
    """Checks that each `shard_map` of a traced step, or of its bodies, can be an op of a plan.

    Raises:
        PlanError: names the place of one that cannot.
    """
    for node in graph.nodes:
        if node.op == SHARD_MAP:
            _check_map(node, emission)
        elif node.op in MAPS:
            raise _refusal(node.op, node.source)
        else:
            for body in node.bodies:
                check_maps(body, emission)


def _check_map(node: Node, emission: str) -> None:
    why = ""
    if emission != "shard_map":
        why = f"is inside of a plan that is emitted as '{emission}'"
    elif _holds_map(node.bodies[0]):
        why = "contains another one"
    elif _acts(node):
        why = "prints or calls back"
    if why:
        raise PlanError(
            f"a jax.shard_map {why}, which no plan can keep", kind="nested-map",
            where=node.source or "the function",
            remedy="map over axes of one mesh at once, without callbacks, and plan with "
            "emission='shard_map'",
        )  # fmt: skip


def _holds_map(graph: Graph) -> bool:
    return any(n.op in MAPS or any(map(_holds_map, n.bodies)) for n in graph.nodes)


def _acts(node: Node) -> bool:
    return node.has_attr("effect") or any(_acts(n) for body in node.bodies for n in body.nodes)


def check_maps_in(jaxpr: Any) -> None:
    """Checks that no equation of a loss that is cut into stages maps over devices itself.

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
        f"the planned function uses {MAPS[op]}, which is over all devices of one program and "
        "cannot be in a stage of a pipeline",
        kind="nested-map", where=source or "the function",
        remedy="plan with pipeline='off', or write the mapped part as an ordinary function of "
        "whole arrays",
    )  # fmt: skip
