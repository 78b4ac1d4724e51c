"""The blocks of a plan: the program that they make."""

from __future__ import annotations

from dataclasses import replace

from ir import IRError, check
from ir.trace import Traced

from ...common.errors import PlanError
from .edit import in_blocks
from .orders import Orders


def as_blocked(traced: Traced, blocks: int, where: str) -> Traced:
    """A traced function with its rows sorted in the blocks that a plan has, 0 for none.

    Raises:
        PlanError: if the program has no rows that can be.
    """
    if not blocks:
        return traced
    found = blocked(traced, blocks)
    if found is None:
        raise PlanError(
            f"it sorts rows within {blocks} blocks, here none can be", kind="differs", where=where,
            remedy="plan this function anew",
        )  # fmt: skip
    return found


def blocked(traced: Traced, blocks: int, orders: Orders | None = None) -> Traced | None:
    """A traced function with its rows sorted within blocks, None if none can be.

    Args:
        traced: the function.
        blocks: number of blocks.
        orders: those of its program.
    """
    try:
        program = in_blocks(traced.program, blocks, orders)
        if program is None:
            return None
        check(program.graph, after="sorting within blocks")
    except IRError:
        return None
    return replace(traced, program=program)
