# pyright: basic
"""Random programs as data: arguments and a list of steps, which run as one JAX function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec

Array = Any
Attrs = dict[str, Any]


class Type(NamedTuple):
    """Shape and element type of a value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        return total

    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, dtype_of(self.dtype))


class Argument(msgspec.Struct, frozen=True):
    """An argument: its type, and of which sort its values are (`values.FILLS`)."""

    shape: tuple[int, ...]
    dtype: str
    fill: str = "any"

    @property
    def type(self) -> Type:
        return Type(self.shape, self.dtype)


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a kind; inputs are numbers of values: arguments first, then results in order."""

    kind: str
    inputs: tuple[int, ...] = ()
    attrs: dict[str, Any] = {}
    bodies: tuple[Program, ...] = ()


class Program(msgspec.Struct, frozen=True, omit_defaults=True):
    """Arguments, steps and results; `gradient` adds derivatives by the floating arguments."""

    arguments: tuple[Argument, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    gradient: bool = False


class Kind(NamedTuple):
    """One sort of step.

    draw: a `generate.Drawing` -> inputs, attributes and bodies; None where there are no operands.
    run: (attributes, functions of the bodies, operands) -> results.
    """

    name: str
    draw: Callable[[Any], Drawn | None]
    run: Callable[[Attrs, Sequence[Callable[..., Any]], Sequence[Array]], Any]
    weight: float = 1.0


class Drawn(NamedTuple):
    """What a step is about."""

    inputs: Sequence[int]
    attrs: Attrs = {}  # noqa: RUF012 (never written to)
    bodies: Sequence[Program] = ()


def dtype_of(name: str) -> Any:
    """The JAX type with that name."""
    if name.startswith("key<"):
        return jax.eval_shape(lambda: jax.random.key(0, impl=KEYS[name])).dtype
    return jnp.dtype(name)


KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


def type_of(value: Any) -> Type:
    return Type(tuple(value.shape), str(value.dtype))


def many(results: Any) -> tuple[Array, ...]:
    """Results of a kind as a tuple."""
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def function(program: Program, kinds: Mapping[str, Kind]) -> Callable[..., tuple[Array, ...]]:
    """The program as a function of its arguments."""

    def forward(*arguments: Array) -> tuple[Array, ...]:
        env = list(arguments)
        for step in program.steps:
            kind = kinds[step.kind]
            bodies = [function(body, kinds) for body in step.bodies]
            env += many(kind.run(step.attrs, bodies, [env[i] for i in step.inputs]))
        return tuple(env[i] for i in program.outputs)

    return with_gradient(forward) if program.gradient else forward


def with_gradient(forward: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """Results and, by all floating arguments, derivatives of the sum of the floating results."""

    def both(*arguments: Array) -> tuple[Array, ...]:
        wanted = [i for i, x in enumerate(arguments) if is_float(x)]

        def total(*parts: Array) -> Any:
            given = list(arguments)
            for i, part in zip(wanted, parts, strict=True):
                given[i] = part
            results = forward(*given)
            sums = [jnp.sum(jnp.real(x).astype(jnp.float32)) for x in results if is_inexact(x)]
            return sum(sums, jnp.float32(0)), results

        if not wanted:
            return forward(*arguments)
        grads, results = jax.grad(total, tuple(range(len(wanted))), has_aux=True)(
            *(arguments[i] for i in wanted)
        )
        return (*results, *grads)

    return both


def is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def one_nan(x: Array) -> Array:
    """The array with one NaN: its sign and payload need not be kept by anyone."""
    return jnp.where(jnp.isnan(x), jnp.full_like(x, jnp.nan), x) if is_float(x) else x


def is_inexact(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def encoded(value: msgspec.Struct) -> str:
    """As JSON, with a line for each argument, step and decision."""
    return _lines(msgspec.to_builtins(value), 0)


def _lines(value: Any, depth: int) -> str:
    flat = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    flat = " ".join(flat.split("\n"))
    if depth > 2 or not isinstance(value, dict | list) or len(flat) < 90 - 2 * depth:
        return flat
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, list):
        rows = [_lines(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(pad + row for row in rows) + f"\n{end}]"
    rows = [f'"{key}": {_lines(item, depth + 1)}' for key, item in value.items()]
    return "{\n" + ",\n".join(pad + row for row in rows) + f"\n{end}}}"
