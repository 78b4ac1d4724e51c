"""Refuses effects of the user's program that a plan cannot run once and in order."""

from __future__ import annotations

from ir import Graph
from ir.analysis import is_effect

from ..common.errors import PlanError


def check_effects(graph: Graph, microbatches: int) -> None:
    """Checks that every effect of a traced step can happen once and in order.

    Args:
        graph: the traced step.
        microbatches: parts into which the planner cut the step's loss.

    Raises:
        PlanError: if an effect is of a kind that is not known, such as a write to a `jax.Ref`, or
            if effects of the loss would happen once for each micro-batch.
    """
    for node in graph.nodes:
        if node.has_attr("effect") and not node.bodies and not is_effect(node):
            raise PlanError(
                f"'{node.op}' has an effect that cannot be kept once and in order on several "
                "devices; known are jax.debug.print, jax.debug.callback and io_callback",
                kind="effect", where=node.source or "the function",
                remedy="carry arrays as values instead of references, or leave the effect out",
            )  # fmt: skip
        if microbatches > 1 and is_effect(node):
            raise PlanError(
                f"'{node.op}' would happen in each of {microbatches} micro-batches instead of once",
                kind="effect", where=node.source or "the loss function",
                remedy="remove it from the loss, or plan with microbatches=1 and pipeline='off'",
            )  # fmt: skip
        for body in node.bodies:
            check_effects(body, microbatches)
