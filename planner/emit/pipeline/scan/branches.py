# pyright: basic
"""What a device does in a phase of a round: one of the tasks of its stage, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ....pipeline.cut.uses import Use
from ....pipeline.schedule import Kind
from .layout import ScanLayout
from .local_stage import Env, LocalStage
from .wires import Form, Pool, Wires

Array = Any


class Row(NamedTuple):
    """The tasks of a stage in one round: which branch, which micro-batch, and its slots.

    branch, microbatch: of each phase.
    activation, saved, gradient, between: slots of each phase's micro-batch.
    arriving: slot for what arrives ahead, and for what arrives back.
    """

    branch: Any
    microbatch: Any
    activation: Any
    saved: Any
    gradient: Any
    between: Any
    arriving: Any


class Given(NamedTuple):
    """What stays the same in all rounds: parameters, and all micro-batches of the batch."""

    params: tuple[Array, ...]
    batch: Mapping[int, Array]


class Carry(NamedTuple):
    """What passes from round to round.

    ahead, back: values and gradients that have arrived, [slots, ...] for each wire.
    saved, between: pools.
    sums: of gradients.
    results: of each micro-batch.
    sending: gradients on their way.
    """

    ahead: tuple[Array, ...]
    back: tuple[Array, ...]
    saved: tuple[Array, ...]
    between: tuple[Array, ...]
    sums: tuple[Array, ...]
    results: tuple[Array, ...]
    sending: tuple[Array, ...]


Entries = tuple[tuple[Array, ...], ...]  # for each array of a pool
Branch = Callable[[Row, Given, Carry], Any]


def empty(form: Form, *sizes: int) -> Array:
    """Zeros of a local shape and type, which may be that of keys of random numbers."""
    shape, dtype = (*sizes, *form[0]), form[1]
    if not dtype.startswith("key<"):
        return jnp.zeros(shape, dtype)
    impl = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}[dtype[4:-1]]
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape
    return jax.random.wrap_key_data(jnp.zeros((*shape, *words), jnp.uint32), impl=impl)


def picked(x: Array, at: Any) -> Array:
    """One entry of the first dimension."""
    return lax.dynamic_index_in_dim(x, at, 0, keepdims=False)


def put(x: Array, value: Array, at: Any) -> Array:
    """The array with one entry of the first dimension replaced."""
    return lax.dynamic_update_index_in_dim(x, value, at, 0)


def sent(x: Array, axis: str, pairs: Sequence[tuple[int, int]]) -> Array:
    """What the device before or after sends; keys of random numbers as their words."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return lax.ppermute(x, axis, pairs)
    impl = jax.random.key_impl(x)
    return jax.random.wrap_key_data(lax.ppermute(jax.random.key_data(x), axis, pairs), impl=impl)


@dataclass(frozen=True)
class Kept:
    """The places of one stage in a pool."""

    pool: Pool
    stage: int

    def read(self, arrays: Sequence[Array], slot: Any) -> list[Array]:
        """Values of the micro-batch of a slot."""
        counts = self.pool.counts[self.stage]
        places = self.pool.places[self.stage]
        return [picked(arrays[k], slot * counts[k] + j) for k, j in places]

    def spread(self, values: Sequence[Array]) -> Entries:
        """Values of one micro-batch in the form that all stages share; the others are zero."""
        own = dict(zip(self.pool.places[self.stage], values, strict=True)) if values else {}
        return tuple(
            tuple(own.get((k, j), empty(form)) for j in range(most))
            for k, (form, most) in enumerate(zip(self.pool.forms, self.pool.most, strict=True))
        )


def written(
    pool: Pool, arrays: Sequence[Array], entries: Entries, stage: Any, slot: Any, is_there: Any
) -> tuple[Array, ...]:
    """A pool with the values of a micro-batch; unchanged unless they are there.

    It is written outside of all branches: a branch that hands on what another writes is compiled
    to a copy of all of it.

    Args:
        pool: its form.
        arrays: of the pool.
        entries: of each array.
        stage: whose values they are.
        slot: for the micro-batch.
        is_there: whether this device has made them.
    """
    counts = jnp.asarray(pool.counts, jnp.int32)[stage]
    new = list(arrays)
    for k, values in enumerate(entries):
        for j, value in enumerate(values):
            at = slot * counts[k] + j
            kept = jnp.where(is_there & (j < counts[k]), value, picked(new[k], at))
            new[k] = put(new[k], kept, at)
    return tuple(new)


def _wired(wires: Wires, boundary: int, values: Mapping[Any, Array]) -> tuple[Array, ...]:
    """What a stage sends over a boundary; wires without a value carry zeros."""
    there = wires.at[boundary] if 0 <= boundary < len(wires.at) else {}
    by_wire = {wire: values[value] for value, wire in there.items()}
    return tuple(by_wire[k] if k in by_wire else empty(form) for k, form in enumerate(wires.forms))


