# pyright: basic
"""A call whose modules are taken apart: arguments and results are pytrees of arrays."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax

from ..call_parts import Call, Marked, names_of_slots
from .arrays import Arrays, Changed, Results, Returned
from .equinox import Equinox
from .nnx import NNX

FRAMEWORKS = (NNX, Equinox)
Framework = NNX | Equinox


@dataclass(frozen=True)
class Opened:
    """A call taken apart.

    call: the call, with arrays in place of modules.
    donated: positions of donated arguments among the traced ones.
    frameworks: those that the user has imported.
    parts: what the modules among the arguments hold beside arrays, by framework.
    """

    call: Call
    donated: tuple[int, ...]
    frameworks: tuple[Framework, ...]
    parts: tuple[tuple[str, Any], ...]

    @property
    def traced(self) -> tuple[Any, ...]:
        """The traced arguments, pytrees of arrays or of `jax.ShapeDtypeStruct`."""
        return self.call.traced

    def with_traced(self, traced: tuple[Any, ...]) -> Opened:
        """The same call with other traced arguments."""
        return replace(self, call=replace(self.call, traced=traced))

    def key(self) -> Hashable:
        """What a plan is made for."""
        return self.call.key(), self.parts

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function of arrays, whose results are arrays."""
        inner = self.call.function(fn)
        if not self.frameworks or (not self.parts and isinstance(inner, type(jax.jit(abs)))):
            return inner

        @functools.wraps(inner, updated=())
        def pure(*traced: Any) -> Any:
            args = self._together(traced, self.parts, inner=True)
            return self._results(traced, args, inner(*args), names_of_slots(fn, self.call.slots))

        return pure

    def _results(self, traced: Any, args: Any, out: Any, names: list[str]) -> Any:
        """Results of the function inside, with the state of arguments that it changed."""
        single = type(out) is not tuple
        outs = (out,) if single else out
        known = {name for name, _ in self.parts}
        active = tuple(f for f in self.frameworks if f.name in known or f.holds(outs))
        if not active:
            return out
        states = tuple(modules_of(active, arg) for arg in args)
        found, parts = apart(active, (*states, *outs))
        changed, items = [], []
        for n, (name, arg, state) in enumerate(zip(names, traced, states, strict=True)):
            if state is None:
                continue
            kept, item = difference(arg, found[n], whole=n in self.donated)
            if kept != ():
                changed.append(Changed(n, name, kept))
                items.append(item)
        returned = Returned(tuple(changed), single, parts)
        return Results.of(returned, [*items, *found[len(args) :]])

    def closed(self, results: Any) -> Any:
        """The function's results, after its changes to the caller's modules are made."""
        if not isinstance(results, Results):
            return results
        returned, args = results.returned, list(self.traced)
        for each, item in zip(returned.changed, results, strict=False):
            args[each.position] = patched(args[each.position], each.kept, item)
        outs = results[len(returned.changed) :]
        items = self._together((*args, *outs), returned.parts, inner=False)[len(args) :]
        return items[0] if returned.single else items

    def _together(self, items: Any, parts: Any, *, inner: bool) -> Any:
        by_name = {framework.name: framework for framework in self.frameworks}
        for name, part in reversed(parts):
            items = by_name[name].together(items, part, inner=inner)
        return items

    def arguments(self, traced: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as the caller gives them, with other leaves in new modules."""
        by_name = {framework.name: framework for framework in self.frameworks}
        for name, part in reversed(self.parts):
            traced = by_name[name].copies(traced, part)
        return self.call.arguments(traced)


@contextmanager
def opened(call: Call, donated: Marked, tag: Hashable) -> Iterator[Opened]:
    """A call taken apart, while it is planned or runs.

    Args:
        call: the call, with modules of frameworks that the user has imported.
        donated: arguments whose buffers may be reused.
        tag: what calls of one function have in common.
    """
    frameworks = tuple(kind(tag) for kind in FRAMEWORKS if kind.module in sys.modules)
    held = tuple(f for f in frameworks if f.holds(call.traced))
    with ExitStack() as stack:
        for framework in frameworks:
            stack.enter_context(framework.call())
        traced, parts = apart(held, call.traced)
        yield Opened(replace(call, traced=traced), call.marked(donated), frameworks, parts)


def apart(
    frameworks: tuple[Framework, ...], items: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """Arrays in place of the modules of these frameworks, and what else the modules hold."""
    parts = []
    for framework in frameworks:
        items, part = framework.apart(items)
        parts.append((framework.name, part))
    return items, tuple(parts)


def modules_of(frameworks: tuple[Framework, ...], arg: Any) -> Any:
    """The modules of an argument that the function may have changed; None without any."""
    for framework in frameworks:
        if framework.holds(arg) and (found := framework.modules_of(arg)) is not None:
            return found
    return None


def arrays_of(arg: Any) -> Any:
    """The arrays of an argument's modules alone."""
    return jax.tree.map(
        lambda node: node if isinstance(node, Arrays) else None,
        arg, is_leaf=lambda node: isinstance(node, Arrays),
    )  # fmt: skip


def difference(before: Any, after: Any, *, whole: bool) -> tuple[tuple[int, ...] | None, Any]:
    """Which arrays of an argument's modules have changed, and these; all if it is to be whole."""
    old, structure = jax.tree.flatten(arrays_of(before))
    keyed, found = jax.tree_util.tree_flatten_with_path(after)
    if whole or structure != found:
        return None, after
    kept = tuple(n for n, (leaf, (_, new)) in enumerate(zip(old, keyed, strict=True))
                 if leaf is not new)  # fmt: skip
    names = (jax.tree_util.keystr(keyed[n][0], simple=True, separator="/") for n in kept)
    return kept, Arrays(tuple(names), (keyed[n][1] for n in kept))


def patched(before: Any, kept: tuple[int, ...] | None, item: Any) -> Any:
    """What `difference` was made of, from the argument before."""
    if kept is None:
        return item
    leaves, structure = jax.tree.flatten(arrays_of(before))
    for n, leaf in zip(kept, item.leaves, strict=True):
        leaves[n] = leaf
    return jax.tree.unflatten(structure, leaves)
