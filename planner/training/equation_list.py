# pyright: basic
"""A traced function as a straight list of equations, each with its place.

Calls that only group equations are inlined, and optionally recomputed regions; calls with custom
derivatives, loops and branches stay whole, so that derivatives stay the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ir import jax_internals as internals
from ir.inlined import group_of, inlined

from .edits import Place, Value, body_name

Array = Any


@dataclass(frozen=True, slots=True)
class Written:
    """A literal of the program."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Equation:
    """One equation on numbered values."""

    eqn: Any
    place: Place
    ins: tuple[int | Written, ...]
    outs: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of its primitive."""
        return self.eqn.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters, under the names of all versions of JAX."""
        return internals.params_of(self.eqn)

    @property
    def reads(self) -> tuple[int, ...]:
        """Values that it reads."""
        return tuple(v for v in self.ins if not isinstance(v, Written))

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """Results for these operands, one for each of `ins`."""
        return internals.run_equation(self.eqn, operands, {})


@dataclass(frozen=True)
class Straight:
    """A straight program.

    avals: shape and type of every value.
    inputs: values of the arguments.
    consts: captured arrays by value.
    heads: values of those that the whole function has captured, in order.
    """

    place: Place
    avals: tuple[Any, ...]
    inputs: tuple[int, ...]
    consts: dict[int, Array]
    heads: tuple[int, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[int | Written, ...]

    @cached_property
    def values(self) -> dict[Value, int]:
        """Value numbers of results and captured arrays, by (place, index)."""
        head: Place = ("constant", *self.place)
        found: dict[Value, int] = {(head, k): v for k, v in enumerate(self.heads)}
        for e in self.equations:
            found.update({(e.place, k): v for k, v in enumerate(e.outs)})
        return found

    def needed(
        self, ends: Collection[int | Written], stops: Collection[int] = (), *, effects: bool = False
    ) -> tuple[Equation, ...]:
        """Equations that the values `ends` depend on.

        Args:
            ends: values to compute.
            stops: values that are already known.
            effects: whether to keep equations with effects, too.
        """
        wanted = {v for v in ends if isinstance(v, int)} - {*stops}
        kept: list[Equation] = []
        for e in reversed(self.equations):
            if not wanted.isdisjoint(e.outs) or (effects and e.eqn.effects):
                kept.append(e)
                wanted.update(v for v in e.reads if v not in stops)
        return tuple(reversed(kept))

    def start(self, args: Sequence[Array]) -> dict[int, Array]:
        """Environment with the arguments and captured arrays."""
        return self.consts | dict(zip(self.inputs, args, strict=True))


def read(env: Mapping[Any, Array], v: Any) -> Array:
    """Value of an operand, a literal or from the environment."""
    return v.value if isinstance(v, Written) else env[v]


def straight(
    body: Any,
    place: Place = (),
    *,
    again: bool = False,
    derived: bool = False,
    only: Collection[Place] | None = None,
) -> Straight:
    """Flattens a jaxpr into a straight program.

    Args:
        body: open or closed jaxpr.
        place: place of the jaxpr.
        again: whether to inline recomputed regions, too.
        derived: whether to inline calls with custom derivatives, too.
        only: places of the calls to inline; all if None.
    """
    return _Reader(again, derived, only).program(body, place)


class _Reader:
    def __init__(self, again: bool, derived: bool, only: Collection[Place] | None) -> None:
        self.again, self.derived, self.only = again, derived, only
        self.avals: list[Any] = []
        self.equations: list[Equation] = []
        self.consts: dict[int, Array] = {}

    def program(self, body: Any, place: Place) -> Straight:
        jaxpr, consts = internals.opened(body)
        heads, inputs = self.new(jaxpr.constvars), self.new(jaxpr.invars)
        self.consts.update(zip(heads, consts, strict=True))
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*heads, *inputs), strict=True))
        outputs = self.walk(jaxpr, env, place)
        return Straight(
            place, tuple(self.avals), inputs, self.consts, heads, tuple(self.equations), outputs
        )

    def new(self, variables: Sequence[Any]) -> tuple[int, ...]:
        first = len(self.avals)
        self.avals += [var.aval for var in variables]
        return tuple(range(first, len(self.avals)))

    def walk(self, jaxpr: Any, env: dict[Any, Any], place: Place) -> tuple[int | Written, ...]:
        def get(var: Any) -> int | Written:
            return Written(var.val) if isinstance(var, internals.Literal) else env[var]

        for number, eqn in enumerate(jaxpr.eqns):
            ins = tuple(get(var) for var in eqn.invars)
            closed = self.only is not None and (*place, number) not in self.only
            inner = None if closed else self.inside(eqn)
            if inner is None:
                results = self.new(eqn.outvars)
                self.equations.append(Equation(eqn, (*place, number), ins, results))
            else:
                body, name = inner
                results = self.call(body, ins, (*place, number, name))
            env.update(zip(eqn.outvars, results, strict=True))
        return tuple(get(var) for var in jaxpr.outvars)

    def inside(self, eqn: Any) -> tuple[Any, str] | None:
        """The body of an equation to inline, and its name; None if it stays whole."""
        name = eqn.primitive.name
        body = inlined(eqn) if self.derived else group_of(eqn)
        if body is not None:
            return body, name
        if self.again and name in internals.REMAT:
            return eqn.params["jaxpr"], body_name(name, 0)
        return None

    def call(self, body: Any, ins: Sequence[Any], place: Place) -> tuple[int | Written, ...]:
        jaxpr, consts = internals.opened(body)
        heads = self.new(jaxpr.constvars)
        self.consts.update(zip(heads, consts, strict=True))
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*heads, *ins), strict=True))
        return self.walk(jaxpr, env, place)


def equation_at(body: Any, place: Place) -> Any:
    """The equation at a place of a jaxpr."""
    jaxpr, eqn = internals.opened(body)[0], None
    for step in place:
        if isinstance(step, int):
            eqn = jaxpr.eqns[step]
            continue
        assert eqn is not None
        name, _, number = step.rpartition(" ")
        inner = bodies(eqn)[int(number)] if name.endswith("body") else inlined(eqn)
        jaxpr = internals.opened(inner)[0]
    return eqn


def bodies(eqn: Any) -> list[Any]:
    """Jaxprs among the parameters of an equation, in the order that places count."""
    found: list[Any] = []
    for _, value in sorted(eqn.params.items()):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if internals.is_jaxpr(item):
                found.append(item)
    return found