@dataclass(frozen=True)
class StageBranches:
    """The tasks of one stage.

    number: of the stage.
    scale: of the loss of a micro-batch in what is minimised.
    cut: leaves of the batch of which each micro-batch has its own part.
    """

    layout: ScanLayout
    number: int
    scale: float
    cut: frozenset[int]

    @property
    def local(self) -> LocalStage:
        return self.layout.stages[self.number]

    def of(self, kind: Kind) -> Branch:
        """The branch of a kind of task."""
        return {
            Kind.FORWARD: self.forward, Kind.BACKWARD: self.backward,
            Kind.INPUT_GRADIENT: self.input_gradient, Kind.WEIGHT_GRADIENT: self.weight_gradient,
        }[kind]()  # fmt: skip

    def _from(self, wires: Wires, boundary: int, pools: Sequence[Array], slot: Any) -> Any:
        """Values that came over a boundary."""
        there = wires.at[boundary] if 0 <= boundary < len(wires.at) else {}
        return {value: picked(pools[wire], slot) for value, wire in there.items()}

    def _env(self, row: Row, given: Given, carry: Carry, phase: int) -> tuple[Env, dict[Any, Any]]:
        """Arguments of the forward pass, and all values that came with them."""
        stage, m = self.local.stage, row.microbatch[phase]
        came = self._from(self.layout.ahead, self.number - 1, carry.ahead, row.activation[phase])
        batch = [
            picked(given.batch[leaf], m) if leaf in self.cut else given.batch[leaf]
            for leaf in stage.batch
        ]
        params = [self._entries(use, given) for use in stage.params]
        takes = [came[key] for key in stage.takes]
        return self.local.env(params=params, batch=batch, takes=takes), came

    def _entries(self, use: Use, given: Given) -> Array:
        """What a program reads of the part of a parameter that its stage holds."""
        entries, x = self.layout.held[use.leaf].entries(use), given.params[use.leaf]
        return x if entries is None else lax.slice_in_dim(x, *entries)

    def forward(self) -> Branch:
        run, pool = self.local.forward(), Kept(self.layout.saved, self.number)
        gives = self.local.stage.gives

        def forward(row: Row, given: Given, carry: Carry) -> Any:
            env, came = self._env(row, given, carry, 0)
            found, kept = run(env)
            named = dict(zip(gives, found, strict=True))
            results = tuple(
                named[key] if s == self.number else empty(form)
                for (s, key, _, _), form in zip(
                    self.layout.results, self.layout.result_forms, strict=True
                )
            )
            sending = _wired(self.layout.ahead, self.number, came | named)
            return pool.spread(kept), results, sending

        return forward

    def _gradients(
        self, row: Row, given: Given, carry: Carry, phase: int
    ) -> tuple[Env, dict[Any, Any]]:
        """Arguments of a gradient program, and all gradients that came with them."""
        env, _ = self._env(row, given, carry, phase)
        kept = Kept(self.layout.saved, self.number).read(carry.saved, row.saved[phase])
        env.update(zip(self.local.saved, kept, strict=True))
        came = self._from(self.layout.back, self.number, carry.back, row.gradient[phase])
        program = self.local.program
        slopes = [came[slope] for slope in program.incoming]
        if self.number == self.layout.results[0][0]:
            slopes.append(self.local.seed(self.scale))
        env.update(zip(program.args["slopes"], slopes, strict=True))
        return env, came

    def _zeros(self) -> Env:
        """Sums of gradients without any: each task returns its own."""
        values = self.local.program.args["sums"]
        return {v: empty(form) for v, form in zip(values, self.local.sum_forms(), strict=True)}

    def backward(self) -> Branch:
        again, run = self.local.again(), self.local.backward()
        sums, between = self._pools()

        def backward(row: Row, given: Given, carry: Carry) -> Any:
            env, came = self._gradients(row, given, carry, 1)
            found, own = run(env | again(env) | self._zeros())
            return between.spread(()), sums.spread(own), self._sent(came, found)

        return backward

    def input_gradient(self) -> Branch:
        again, run = self.local.again(), self.local.input_gradient()
        sums, between = self._pools()

        def input_gradient(row: Row, given: Given, carry: Carry) -> Any:
            env, came = self._gradients(row, given, carry, 1)
            found, kept = run(env | again(env))
            return between.spread(kept), sums.spread(()), self._sent(came, found)

        return input_gradient

    def _pools(self) -> tuple[Kept, Kept]:
        return Kept(self.layout.sums, self.number), Kept(self.layout.between, self.number)

    def _sent(self, came: dict[Any, Any], found: Sequence[Array]) -> tuple[Array, ...]:
        slopes = came | dict(zip(self.local.program.outgoing, found, strict=True))
        return _wired(self.layout.back, self.number - 1, slopes)

    def weight_gradient(self) -> Branch:
        again, run = self.local.again(), self.local.weight_gradient()
        sums, between = self._pools()

        def weight_gradient(row: Row, given: Given, carry: Carry) -> Any:
            env, _ = self._gradients(row, given, carry, 2)
            kept = between.read(carry.between, row.between[2])
            env.update(zip(self.local.program.parts.between, kept, strict=True))
            return sums.spread(run(env | again(env) | self._zeros()))

        return weight_gradient

    def idle(self, phase: int) -> Branch:
        """Nothing, in the form of the results of a phase."""
        layout = self.layout
        ahead, back = (_wired(wires, -1, {}) for wires in (layout.ahead, layout.back))
        results = tuple(empty(form) for form in layout.result_forms)
        saved, between, sums = (
            Kept(pool, 0).spread(()) for pool in (layout.saved, layout.between, layout.sums)
        )
        return (
            lambda row, given, carry: (saved, results, ahead),
            lambda row, given, carry: (between, sums, back),
            lambda row, given, carry: sums,
        )[phase]
