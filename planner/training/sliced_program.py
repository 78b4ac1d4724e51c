# pyright: basic
"""A loss on a part of the batch, with the values that the whole batch has.

The program traced at the size of a part runs with the edits that its analysis noted. Its values are
then slices of the whole batch's values and terms of its sums, so that parts add up to the whole for
any function of these sums:

    before:   values of the batch alone, such as the number of valid tokens, on the whole batch
    part:     slices, addends
    after:    outputs computed once, from sums over all parts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir import jax_internals as internals
from ir.inlined import inlined

from .derivative_rules import chosen, merged
from .edits import Change, Edits, Place, Value, body_name
from .equation_list import Equation, Straight, Written, bodies, equation_at, read, straight
from .random_draws import drawn

Array = Any


@dataclass(frozen=True)
class Sliced:
    """A loss traced at two sizes, with the edits of the smaller program.

    large, small: jaxprs of (parameters, batch) -> (loss, aux leaves).
    late: outputs computed after all parts.
    count: number of parts.
    derived: whether it is itself a derivative, which is not differentiated.
    """

    large: Any
    small: Any
    edits: Edits
    late: tuple[bool, ...]
    count: int
    derived: bool = False

    @cached_property
    def whole(self) -> Straight:
        return straight(self.large, again=True)

    @cached_property
    def part(self) -> Straight:
        return straight(self.small, derived=self.derived, only=self.around)

    @cached_property
    def around(self) -> frozenset[Place]:
        """Places of equations inside which something changes."""
        return self.edits.around()

    @cached_property
    def given(self) -> tuple[Value, ...]:
        """Values computed beforehand, in order."""
        return tuple(self.edits.given)

    @cached_property
    def sums(self) -> tuple[Value, ...]:
        """Sums over examples that late outputs depend on, in order."""
        return tuple(self.edits.sums)

    @cached_property
    def sum_structs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and types of these sums."""
        made = {
            (e.place, k): var for e in self.whole.equations for k, var in enumerate(e.eqn.outvars)
        }
        return tuple(internals.struct_of(made[value].aval) for value in self.sums)

    def before(self, params: Sequence[Array], batch: Sequence[Array]) -> list[Array]:
        """Values of the whole batch; the dimension of examples comes first."""
        ends = [self.whole.values[value] for value in self.given]
        env = self._run(self.whole.needed(ends), self.whole.start([*params, *batch]))
        dims = self.edits.given.values()
        return [
            env[v] if dim is None else jnp.moveaxis(env[v], dim, 0)
            for v, dim in zip(ends, dims, strict=True)
        ]

    def of_part(
        self,
        params: Sequence[Array],
        batch: Sequence[Array],
        given: Sequence[Array],
        number: Array,
        *,
        effects: bool = True,
    ) -> tuple[list[Array], list[Array]]:
        """A part's outputs that are not late, and its sums over examples.

        Args:
            params: leaves of the parameters.
            batch: leaves of the part.
            given: values computed beforehand; the part's slice where they have examples.
            number: number of the part.
            effects: whether to run the program's effects.
        """
        run = _Part(self, number, self._placed(given), effects)
        ends = [o for o, late in zip(self.part.outputs, self.late, strict=True) if not late]
        found = run.results(self.part, [*params, *batch], ends, late=self.late)
        return found, [run.sums[value] for value in self.sums]

    def after(
        self,
        params: Sequence[Array],
        batch: Sequence[Array],
        given: Sequence[Array],
        sums: Sequence[Array],
        outputs: Sequence[int],
    ) -> list[Array]:
        """Outputs computed after all parts.

        Args:
            params: leaves of the parameters.
            batch: leaves of the batch; those with examples are not read.
            given: values computed beforehand.
            sums: sums over all parts.
            outputs: indices of the outputs to compute.
        """
        values, env = self.whole.values, self.whole.start([*params, *batch])
        env.update({values[v]: x for v, x in self._placed(given).items()})
        env.update({values[v]: x for v, x in zip(self.sums, sums, strict=True)})
        ends = [self.whole.outputs[k] for k in outputs]
        stops = {values[v] for v in (*self.given, *self.sums)}
        env = self._run(self.whole.needed(ends, stops), env, stops)
        return [jnp.asarray(read(env, o)) for o in ends]

    @property
    def late_aux(self) -> tuple[int, ...]:
        """Indices of the outputs other than the loss that are computed after all parts."""
        return tuple(k for k, late in enumerate(self.late) if late and k)

    def reads(self, count: int) -> bool:
        """Whether aux computed after all parts reads any of the first `count` inputs."""
        values = self.whole.values
        ends = [self.whole.outputs[k] for k in self.late_aux]
        needed = self.whole.needed(ends, {values[v] for v in (*self.given, *self.sums)})
        return bool({v for e in needed for v in e.ins} & {*self.whole.inputs[:count]})

    def _placed(self, given: Sequence[Array]) -> dict[Value, Array]:
        """Values computed beforehand, with the dimension of examples in its place."""
        dims = self.edits.given.items()
        return {
            value: x if dim is None else jnp.moveaxis(x, 0, dim)
            for (value, dim), x in zip(dims, given, strict=True)
        }

    def _run(
        self,
        equations: Sequence[Equation],
        env: dict[int, Array],
        known: set[int] | frozenset[int] = frozenset(),
    ) -> dict[int, Array]:
        for e in equations:
            found = e.run([read(env, v) for v in e.ins])
            env.update((v, x) for v, x in zip(e.outs, found, strict=True) if v not in known)
        return env


