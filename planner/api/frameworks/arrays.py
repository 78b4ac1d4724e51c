# pyright: basic
"""Pytrees that hold the arrays of modules, and nothing else of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import DictKey, SequenceKey


@jax.tree_util.register_pytree_with_keys_class
class Arrays:
    """The arrays of a module.

    names: path of each in the module, such as `layers/0/kernel`.
    leaves: the arrays, or what stands for them, such as their shardings.
    """

    def __init__(self, names: tuple[str, ...], leaves: Iterable[Any]) -> None:
        self.names, self.leaves = names, tuple(leaves)

    def __repr__(self) -> str:
        return repr(dict(zip(self.names, self.leaves, strict=True)))

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        keyed = [(DictKey(n), x) for n, x in zip(self.names, self.leaves, strict=True)]
        return keyed, self.names

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return self.leaves, self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], leaves: Iterable[Any]) -> Arrays:
        return cls(names, leaves)


@dataclass(frozen=True)
class Changed:
    """An argument that holds modules whose state has changed.

    position: of the argument among those that are traced.
    name: of the argument.
    kept: positions, among all arrays of its modules, of those that come back; None for all of
        them, in modules that may hold others than before.
    """

    position: int
    name: str
    kept: tuple[int, ...] | None


@dataclass(frozen=True)
class Returned:
    """What the results of a call on arrays stand for.

    changed: the arguments whose new state comes before the results.
    single: whether there is one result, that is no tuple.
    parts: what the modules among arguments and results hold beside arrays, by framework.
    """

    changed: tuple[Changed, ...]
    single: bool
    parts: tuple[tuple[str, Any], ...]


class Results(tuple[Any, ...]):
    """State of changed arguments, then the results; `returned` says which is which."""

    returned: Returned

    @classmethod
    def of(cls, returned: Returned, items: Iterable[Any]) -> Results:
        made = cls(items)
        made.returned = returned
        return made

    def with_keys(self) -> tuple[list[tuple[Any, Any]], Returned]:
        heads: list[Any] = [DictKey(each.name) for each in self.returned.changed]
        count = len(self) - len(heads)
        tails = [DictKey("out")] if self.returned.single else map(SequenceKey, range(count))
        return list(zip([*heads, *tails], self, strict=True)), self.returned


jax.tree_util.register_pytree_with_keys(
    Results, Results.with_keys, Results.of, lambda found: (tuple(found), found.returned)
)
