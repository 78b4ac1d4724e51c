# pyright: basic
"""The optimizer's update across groups of devices.

The update is traced once, as the unsharded step runs it; every op of it is then given to the group
that holds its operands, or to several, piece by piece. What a group can compute before it hears
from another is one jitted program; so is what follows. With a global norm there are three rounds:
partial norms, their sum on the first group, the update everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ir import Literal
from ir.evaluate import literal, plain_program
from ir.trace import Program

from ...pipeline.cut.forward_backward import part_of
from .places import REDUCTIONS, RESHAPED, At, Places, Stack, Where, places_of
from .processes import started
from .transfer import Devices, sent, whole

Array = Any
Run = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True)
class Instruction:
    """Something that one group computes; operands are numbers of values of the update."""

    group: int
    run: Run
    ins: tuple[int, ...]
    outs: tuple[int, ...]


@dataclass
class Written:
    """The update as instructions.

    inputs: for each input of the program, its values, one for each piece.
    outputs: likewise for each result.
    home: group of every value.
    """

    instructions: list[Instruction] = field(default_factory=list[Instruction])
    inputs: list[list[int]] = field(default_factory=list[list[int]])
    outputs: list[list[int]] = field(default_factory=list[list[int]])
    home: list[int] = field(default_factory=list[int])


class Writer:
    """Writes a program as instructions for groups."""

    def __init__(self, program: Program, places: Places, goals: Mapping[int, Where]) -> None:
        self.program, self.graph, self.places = program, program.graph, places
        self.out = Written()
        self.whole: dict[tuple[int, int], int] = {}  # (value, group) -> there
        self.cut: dict[tuple[int, Stack], list[int]] = {}
        self.maker = {v: i for i in range(len(self.graph.nodes)) for v in self.graph.values_of(i)}
        for v in range(len(self.graph.inputs)):
            self.out.inputs.append(self._input(v))
        for i in range(len(self.graph.nodes)):
            self._node(i)
        for k, o in enumerate(self.graph.outputs):
            self.out.outputs.append(self._read_as(o, goals[k]))

    def _new(self, group: int) -> int:
        self.out.home.append(group)
        return len(self.out.home) - 1

    def _emit(self, group: int, run: Run, ins: Sequence[int], count: int = 1) -> list[int]:
        outs = [self._new(group) for _ in range(count)]
        self.out.instructions.append(Instruction(group, run, tuple(ins), tuple(outs)))
        return outs

    def _input(self, v: int) -> list[int]:
        where = self.places.of[v]
        if v < len(self.program.consts):
            return []
        if isinstance(where, Stack):
            found = [self._new(group) for group, _, _ in where.pieces]
            self.cut[v, where] = found
            return found
        group = where.group if where else 0
        self.whole[v, group] = self._new(group)
        return [self.whole[v, group]]

    # --- reading ----------------------------------------------------------------------------

    def _read_as(self, o: int | Literal, goal: Where) -> list[int]:
        if isinstance(goal, At):
            return [self._on(o, goal.group)]
        return [self._piece(o, goal, n) for n in range(len(goal.pieces))]

    def _on(self, o: int | Literal, group: int) -> int:
        """A value whole on a group."""
        if isinstance(o, Literal):
            return self._emit(group, lambda _, o=o: [jnp.asarray(literal(o))], ())[0]
        if (o, group) in self.whole:
            return self.whole[o, group]
        where = self.places.of[o]
        if o < len(self.program.consts):
            const = self.program.consts[o]
            found = self._emit(group, lambda _: [jnp.asarray(const)], ())[0]
        elif where is None:
            found = self._make(o, group)
        elif isinstance(where, Stack):
            pieces = self.cut[o, where]
            found = self._emit(group, lambda xs: [jnp.concatenate(xs)], pieces)[0]
        else:
            found = self._emit(group, list, [self.whole[o, where.group]])[0]
        self.whole[o, group] = found
        return found

    def _make(self, v: int, group: int) -> int:
        """A value without a place, made on a group."""
        i = self.maker[v]
        ins = [self._on(o, group) for o in self._reads(i)]
        outs = self._emit(group, self._runner(i), ins, len(self.graph.nodes[i].outputs))
        for u, ref in zip(self.graph.values_of(i), outs, strict=True):
            self.whole[u, group] = ref
        return self.whole[v, group]

    def _piece(self, o: int | Literal, stack: Stack, n: int) -> int:
        group, low, high = stack.pieces[n]
        if not isinstance(o, Literal) and (o, stack) in self.cut:
            return self.cut[o, stack][n]
        i = None if isinstance(o, Literal) else self.maker.get(o)
        if i is not None and self.places.of[o] is None:  # type: ignore[index]
            node = self.graph.nodes[i]
            if node.op == "broadcast_in_dim" and not self.graph.type_of(node.inputs[0]).rank:
                shape = (high - low, *node.outputs[0].shape[1:])
                ref = self._on(node.inputs[0], group)
                return self._emit(group, lambda xs: [jnp.broadcast_to(xs[0], shape)], [ref])[0]
        where = None if isinstance(o, Literal) else self.places.of[o]
        source = where.group if isinstance(where, At) else group
        ref = self._on(o, source)
        (part,) = self._emit(source, lambda xs: [lax.slice_in_dim(xs[0], low, high)], [ref])
        return part if source == group else self._emit(group, list, [part])[0]

    # --- ops --------------------------------------------------------------------------------

    def _reads(self, i: int) -> list[int]:
        """What `_runner` takes, in that order."""
        reads = dict.fromkeys(o for o in self.graph.nodes[i].inputs if isinstance(o, int))
        return [o for o in reads if o >= len(self.program.consts)]

    def _runner(self, i: int) -> Run:
        part = part_of(self.program, [i], list(self.graph.values_of(i)))
        run = plain_program(part.program)
        return lambda xs: run(*part.program.consts, *xs)

    def _node(self, i: int) -> None:
        node, values = self.graph.nodes[i], self.graph.values_of(i)
        if i in self.places.along:
            self._along(i, self.places.along[i])
            return
        where = self.places.of[values[0]]
        if where is None:
            return
        assert isinstance(where, At)
        ins = [self._on(o, where.group) for o in self._reads(i)]
        outs = self._emit(where.group, self._runner(i), ins, len(node.outputs))
        for v, ref in zip(values, outs, strict=True):
            self.whole[v, where.group] = ref

    def _along(self, i: int, factor: str) -> None:
        """An op piece by piece; what it sums over the pieces is finished on the first group."""
        node, values, spec = self.graph.nodes[i], self.graph.values_of(i), self.places.specs[i]
        stack = next(
            where
            for o in node.inputs
            if isinstance(o, int) and isinstance(where := self.places.of[o], Stack)
        )
        found: list[list[int]] = []
        for n, (group, low, high) in enumerate(stack.pieces):
            ins = [
                self._piece(o, stack, n)
                if spec.operands[k] and spec.operands[k][0] == (factor,)
                else self._on(o, group)
                for k, o in enumerate(node.inputs)
            ]
            run = self._local(i, high - low)
            found.append(self._emit(group, run, ins, len(node.outputs)))
        for k, v in enumerate(values):
            refs = [outs[k] for outs in found]
            where = self.places.of[v]
            if isinstance(where, Stack):
                self.cut[v, where] = refs
                continue
            assert isinstance(where, At)
            fold = getattr(lax, REDUCTIONS[node.op])
            self.whole[v, where.group] = self._emit(where.group, _folded(fold), refs)[0]

    def _local(self, i: int, length: int) -> Run:
        node, binding = self.graph.nodes[i], self.program.bindings[i]
        params = dict(binding.params)
        name = RESHAPED.get(node.op)
        if name is not None:
            params[name] = (length, *params[name][1:])
        for other in ("sharding", "out_sharding"):
            if other in params:
                params[other] = None
        primitive = binding.primitive

        def run(xs: Sequence[Array]) -> Sequence[Array]:
            results = primitive.bind(*xs, **params)
            return results if primitive.multiple_results else [results]

        return run


def _folded(fold: Callable[[Array, Array], Array]) -> Run:
    def run(xs: Sequence[Array]) -> Sequence[Array]:
        total = xs[0]
        for x in xs[1:]:
            total = fold(total, x)
        return [total]

    return run


# --- rounds ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """What one group computes in one round."""

    group: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    program: Any


@dataclass(frozen=True)
class Update:
    """The update, compiled in rounds."""

    written: Written
    groups: tuple[Devices, ...]
    batches: tuple[Batch, ...]
    known: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, inputs: list[list[Array]]) -> list[list[Array]]:
        """Results, one array for each piece; `inputs` is emptied, its arrays may be donated."""
        env: dict[int, Array] = {}
        for refs, arrays in zip(self.written.inputs, inputs, strict=True):
            env.update(zip(refs, arrays, strict=True))
        inputs.clear()
        left, known = self._uses(), self.known
        for batch in self.batches:
            args = [sent(env[ref], self.groups[batch.group]) for ref in batch.ins]
            for ref in batch.ins:
                left[ref] -= 1
                if not left[ref]:
                    del env[ref]
            group = self.groups[batch.group]
            found = started(batch.program, args, group, lambda rank, g=group: whole(g, rank), known)
            del args
            env.update(zip(batch.outs, found, strict=True))
        return [[env[ref] for ref in refs] for refs in self.written.outputs]

    def _uses(self) -> dict[int, int]:
        uses: dict[int, int] = {}
        for refs in (*(b.ins for b in self.batches), *self.written.outputs):
            for ref in refs:
                uses[ref] = uses.get(ref, 0) + 1
        return uses


def update_of(
    program: Program,
    known: Mapping[int, Where],
    ties: Sequence[tuple[int, int]],
    goals: Mapping[int, Where],
    groups: Sequence[Devices],
    donated: Sequence[int],
    shardings: Callable[[int, int, Where], Any],
    ends: dict[int, Where],
) -> Update:
    """Compiles an update.

    Args:
        program: traced; captured constants come first among its inputs.
        known: places of its inputs, as far as they are given.
        ties: (input, output position) of state that is replaced; it stays where it is.
        goals: places of its outputs, as far as they are given.
        groups: devices of each group.
        donated: inputs whose buffers may be reused.
        shardings: (output position, piece, its place) -> sharding that it must have.
        ends: receives the places of all outputs.
    """
    consts = dict.fromkeys(range(len(program.consts)))
    places = places_of(program.graph, {**consts, **known}, ties)
    stays = {k: where for a, k in ties if (where := places.of[a]) is not None}
    for k, o in enumerate(program.graph.outputs):
        where = None if isinstance(o, Literal) else places.of[o]
        ends[k] = {**stays, **goals}.get(k) or where or At(0)
    written = Writer(program, places, ends).out
    form = _forms(program, written)
    gives = {ref for a in donated for ref in written.inputs[a]}
    wanted = {
        ref: shardings(k, n, ends[k])
        for k, refs in enumerate(written.outputs)
        for n, ref in enumerate(refs)
    }
    return Update(written, tuple(groups), tuple(_batches(written, gives, wanted, form)))


def _forms(program: Program, written: Written) -> dict[int, Any]:
    """Type of the inputs and outputs; pieces of one value differ by their numbers."""
    ends = zip(range(len(program.graph.inputs)), written.inputs, strict=True)
    found = {ref: (program.graph.types[v], n) for v, refs in ends for n, ref in enumerate(refs)}
    for o, refs in zip(program.graph.outputs, written.outputs, strict=True):
        for n, ref in enumerate(refs):
            found.setdefault(ref, (program.graph.type_of(o), n))
    return found


def _batches(
    written: Written, donated: set[int], wanted: Mapping[int, Any], form: Mapping[int, Any]
) -> list[Batch]:
    rounds: dict[tuple[int, int], list[Instruction]] = {}
    for item, level in zip(written.instructions, _levels(written), strict=True):
        rounds.setdefault((level, item.group), []).append(item)
    made = {ref: key for key, items in rounds.items() for i in items for ref in i.outs}
    outside: set[int] = {ref for refs in written.outputs for ref in refs}
    for key, items in rounds.items():
        outside |= {ref for i in items for ref in i.ins if made.get(ref) != key}
    keys = sorted(rounds)
    last = {ref: key for key in keys for i in rounds[key] for ref in i.ins}
    results = {ref for refs in written.outputs for ref in refs}
    return [
        _batch(rounds[key], key, made, outside, {
            ref for ref in donated if last.get(ref) == key and ref not in results
            and written.home[ref] == key[1]
        }, wanted, form)
        for key in keys
    ]  # fmt: skip


def _levels(written: Written) -> list[int]:
    """Round of each instruction: the last in which its readers are still in time."""
    first: dict[int, int] = {}
    levels: list[int] = []
    for item in written.instructions:
        ready = [first.get(ref, 0) + (written.home[ref] != item.group) for ref in item.ins]
        levels.append(max(ready, default=0))
        first.update(dict.fromkeys(item.outs, levels[-1]))
    due: dict[int, int] = {}
    for n in reversed(range(len(levels))):
        item = written.instructions[n]
        wanted = [due[ref] for ref in item.outs if ref in due]
        levels[n] = max(levels[n], min(wanted, default=levels[n]))
        for ref in item.ins:
            far = written.home[ref] != item.group
            due[ref] = min(due.get(ref, levels[n] - far), levels[n] - far)
    return levels


def _batch(
    items: list[Instruction],
    key: tuple[int, int],
    made: Mapping[int, tuple[int, int]],
    outside: set[int],
    may_donate: set[int],
    wanted: Mapping[int, Any],
    form: Mapping[int, Any],
) -> Batch:
    ins = tuple(dict.fromkeys(ref for i in items for ref in i.ins if made.get(ref) != key))
    outs = tuple(ref for i in items for ref in i.outs if ref in outside)

    def update(*arrays: Array) -> tuple[Array, ...]:
        env = dict(zip(ins, arrays, strict=True))
        for item in items:
            env.update(zip(item.outs, item.run([env[ref] for ref in item.ins]), strict=True))
        return tuple(env[ref] for ref in outs)

    free = [form[ref] for ref in outs if ref in form]
    donated: list[int] = []
    for k, ref in enumerate(ins):  # only what some result can take the place of
        if ref in may_donate and form[ref] in free:
            free.remove(form[ref])
            donated.append(k)
    program = jax.jit(
        update, donate_argnums=tuple(donated), out_shardings=tuple(wanted.get(ref) for ref in outs)
    )
    return Batch(key[1], ins, outs, program)