@dataclass(frozen=True)
class Rule:
    """The edited derivative of a call.

    forward: operands -> (results, residuals); backward: (residuals, gradients) -> gradients.
    flows: for each operand, whether it has a gradient.
    """

    forward: Sliced
    backward: Sliced
    flows: tuple[bool, ...]


@dataclass
class _Part:
    """The smaller program under evaluation; `sums` collects the part's sums."""

    loss: Sliced
    number: Array
    given: Mapping[Value, Array]
    effects: bool
    sums: dict[Value, Array] = field(default_factory=dict)

    @cached_property
    def rules(self) -> frozenset[tuple[Place, str]]:
        return frozenset((place[:-1], str(place[-1])) for place in self.loss.edits.rules)

    @cached_property
    def around_sums(self) -> frozenset[Place]:
        return self.loss.edits.around_sums()

    def results(
        self,
        program: Straight,
        args: Sequence[Array],
        ends: Sequence[int | Written],
        late: Sequence[bool] = (),
    ) -> list[Array]:
        """Results of a program, and the sums over examples inside it."""
        edits, env = self.loss.edits, program.start(args)
        values = program.values
        for value in self.given:
            if value[0][:1] == ("constant",) and value in values:
                env[values[value]] = self.given[value]
        made = [values[v] for v in edits.sums if v in values]
        made += [v for e in program.equations if e.place in self.around_sums for v in e.outs]
        for e in program.needed([*ends, *made], effects=self.effects):
            found = self._equation(e, [read(env, v) for v in e.ins])
            env.update(zip(e.outs, found, strict=True))
            sums = [k for k in range(len(found)) if (e.place, k) in edits.sums]
            self.sums.update({(e.place, k): found[k] for k in sums})
        numbers = [k for k in range(len(program.outputs)) if not (late and late[k])]
        return [
            self._changed(read(env, o), edits.ends.get((program.place, k)))
            for k, o in zip(numbers, ends, strict=True)
        ]

    def _changed(self, x: Array, change: Change | None) -> Array:
        if change is None:
            return x
        dtype = np.result_type(x)
        if change.kind == "number":
            return np.asarray(change.value, dtype)
        if change.kind == "share":
            return lax.mul(x, lax.full_like(x, 1 / self.loss.count))
        if jnp.shape(x) == ():
            return x
        number = lax.convert_element_type(self.number, dtype)
        count = lax.full_like(x, self.loss.count)
        return lax.add(lax.mul(x, count), lax.broadcast(number, jnp.shape(x)))

    def _equation(self, e: Equation, operands: Sequence[Array]) -> list[Array]:
        edits = self.loss.edits
        xs = [self._changed(x, edits.operands.get((e.place, k))) for k, x in enumerate(operands)]
        if e.place in edits.draws:
            whole = equation_at(self.loss.large, e.place)
            found = drawn(e.eqn, whole, xs, edits.draws[e.place], self.loss.count, self.number)
        elif e.place in self.loss.around or (e.place, e.eqn.primitive.name) in self.rules:
            with internals.under(e.eqn):
                found = _REGIONS.get(e.eqn.primitive.name, _derived)(self, e, xs)
        else:
            found = e.run(xs)
        return [self.given.get((e.place, k), x) for k, x in enumerate(found)]

    def body(self, e: Equation, number: int, args: Sequence[Array]) -> list[Array]:
        """Results of a body of an equation."""
        place = (*e.place, body_name(e.eqn.primitive.name, number))
        program = straight(
            bodies(e.eqn)[number], place, derived=self.loss.derived, only=self.loss.around
        )
        return self.results(program, args, program.outputs)


