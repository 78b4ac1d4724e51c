# pyright: basic
"""Finds objects among a function's arguments that it updates in place while it is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

SHOWN = 3  # names in a warning


class Watch:
    """Detects in-place changes of the objects among a function's arguments during tracing.

    The function gets copies, so that changes that it does not return are lost.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.lost: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning that names the changed objects; empty if there are none."""
        if not self.lost:
            return ()
        some = ", ".join(self.lost[:SHOWN]) + (", ..." if len(self.lost) > SHOWN else "")
        of = "array of an argument is" if len(self.lost) == 1 else "arrays of arguments are"
        return (
            f"{len(self.lost)} {of} updated in place ({some}): such updates "
            "are lost, as the function gets copies; return the updated objects",
        )

    def on(self, fn: Callable[..., Any], args: Any) -> Callable[..., Any]:
        """The function, watched if there are objects among its arguments; results are the same."""
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]]
        plain = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
        if all(isinstance(key, plain) for path in paths for key in path):
            return fn

        @functools.wraps(fn)
        def watched(*given: Any) -> Any:
            before = list(zip(self.names, *map(jax.tree.leaves, (given, given)), strict=True))
            found = fn(*given)
            after = dict(jax.tree_util.tree_flatten_with_path(given)[0])
            known = {id(leaf) for leaf in jax.tree.leaves(found)}
            known.update(id(leaf) for _, leaf, again in before if leaf is again)
            self.lost = [
                name
                for path, (name, leaf, again) in zip(paths, before, strict=True)
                if leaf is again and path in after and id(after[path]) not in known
            ]
            return found

        return watched


class Watched:
    """A function and the watch on it: one object to trace, which JAX traces once.

    Args:
        fn: the function.
        names: of the leaves of its arguments.
        args: the arguments.
    """

    def __init__(self, fn: Callable[..., Any], names: Sequence[str], args: Any) -> None:
        self.fn, self.watch = fn, Watch(names)
        self.run = self.watch.on(fn, args)
