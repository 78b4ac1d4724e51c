# pyright: basic
"""Stages of a cut program: the values each reads and makes, and a function that runs it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from ir import Scan
from ir.jax_internals import struct_of

from ...training.equation_list import Equation, Written
from .entries import is_entrywise, taken
from .equations import Array, Equations, Key
from .layers import Layers
from .outline import Same, numbered
from .stage_steps import (
    Env,
    StageStep,
    apply_op,
    constant,
    cut_part,
    join_parts,
    layered,
    run_loop,
    run_op,
    take,
)
from .uses import Use, held_in, use_struct


@dataclass(frozen=True)
class Stage:
    """A range of slots as a function of parameters, batch and values of earlier stages.

    params: parameters that it reads, in the order of `run`'s argument.
    batch: leaves of the batch that it reads.
    takes: values of earlier stages that it reads.
    gives: values that later stages read, or that the program returns.
    """

    number: int
    params: tuple[Use, ...]
    batch: tuple[int, ...]
    takes: tuple[Key, ...]
    gives: tuple[Key, ...]
    consts: tuple[tuple[int, Any], ...]
    steps: tuple[StageStep, ...] = field(repr=False)
    keys: tuple[Key, ...] = ()  # of the parameters, in the order of `params`
    batch_keys: tuple[Key, ...] = ()

    def run(
        self, params: Sequence[Array], batch: Sequence[Array], takes: Sequence[Array]
    ) -> list[Array]:
        """Computes the values `gives`."""
        env: Env = dict(self.consts)
        env.update(zip(self.keys, params, strict=True))
        env.update(zip(self.batch_keys, batch, strict=True))
        env.update(zip(self.takes, takes, strict=True))
        for step in self.steps:
            step.run(env)
        return [env[key] for key in self.gives]


@dataclass(frozen=True)
class Staged:
    """A program cut into stages.

    program: its equations.
    outputs: for the loss and each leaf of aux, its stage and value.
    structs: shape and type of every value that passes between stages.
    """

    program: Equations
    stages: tuple[Stage, ...]
    outputs: tuple[tuple[int, Key], ...]
    structs: dict[Key, jax.ShapeDtypeStruct]

    def maker(self, key: Key) -> int:
        """Index of the stage that makes a value."""
        return next(stage.number for stage in self.stages if key in stage.gives)

    def readers(self, key: Key) -> tuple[int, ...]:
        """Indices of the stages that read a value."""
        return tuple(stage.number for stage in self.stages if key in stage.takes)

    def outline(self, number: int) -> tuple[object, ...]:
        """What a stage computes, hashable: stages for which it is equal are traced alike."""
        stage, program, (loss_stage, loss) = self.stages[number], self.program, self.outputs[0]
        given = (*stage.keys, *stage.batch_keys, *stage.takes, *(key for key, _ in stage.consts))
        numbers = {key: k for k, key in enumerate(given)}
        rows = numbered([(step.what, step.reads, step.writes) for step in stage.steps], numbers)
        structs = (
            tuple(use_struct(program, use) for use in stage.params),
            tuple(struct_of(program.avals[program.batch[i]]) for i in stage.batch),
            tuple(self.structs[key] for key in stage.takes),
            tuple(Same(value) for _, value in stage.consts),
        )  # fmt: skip
        gives = tuple((numbers[key], len(self.readers(key))) for key in stage.gives)
        return rows, structs, gives, numbers[loss] if number == loss_stage else None


def staged(
    layers: Layers,
    cuts: Sequence[int],
    recompute: Sequence[str] = (),
    borders: Collection[int] = (),
) -> Staged:
    """Cuts a program into stages.

    A stacked parameter is held in pieces, entries that are read together, if none reads all of it
    and stages read different ones.

    Args:
        layers: the program in slots.
        cuts: first slot of every stage, and the number of slots at the end.
        recompute: for each stage the kind of recomputation by layer; none if empty.
        borders: first slots of the layers that are recomputed as units.
    """
    whole = _Cut(tuple(cuts), tuple(recompute) or ("none",) * (len(cuts) - 1), sorted(borders))
    first = _staged(layers, whole, {})
    uses: dict[int, list[tuple[int, Use]]] = {}
    for stage in first.stages:
        for use in stage.params:
            uses.setdefault(use.leaf, []).append((stage.number, use))
    held = {leaf: held_in(layers.program, leaf, found) for leaf, found in uses.items()}
    changed = {
        leaf: parts for leaf, parts in held.items() if {*parts} != {use for _, use in uses[leaf]}
    }
    return _staged(layers, whole, changed) if changed else first


@dataclass(frozen=True)
class _Cut:
    cuts: tuple[int, ...]
    recompute: tuple[str, ...]
    borders: Sequence[int]

    def layer(self, slot: int) -> int:
        return bisect_right(self.borders, slot)


def _staged(layers: Layers, cut: _Cut, held: Mapping[int, Sequence[Use]]) -> Staged:
    program = layers.program
    builders = [_Builder(layers, cut, s, held) for s in range(len(cut.cuts) - 1)]
    home: dict[Key, int] = {}
    pieces: dict[int, list[tuple[Key, int, int]]] = {}
    for builder in builders:
        builder.home, builder.pieces = home, pieces
        builder.build()
    outputs: list[tuple[int, Key]] = []
    for o in program.outputs:
        if not isinstance(o, Written) and o in home:
            outputs.append((home[o], o))
        else:
            outputs.append((len(builders) - 1, builders[-1].output(o)))
    taken = {key for builder in builders for key in builder.takes}
    stages = [b.stage(taken, [k for s, k in outputs if s == b.number]) for b in builders]
    structs = {key: _struct(layers, key) for stage in stages for key in stage.gives}
    return Staged(program, tuple(stages), tuple(outputs), structs)


def parts_of(layers: Layers, low: int, high: int) -> list[tuple[int, int, int, int]]:
    """(slot, op, first iteration, end) of the parts of a stage; iterations are -1 for plain ops."""
    parts: list[tuple[int, int, int, int]] = []
    for s, (i, k) in enumerate(layers.slots[low:high], low):
        if k >= 0 and parts and parts[-1][1] == i:
            parts[-1] = (parts[-1][0], i, parts[-1][2], k + 1)
        else:
            parts.append((s, i, k, k + 1 if k >= 0 else -1))
    return parts


def _struct(layers: Layers, key: Key) -> jax.ShapeDtypeStruct:
    """Shape and type of a value that a stage makes."""
    if isinstance(key, int):
        return struct_of(layers.program.avals[key])
    if key[0] == "literal":
        return jax.eval_shape(lambda: jnp.asarray(key[1].value))
    _, i, k, *rounds = key
    carry, stacks = Scan.in_jaxpr(layers.ops[i].params).results(layers.ops[i].eqn.outvars)
    if key[0] == "carry":
        return struct_of(carry[k].aval)
    low, high = rounds
    whole = struct_of(stacks[k].aval)
    shape = (high - low, *whole.shape[1:])
    return jax.ShapeDtypeStruct(shape, whole.dtype, weak_type=whole.weak_type)


class _Builder:
    """Collects the steps of one stage."""

    home: dict[Key, int]
    pieces: dict[int, list[tuple[Key, int, int]]]

    def __init__(
        self,
        layers: Layers,
        cut: _Cut,
        number: int,
        held: Mapping[int, Sequence[Use]],
    ) -> None:
        self.layers, self.cut, self.number, self.held = layers, cut, number, held
        self.recompute = cut.recompute[number]
        self.layer = 0
        self.program = layers.program
        self.param_of = {v: k for k, v in enumerate(self.program.params)}
        self.batch_of = {v: k for k, v in enumerate(self.program.batch)}
        self.here: set[Key] = set()  # made or read already
        self.made: list[Key] = []
        self.takes: list[Key] = []
        self.uses: dict[Key, Use] = {}
        self.batch: dict[Key, int] = {}
        self.consts: dict[int, Any] = {}
        self.steps: list[StageStep] = []

    def stage(self, taken: set[Key], outputs: Sequence[Key]) -> Stage:
        gives = [key for key in self.made if key in taken]
        gives += [key for key in dict.fromkeys(outputs) if key not in gives]
        uses = sorted(self.uses.items(), key=lambda item: item[1])
        batch = sorted(self.batch.items(), key=lambda item: item[1])
        steps = layered(self.steps, self.recompute, gives)
        return Stage(
            self.number, tuple(u for _, u in uses), tuple(i for _, i in batch), tuple(self.takes),
            tuple(gives), tuple(self.consts.items()), tuple(steps),
            tuple(k for k, _ in uses), tuple(k for k, _ in batch),
        )  # fmt: skip

    def build(self) -> None:
        low, high = self.cut.cuts[self.number : self.number + 2]
        for slot, i, a, b in parts_of(self.layers, low, high):
            self.layer = self.cut.layer(slot)
            op = self.layers.ops[i]
            if a < 0 or b - a == op.params["length"]:
                for v in op.reads:
                    self.need(v)
                whole = run_loop(op, op.ins, op.outs, b, self.recompute) if a >= 0 else None
                self.steps.append(whole or run_op(op, self.layer))
                self.publish(op.outs)
            else:
                self.loop(i, op, a, b)

    def publish(self, keys: Sequence[Key]) -> None:
        self.made.extend(keys)
        self.here.update(keys)
        self.home.update(dict.fromkeys(keys, self.number))

    def output(self, o: int | Written) -> Key:
        """Makes a result of the program, a value or a literal, readable in this stage."""
        if not isinstance(o, Written):
            self.need(o)
            return o
        key = ("literal", Same(o.value))
        self.steps.append(constant(key, o.value, self.layer))
        return key

    def need(self, v: Key) -> None:
        """Adds the steps that compute a value in this stage, or reads it from an earlier one."""
        if v in self.here:
            return
        self.here.add(v)
        if v in self.param_of:
            self.uses[v] = Use(self.param_of[v])
        elif v in self.batch_of:
            self.batch[v] = self.batch_of[v]
        elif v in self.program.consts:
            self.consts[v] = self.program.consts[v]
        elif v in self.layers.free:
            op = self.layers.free[v]
            part = taken(op, v)
            if part is not None and self._is_stacked(source := op.reads[0]):
                key = self.part(source, part.low, part.high)
                self.steps.append(take(part, key, v, self.layer))
                return
            for u in op.reads:
                self.need(u)
            self.here.update(op.outs)
            self.steps.append(run_op(op, self.layer))
        elif v in self.pieces:
            keys = [key for key, _, _ in sorted(self.pieces[v], key=lambda piece: piece[1])]
            for key in keys:
                self.need(key)
            self.steps.append(join_parts(v, keys, self.layer))
        else:
            self.takes.append(v)

    # --- loops that are cut -----------------------------------------------------------------

    def loop(self, i: int, op: Equation, a: int, b: int) -> None:
        """Iterations a to b of a loop over layers."""
        params, wiring = op.params, Scan.in_jaxpr(op.params)
        length = params["length"]
        low, high = (length - b, length - a) if params["reverse"] else (a, b)
        consts, carry, stacked = wiring.operands(op.ins)
        last, stacks = wiring.results(op.outs)
        if a:
            carry = [("carry", i, k, a) for k in range(len(carry))]
        for v in (*consts, *carry):
            if not isinstance(v, Written):
                self.need(v)
        xs = [v if isinstance(v, Written) else self.part(v, low, high) for v in stacked]
        after = [v if b == length else ("carry", i, k, b) for k, v in enumerate(last)]
        ys = [("ys", i, k, low, high) for k in range(len(stacks))]
        outs, ins = (*after, *ys), (*consts, *carry, *xs)
        self.steps.append(run_loop(op, ins, outs, high - low, self.recompute))
        self.publish(outs)
        for v, key in zip(stacks, ys, strict=True):
            self.pieces.setdefault(v, []).append((key, low, high))

    def part(self, v: int, low: int, high: int) -> Key:
        """A range of a stacked value, sliced from the parameter itself where possible."""
        key = ("part", v, low, high)
        if key in self.here:
            return key
        if v in self.param_of and not (use := self._use(v, low, high)).whole:
            self._entries(key, v, use, low, high)
        elif v in self.layers.free and self._is_stacked(v):
            self._stretch(key, v, low, high)
        else:
            self.need(v)
            length = self.program.avals[v].shape[0]
            self.steps.append(cut_part(v, key, (low, high), length, self.layer))
        self.here.add(key)
        return key

    def _use(self, v: int, low: int, high: int) -> Use:
        """The part of a parameter that is held where some of its entries are read."""
        leaf = self.param_of[v]
        parts = self.held.get(leaf, (Use(leaf, low, high),))
        return next(use for use in parts if use.whole or use.low <= low < high <= use.high)

    def _entries(self, key: Key, v: int, use: Use, low: int, high: int) -> None:
        """Entries of a parameter, of the piece of it that this stage holds."""
        piece = ("part", v, use.low, use.high)
        self.uses[piece] = use
        self.here.add(piece)
        if piece != key:
            span, length = (low - use.low, high - use.low), use.high - use.low
            self.steps.append(cut_part(piece, key, span, length, self.layer))

    def _stretch(self, key: Key, v: int, low: int, high: int) -> None:
        """Entries of a value that is computed from entries of parameters."""
        op = self.layers.free[v]
        part = taken(op, v)
        if part is not None:
            inner = self.part(op.reads[0], part.low + low, part.low + high)
            self.steps.append(take(part, inner, key, self.layer))
            return
        shape = self.program.avals[v].shape
        ins = [
            self.part(u, low, high)
            if not isinstance(u, Written) and self.program.avals[u].shape == shape
            else u
            for u in op.ins
        ]
        for u in ins:
            if isinstance(u, int):
                self.need(u)
        self.steps.append(apply_op(op, ins, key, self.layer))

    def _is_stacked(self, v: int) -> bool:
        """Whether entries of a value are computed from entries of parameters held in pieces."""
        if v in self.param_of:
            return not self._use(v, 0, 1).whole
        op = self.layers.free.get(v)
        if op is None or v not in self.layers.of_params:
            return False
        part = taken(op, v)
        if part is not None:
            return part.is_plain and self._is_stacked(op.reads[0])
        return is_entrywise(self.program, op)