def _scan(run: _Part, e: Equation, xs: Sequence[Array]) -> list[Array]:
    return internals.run_scan(internals.params_of(e.eqn), lambda *args: run.body(e, 0, args), xs)


def _cond(run: _Part, e: Equation, xs: Sequence[Array]) -> list[Array]:
    count = len(e.eqn.params["branches"])
    branches = [lambda *args, n=n: run.body(e, n, args) for n in range(count)]
    return list(lax.switch(xs[0], branches, *xs[1:]))


def _again(run: _Part, e: Equation, xs: Sequence[Array]) -> list[Array]:
    """A recomputed region, with the sums inside it."""
    keys: list[Value] = []

    def inside(*args: Array) -> tuple[list[Array], list[Array]]:
        with _apart(run) as sums:
            found = run.body(e, 0, args)
        keys[:] = sums
        return found, list(sums.values())

    params = internals.params_of(e.eqn)
    computed = jax.checkpoint(inside, policy=params["policy"], prevent_cse=params["prevent_cse"])
    found, sums = computed(*xs)
    run.sums.update(zip(keys, sums, strict=True))
    return found


@contextmanager
def _apart(run: _Part) -> Iterator[dict[Value, Array]]:
    """Collects the sums made inside."""
    around, run.sums = run.sums, {}
    try:
        yield run.sums
    finally:
        run.sums = around


def _derived(run: _Part, e: Equation, xs: Sequence[Array]) -> list[Array]:
    """A call with a custom derivative."""
    name = e.eqn.primitive.name
    rule: Rule = run.loss.edits.rules[(*e.place, name)]
    program = straight(inlined(e.eqn), (*e.place, name))
    still = [not moves for moves in rule.flows]

    @jax.custom_vjp
    def call(number: Array, moving: list[Array], others: list[Array]) -> list[Array]:
        args = merged(merged(xs, moving, rule.flows), others, still)
        here = _Part(run.loss, number, {}, run.effects)
        return here.results(program, args, program.outputs)

    def forward(number: Array, moving: list[Array], others: list[Array]) -> Any:
        args = merged(merged(xs, moving, rule.flows), others, still)
        found = rule.forward.of_part((), args, (), number)[0]
        count = len(e.outs)
        return found[:count], (number, found[count:])

    def backward(kept: Any, slopes: list[Array]) -> Any:
        number, residuals = kept
        floats = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in e.eqn.outvars]
        args = [*residuals, *chosen(slopes, floats)]
        return None, rule.backward.of_part((), args, (), number)[0], None

    call.defvjp(forward, backward)
    return call(run.number, chosen(xs, rule.flows), chosen(xs, still))


_REGIONS = {"scan": _scan, "cond": _cond, **dict.fromkeys(internals.REMAT, _again)}
