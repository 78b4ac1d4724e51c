# pyright: basic
"""What a planned function is called with, held against what it was planned for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ir import TraceError
from ir.trace import names_of, structs_of

from ..common.errors import ArgumentError
from .context import PLACE


def leaves_like(tree: Any, name: str, planned: Any) -> list[Any]:
    """Leaves of an argument.

    Args:
        tree: the argument.
        name: what it is called.
        planned: the same pytree of `jax.ShapeDtypeStruct`.

    Raises:
        ArgumentError: if it has another structure, or holds other than arrays of these types.
    """
    leaves, found = jax.tree.flatten(tree)
    structure = jax.tree.structure(planned)
    if found != structure:
        raise ArgumentError(
            f"{name} was planned with the structure {structure}, it is called with {found}",
            kind="bad-argument", where=PLACE, remedy="plan it again for these",
        )  # fmt: skip
    for n, (leaf, type_) in enumerate(zip(leaves, jax.tree.leaves(planned), strict=True)):
        if isinstance(leaf, jax.Array) and (leaf.shape, leaf.dtype) == (type_.shape, type_.dtype):
            continue
        called = names_of(name, planned)[n]
        check_arrays((called,), (leaf,))
        struct = structs_of(called, leaf)
        check_type(called, struct, type_)
    return leaves


def refuse_used(leaves: Sequence[Any], name: str, planned: Any) -> None:
    """Refuses arrays whose memory an earlier step has reused.

    Args:
        leaves: arrays, or pieces of arrays.
        name: name of the argument.
        planned: the same pytree of `jax.ShapeDtypeStruct`.

    Raises:
        ArgumentError: if there is one.
    """
    for n, leaf in enumerate(leaves):
        parts = getattr(leaf, "parts", (leaf,))
        if any(isinstance(part, jax.Array) and part.is_deleted() for part in parts):
            raise ArgumentError(
                f"'{names_of(name, planned)[n]}' was given to an earlier step, which reused its "
                "memory", kind="bad-argument", where=PLACE,
                remedy="pass what that step returned, or place the arrays again for every call",
            )  # fmt: skip


def check_arrays(names: Sequence[str], leaves: Sequence[Any]) -> None:
    """Refuses what is no array; JAX knows it by its number among all leaves.

    Raises:
        ArgumentError: naming the first.
    """
    for name, leaf in zip(names, leaves, strict=True):
        try:
            structs_of(name, leaf)
        except TraceError as error:
            found = f"{error.where} {error.message}"
        else:
            found = f"argument '{name}' is a shape, expected an array"
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                continue
        raise ArgumentError(found, kind="bad-argument", where=PLACE, remedy="call it with arrays")


def check_type(name: str, leaf: Any, planned: jax.ShapeDtypeStruct) -> None:
    """Refuses another shape or element type than an argument was planned with.

    Raises:
        ArgumentError: saying both.
    """
    if (leaf.shape, leaf.dtype) != (planned.shape, planned.dtype):
        raise ArgumentError(
            f"argument '{name}' was planned as {planned.dtype}{list(planned.shape)}, it is called "
            f"with {leaf.dtype}{list(leaf.shape)}", kind="bad-argument", where=PLACE,
            remedy="plan the function again for these",
        )  # fmt: skip
