# pyright: basic
"""Modules of Flax NNX: graphs of objects whose variables a function updates in place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any, final

import jax

from .arrays import Arrays


@final
class NNX:
    """Takes modules apart as `nnx.jit` does; objects that are shared stay shared.

    Args:
        tag: what calls of one function have in common.
    """

    name = "nnx"
    module = "flax.nnx"

    def __init__(self, tag: Hashable) -> None:
        self.nnx: Any = sys.modules[self.module]
        self.tag = tag

    def call(self) -> AbstractContextManager[Any]:
        """Within it modules are taken apart and put together outside of the trace and inside."""
        return self.nnx.update_context(self.tag)

    def is_module(self, node: Any) -> bool:
        return _is_module(type(node), self.nnx)

    def stops(self, node: Any) -> bool:
        """Whether nothing below a node is taken apart: `nnx.State` is a pytree of copies."""
        return self.is_module(node) or isinstance(node, self.nnx.State)

    def holds(self, tree: Any) -> bool:
        """Whether there is a module in a tree."""
        return any(map(self.is_module, jax.tree.leaves(tree, is_leaf=self.stops)))

    def modules_of(self, tree: Any) -> Any:
        """The tree with its modules alone."""
        return jax.tree.map(
            lambda node: node if self.is_module(node) else None, tree, is_leaf=self.stops
        )

    def apart(self, items: tuple[Any, ...]) -> tuple[tuple[Any, ...], Hashable]:
        """Arrays in place of modules, and what else the modules hold."""
        parts = []

        def arrays(node: Any) -> Any:
            if not self.is_module(node):
                return node
            definition, state = context.split(node)
            leaves, structure = jax.tree.flatten(state)
            parts.append((definition, structure))
            return Arrays(_names(structure), leaves)

        with self.nnx.split_context(self.tag) as context:
            found = jax.tree.map(arrays, items, is_leaf=self.stops)
        return found, tuple(parts)

    def together(self, items: tuple[Any, ...], parts: Any, *, inner: bool) -> tuple[Any, ...]:
        """Modules in place of their arrays; outside of the trace the caller's are updated."""
        with self.nnx.merge_context(self.tag, inner) as context:
            return _together(items, parts, context)

    def copies(self, items: tuple[Any, ...], parts: Any) -> tuple[Any, ...]:
        """As `together`, with new modules."""
        with self.nnx.merge_context() as context:
            return _together(items, parts, context)


def _together(items: tuple[Any, ...], parts: Any, context: Any) -> tuple[Any, ...]:
    left = iter(parts)

    def module(node: Any) -> Any:
        if not isinstance(node, Arrays):
            return node
        definition, structure = next(left)
        return context.merge(definition, jax.tree.unflatten(structure, node.leaves))

    return jax.tree.map(module, items, is_leaf=lambda node: isinstance(node, Arrays))


@functools.lru_cache(maxsize=4096)  # Flax computes it slowly
def _is_module(kind: type, nnx: Any) -> bool:
    """Whether nodes of a type are modules or variables."""
    return issubclass(kind, (nnx.Pytree, nnx.Variable))


@functools.lru_cache(maxsize=256)
def _names(structure: Any) -> tuple[str, ...]:
    """Path of each variable of a state in its module; every variable has one value."""
    state = jax.tree.unflatten(structure, range(structure.num_leaves))
    keyed, _ = jax.tree_util.tree_flatten_with_path(state)
    names = (jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in keyed)
    return tuple(name.removesuffix("/value") for name in names)
