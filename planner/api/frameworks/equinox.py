# pyright: basic
"""Modules of Equinox: pytrees whose leaves are arrays, functions and settings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import jax
import numpy as np

from ...common.errors import ArgumentError
from ..call_parts import is_hashable
from .arrays import Arrays

ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


@final
class Equinox:
    """Takes arguments apart as `equinox.filter_jit` does: what is no array is static."""

    name = "equinox"
    module = "equinox"

    def __init__(self, tag: Hashable) -> None:
        self.kind: Any = sys.modules[self.module].Module

    def call(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def is_module(self, node: Any) -> bool:
        return isinstance(node, self.kind)

    def holds(self, tree: Any) -> bool:
        """Whether there is a module in a tree."""
        return any(map(self.is_module, jax.tree.leaves(tree, is_leaf=self.is_module)))

    def modules_of(self, tree: Any) -> Any:
        """Nothing, as modules do not change."""

    def apart(self, items: tuple[Any, ...]) -> tuple[tuple[Any, ...], Hashable]:
        """The arrays of each item, and what else it holds.

        Raises:
            ArgumentError: if something else has no hash.
        """
        found, parts = [], []
        for item in items:
            leaves, structure = jax.tree.flatten(item)
            arrays = tuple(n for n, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS))
            names = _names(structure)
            found.append(Arrays(tuple(names[n] for n in arrays), (leaves[n] for n in arrays)))
            static = map(_static, names, leaves)
            parts.append((structure, tuple(static)))
        return tuple(found), tuple(parts)

    def together(self, items: tuple[Any, ...], parts: Any, *, inner: bool) -> tuple[Any, ...]:
        """Arrays joined with what else there was."""
        del inner
        found = []
        for item, (structure, static) in zip(items, parts, strict=True):
            arrays = iter(jax.tree.leaves(item))
            leaves = [next(arrays) if value is None else value[1] for value in static]
            found.append(jax.tree.unflatten(structure, leaves))
        return tuple(found)

    def copies(self, items: tuple[Any, ...], parts: Any) -> tuple[Any, ...]:
        return self.together(items, parts, inner=False)


@functools.lru_cache(maxsize=256)
def _names(structure: Any) -> tuple[str, ...]:
    """Path of each leaf of a tree."""
    tree = jax.tree.unflatten(structure, range(structure.num_leaves))
    keyed, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in keyed)


def _static(name: str, leaf: Any) -> tuple[type, Any] | None:
    """Type and value of a leaf that is no array: 1, 1.0 and True are equal, but not the same.

    Raises:
        ArgumentError: if it has no hash.
    """
    if isinstance(leaf, ARRAYS):
        return None
    if not is_hashable(leaf):
        raise ArgumentError(
            f"'{name}' is of type {type(leaf).__name__}, which has no hash and is no array",
            kind="bad-argument", where="a parallelized function",
            remedy="what is no array is static beside an Equinox module; make it hashable, or a "
            "pytree",
        )  # fmt: skip
    return type(leaf), leaf
