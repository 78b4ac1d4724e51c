# pyright: basic
"""What the steps of a stage compute, in a form for which equal ones are equal.

Stages of equal outlines are traced alike, so that one trace serves all. Values are numbered in the
order in which they are made; what has no equality of its own is equal to itself alone. A call with
a derivative of its own (`jax.custom_jvp`) is known by its body and by the equations of its
derivative, since JAX makes new functions for every such call; a stage is differentiated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from ir.jax_internals import Literal, is_jaxpr, opened, run_equation, scopes_of

from ...training.equation_list import Equation, Written
from .equations import Key, is_float

PART, AGAIN = "part", "again"  # steps that slice a stacked value, and that are recomputed together
Row = tuple[object, Sequence[Key], Sequence[Key]]
_KNOWN: WeakKeyDictionary[Equation, tuple[object, ...]] = WeakKeyDictionary()


class Same:
    """A value that is equal only to itself, such as a captured array."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def numbered(rows: Iterable[Row], numbers: dict[Key, int]) -> tuple[object, ...]:
    """What some steps compute, with their values numbered.

    Args:
        rows: what each computes, the values that it reads, and those that it makes.
        numbers: numbers of values made before; those that the steps make come to them.
    """
    found: list[object] = []
    for what, reads, writes in rows:
        read = tuple(numbers[key] for key in reads)
        for key in writes:
            numbers.setdefault(key, len(numbers))
        found.append((what, read, tuple(numbers[key] for key in writes)))
    return tuple(found)


def anywhere(rows: Any) -> tuple[object, ...]:
    """What some steps compute, for prices: slices inside of an array take as long at any place.

    Args:
        rows: as `numbered` returns them.
    """
    return tuple((_anywhere(what), *rest) for what, *rest in rows)


def _anywhere(what: tuple[Any, ...]) -> tuple[object, ...]:
    if what[0] == PART:
        _, low, high, length = what
        return PART, high - low, length, low > 0, high < length
    if what[0] == AGAIN:
        _, recompute, rows, *rest = what
        return AGAIN, recompute, anywhere(rows), *rest
    return what


def keys_of(operands: Iterable[Any]) -> tuple[Key, ...]:
    """The distinct operands that are values."""
    return tuple(dict.fromkeys(v for v in operands if not isinstance(v, Written)))


def what_of(op: Equation, ins: Sequence[Any]) -> tuple[object, ...]:
    """What an equation computes of the distinct values among some operands."""
    reads = keys_of(ins)
    if op not in _KNOWN:
        _KNOWN[op] = _equation(op.eqn)
    return (
        *_KNOWN[op],
        *(literal_of(v.value) if isinstance(v, Written) else reads.index(v) for v in ins),
    )


def literal_of(value: Any) -> tuple[object, ...]:
    """A literal of a program, by its type and bits."""
    held = np.asarray(value)
    return type(value), str(held.dtype), held.shape, held.tobytes()


def _equation(eqn: Any, *, again: bool = True) -> tuple[object, ...]:
    """What an equation computes of its operands, and its derivative if `again`."""
    name, params = eqn.primitive.name, dict(eqn.params)
    types = tuple(v.aval for v in (*eqn.invars, *eqn.outvars))
    derivative = None
    if name == "custom_jvp_call" and not params.get("symbolic_zeros", True):
        operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        if all(map(is_float, operands)):
            if again:
                closed = jax.make_jaxpr(lambda *both: jax.jvp(_Run(eqn), *both))(operands, operands)
                derivative = _jaxpr(closed, again=False)
            params = {key: value for key, value in params.items() if not key.startswith("jvp")}
    own = tuple((key, _hashable(value, again=again)) for key, value in sorted(params.items()))
    stated = tuple(scope for scope in scopes_of(eqn) if "=" in scope)  # such as iterations=50
    return name, types, own, derivative, Same(eqn.ctx), stated


class _Run:
    """An equation as a function of its operands."""

    def __init__(self, eqn: Any) -> None:
        self.eqn = eqn

    def __call__(self, *operands: Any) -> Any:
        return run_equation(self.eqn, operands, {})


def _hashable(value: Any, *, again: bool) -> object:
    if is_jaxpr(value):
        return _jaxpr(value, again=again)
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value


def _jaxpr(value: Any, *, again: bool) -> tuple[object, ...]:
    """What a jaxpr computes of its arguments."""
    jaxpr, consts = opened(value)
    given = (*jaxpr.constvars, *jaxpr.invars)
    numbers: dict[Key, int] = {v: k for k, v in enumerate(given)}
    rows = list[object]()
    for eqn in jaxpr.eqns:
        reads = tuple(_operand(v, numbers) for v in eqn.invars)
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        rows.append((_equation(eqn, again=again), reads))
    outputs = tuple(_operand(v, numbers) for v in jaxpr.outvars)
    return tuple(v.aval for v in given), tuple(map(Same, consts)), tuple(rows), outputs


def _operand(v: Any, numbers: dict[Key, int]) -> object:
    return (literal_of(v.val), v.aval) if isinstance(v, Literal) else numbers[v]
