# pyright: basic
"""A call taken apart as `jax.jit` does it: static values, and arguments that are traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ir.trace import structs_of

from ..common.errors import ArgumentError

Argnums = int | Sequence[int] | None
Argnames = str | Sequence[str] | None


@dataclass(frozen=True)
class Marked:
    """Arguments of a function that are treated alike, wherever a call gives them.

    positions: of positional arguments.
    names: of keyword arguments.
    """

    positions: frozenset[int]
    names: frozenset[str]

    def __contains__(self, slot: int | str) -> bool:
        return slot in self.positions or slot in self.names


def marked(fn: Callable[..., Any], argnums: Argnums, argnames: Argnames) -> Marked:
    """The arguments that `argnums` and `argnames` mean, each completed by the other as in jit."""
    known = [p.name for p in _parameters(fn) if p.kind in (p.POSITIONAL_ONLY,
                                                            p.POSITIONAL_OR_KEYWORD)]  # fmt: skip
    given = (argnums,) if isinstance(argnums, int) else argnums or ()
    positions = {n + len(known) if n < 0 else n for n in given}
    names = {argnames} if isinstance(argnames, str) else {*(argnames or ())}
    if argnames is None:
        names = {known[n] for n in positions if n < len(known)}
    if argnums is None:
        positions = {n for n, name in enumerate(known) if name in names}
    return Marked(frozenset(positions), frozenset(names))


@dataclass(frozen=True)
class Call:
    """The arguments of one call.

    slots: position or keyword of each traced argument.
    traced: the traced arguments, pytrees of arrays or of `jax.ShapeDtypeStruct`.
    static: position or keyword, and value, of each static argument.
    """

    slots: tuple[int | str, ...]
    traced: tuple[Any, ...]
    static: tuple[tuple[int | str, Any], ...]

    def key(self) -> Hashable:
        """What a plan is made for: structure, shapes and types of arguments, and static values."""
        leaves, structure = jax.tree.flatten(self.traced)
        static = tuple((slot, type(value), value) for slot, value in self.static)
        return self.slots, static, structure, tuple(map(_kind, leaves))

    def marked(self, which: Marked) -> tuple[int, ...]:
        """Positions among the traced arguments of those that are marked."""
        return tuple(n for n, slot in enumerate(self.slots) if slot in which)

    def arguments(self, traced: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments as the function takes them, with these traced ones."""
        given = dict([*self.static, *zip(self.slots, traced, strict=True)])
        numbers = sorted(slot for slot in given if isinstance(slot, int))
        names = {slot: given[slot] for slot in given if isinstance(slot, str)}
        return tuple(given[n] for n in numbers), names

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the traced arguments alone, all by position."""
        if not self.static and all(isinstance(slot, int) for slot in self.slots):
            return fn

        def call(*traced: Any) -> Any:
            args, kwargs = self.arguments(traced)
            return fn(*args, **kwargs)

        call.__wrapped__ = fn  # JAX's messages name its file and line
        call.__name__ = getattr(fn, "__name__", type(fn).__name__)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = names_of_slots(fn, self.slots)
        call.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        return call


def call_of(static: Marked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call taken apart; keyword arguments are in the order of their names.

    Raises:
        ArgumentError: if a static argument cannot be hashed.
    """
    given = [*enumerate(args), *sorted(kwargs.items())]
    for slot, value in given:
        if slot in static and not is_hashable(value):
            raise ArgumentError(
                f"the static argument {slot!r} is of type {type(value).__name__}, which has no "
                "hash", kind="bad-argument", where="a parallelized function",
                remedy="pass a value that can be a key of a dict, such as a tuple or a frozen "
                "dataclass",
            )  # fmt: skip
    traced = [(slot, value) for slot, value in given if slot not in static]
    return Call(
        tuple(slot for slot, _ in traced), tuple(value for _, value in traced),
        tuple((slot, value) for slot, value in given if slot in static),
    )  # fmt: skip


def _parameters(fn: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return tuple(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some functions written in C have none
        return ()


def names_of_slots(fn: Callable[..., Any], slots: Sequence[int | str]) -> list[str]:
    """A name for each traced argument: its parameter's, numbered where that takes several."""
    named: dict[int, str] = {}
    for parameter in _parameters(fn):
        if parameter.kind == parameter.VAR_POSITIONAL:
            first = len(named)
            named |= {n: f"{parameter.name}{n - first}" for n in range(first, first + len(slots))}
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            named[len(named)] = parameter.name
    names: list[str] = []
    for slot in slots:
        name = named.get(slot, f"arg{slot}") if isinstance(slot, int) else slot
        while name in names:
            name += "_"
        names.append(name)
    return names


def _kind(leaf: Any) -> Hashable:
    """Shape and type of a leaf; the planner refuses what has none."""
    try:
        found = structs_of("", leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    except TypeError:
        return type(leaf)
    return found.shape, found.dtype, bool(getattr(found, "weak_type", False))


def is_hashable(value: object) -> bool:
    """Whether a value can be a key of a dict."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
