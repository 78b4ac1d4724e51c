# pyright: basic
"""A planned program as a function of local shards, for one device inside `jax.shard_map`.

What runs is the lowered plan: the steps of its reshards at their sites, each op on its shards as
its strategy says. Written beside it is what no plan decides: values made of literals, in the state
in which they are read, and the order of effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ir import (
    REGIONS,
    Graph,
    IRError,
    Literal,
    LoweredPlan,
    Node,
    Scan,
    Sharding,
    Strategy,
    TensorType,
    While,
    differences,
    doing,
    replicated,
)
from ir.analysis import Place, Site, has_effects, is_effect
from ir.evaluate_regions import branch, remat
from ir.trace import Binding, Program

from .collective_matmul import product_in_parts
from .effects import Effects
from .exchange_in_chunks import Cuts, cuts_of, run_in_chunks
from .local_op import LocalOp
from .run import Mover, Written, run_op
from .stacked_loop import entered_last, stacked_loop
from .values import Entry, Free, Kept, Maker

Array = Any


@dataclass(frozen=True)
class LocalProgram:
    """Local shards of the graph's inputs, captured constants first, to those of its results.

    `written` holds the steps of all reshards that the last call wrote, in program order.
    """

    program: Program
    plan: LoweredPlan
    written: list[Written] = field(default_factory=list)

    def __call__(self, *shards: Array) -> tuple[Array, ...]:
        plan, graph, mover = self.plan, self.program.graph, Mover(self.plan.mesh)
        effects = Effects(plan.mesh, has_effects(graph))
        entries = [
            Kept(x, item.type, state, is_argument=True)
            for x, item, state in zip(shards, graph.inputs, plan.arguments, strict=True)
        ]
        emission = _Emission(plan, mover, effects, cuts_of(plan))
        scope = _Scope(emission, self.program, (), emission.maker())
        arrays = scope.leave(scope.run(entries), plan.results)
        effects.finish(mover.from_first)
        self.written[:] = mover.written
        return tuple(arrays)


def local_program(program: Program, plan: LoweredPlan) -> LocalProgram:
    """The program on local shards; to be called inside `jax.shard_map` over the plan's mesh.

    Raises:
        IRError: if the plan is not of this program.
    """
    if plan.flat.graph != program.graph:
        raise IRError(
            "the plan is of another program: "
            f"{differences(plan.flat.graph, program.graph)}; plan the function with these arguments"
        )
    return LocalProgram(program, plan)


@dataclass(frozen=True)
class _Emission:
    plan: LoweredPlan
    mover: Mover
    effects: Effects
    cuts: Cuts

    def maker(self) -> Maker:
        """Of the values of one body."""
        return Maker(self.plan, self.mover, cuts=self.cuts)


@dataclass
class _Scope:
    """One body at its place, while it is emitted."""

    emission: _Emission
    program: Program
    prefix: Place
    maker: Maker

    @property
    def graph(self) -> Graph:
        return self.program.graph

    def run(self, inputs: Sequence[Entry]) -> list[Entry]:
        """Emits the body on entries for all of its inputs; returns its results."""
        env: list[Entry] = list(inputs)
        nodes = zip(self.graph.nodes, self.program.bindings, strict=True)
        for i, (node, binding) in enumerate(nodes):
            operands = [self._entry(o, env) for o in node.inputs]
            with doing(f"emitting {node.op} {node.source}".rstrip()):
                if node.op in REGIONS:
                    env += _REGION[node.op](self, i, node, binding, operands)
                else:
                    env += self._op(i, node, binding, operands)
        return [self._entry(o, env) for o in self.graph.outputs]

    def _entry(self, operand: int | Literal, env: list[Entry]) -> Entry:
        return operand if isinstance(operand, Literal) else env[operand]

    def _op(self, i: int, node: Node, binding: Binding, operands: list[Entry]) -> Sequence[Entry]:
        plan, place = self.emission.plan, (*self.prefix, i)
        number = plan.op_at[place]
        strategy, count = plan.strategies[number], plan.flat.ops[number].weight
        raw = () if strategy is None else strategy.results
        if strategy is not None:
            arrays = self.read(i, operands, range(len(operands)), strategy.operands)
        elif node.outputs:
            return self._recipe(place, node, binding, operands)
        else:  # an effect, of which no plan says anything
            states = tuple(replicated(entry.type.rank) for entry in operands)
            arrays = self.maker.read_whole(operands, states, count)
            strategy = Strategy(("",) * len(plan.mesh.names), states, ())
        if is_effect(node):
            results = self.emission.effects.run(node, binding, arrays)
        else:
            types = tuple(entry.type for entry in operands)
            op = LocalOp(node, binding, types, strategy, plan.mesh, count)
            beside = plan.in_parts.get(place)
            if beside is None:
                results = self._run(op, number, arrays)
            else:
                name = f"reshard{plan.numbers[beside.passage.site]}"
                mover = self.emission.mover
                results = product_in_parts(op, arrays, beside, name, mover)
                if beside.change.before.partial:
                    raw = (beside.change.after,)
        found = self.publish(i, node, results, raw)
        self.maker.latest = found[-1] if found else self.maker.latest
        return found

    def _run(self, op: LocalOp, number: int, arrays: list[Array]) -> list[Array]:
        mover, cuts = self.emission.mover, self.emission.cuts
        found = run_in_chunks(op, number, arrays, cuts, mover.chunks)
        return run_op(op, arrays, mover) if found is None else found

    def _recipe(
        self, place: Place, node: Node, binding: Binding, operands: list[Entry]
    ) -> list[Entry]:
        free = tuple(entry for entry in operands if not isinstance(entry, Kept))
        if len(free) != len(operands):
            raise IRError(
                f"the plan has no strategy for {node.op} at {'/'.join(map(str, place))}; plan "
                "the function again with these arguments"
            )
        return [Free(node, binding, free, k) for k in range(len(node.outputs))]

    # --- regions ---------------------------------------------------------------------------

    def inner(self, i: int, binding: Binding, body: int) -> _Scope:
        """The scope of a body of node i."""
        prefix = (*self.prefix, i, body)
        return _Scope(self.emission, binding.bodies[body], prefix, self.emission.maker())

    def states(self) -> list[Sharding]:
        """Published states of the body's inputs."""
        return [self._state(n, item.type) for n, item in enumerate(self.graph.inputs)]

    def ports(self) -> list[Sharding]:
        """Those of what enters after the captured constants."""
        return self.states()[len(self.program.consts) :]

    def results(self, i: int) -> list[Sharding]:
        """Published states of the results of node i."""
        return [self._state(n, self.graph.types[n]) for n in self.graph.values_of(i)]

    def _state(self, number: int, type_: TensorType) -> Sharding:
        """The published state of a value; one that the plan does not name is whole."""
        return self.emission.plan.state(self.prefix, number) or replicated(type_.rank)

    def captured(self) -> list[Entry]:
        """Entries of the constants that this body captured, which are its first inputs."""
        inputs = zip(self.program.consts, self.graph.inputs, self.states(), strict=False)
        return [
            Kept(self.emission.mover.cut(const, state), item.type, state)
            for const, item, state in inputs
        ]

    def enter(self, arrays: Sequence[Array | Free | Literal]) -> list[Entry]:
        """Entries of all inputs, where `arrays` are those after the captured constants.

        What is made of literals is handed in as a recipe and made inside, in the state in which
        it is read there: outside it would be kept in memory for the whole loop.
        """
        inputs = self.graph.inputs[len(self.program.consts) :]
        given = zip(arrays, inputs, self.ports(), strict=True)
        return [
            *self.captured(),
            *(
                x if isinstance(x, Free | Literal) else Kept(x, item.type, state)
                for x, item, state in given
            ),
        ]

    def read(
        self, i: int, entries: Sequence[Entry], at: Sequence[int], states: Sequence[Sharding]
    ) -> list[Array]:
        """Arrays of some operands of node i in the states that it needs.

        Args:
            i: the node.
            entries: all of its operands.
            at: positions of those that are read.
            states: of these.
        """
        sites = [Site((*self.prefix, i), "operand", k) for k in at]
        return self.maker.read_all([entries[k] for k in at], states, sites)

    def kept(
        self, i: int, entries: Sequence[Entry], at: Sequence[int], states: Sequence[Sharding]
    ) -> list[Array | Free | Literal]:
        """The same of those that are values; recipes as they are."""
        held = [(k, s) for k, s in zip(at, states, strict=True) if isinstance(entries[k], Kept)]
        arrays = iter(self.read(i, entries, [k for k, _ in held], [s for _, s in held]))
        return [next(arrays) if isinstance(e, Kept) else e for e in (entries[k] for k in at)]

    def leave(self, entries: Sequence[Entry], states: Sequence[Sharding]) -> list[Array]:
        """Arrays of the results of this body in the states in which they leave it."""
        sites = [Site(self.prefix, "return", k) for k in range(len(entries))]
        return self.maker.read_all(entries, states, sites)

    def publish(
        self, i: int, node: Node, arrays: Sequence[Array], raw: Sequence[Sharding]
    ) -> list[Kept]:
        """Entries of a node's results, brought from how it leaves them to how they are kept."""
        sites = (Site((*self.prefix, i), "result", k) for k in range(len(raw)))
        results = zip(arrays, node.outputs, raw, sites, strict=True)
        return [self.maker.keep(*result) for result in results]


def _scan(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> Sequence[Entry]:
    wiring, effects = Scan.of(node), scope.emission.effects
    fixed, carried, sliced = wiring.operands(range(len(operands)))
    of_fixed, of_carried, of_slices = wiring.operands(scope.inner(i, binding, 0).ports())
    consts = scope.kept(i, operands, fixed, of_fixed)
    carry = scope.read(i, operands, carried, of_carried)
    xs = scope.read(i, operands, sliced, [state.stacked() for state in of_slices])
    _, stacks = wiring.results(scope.results(i))
    leaving = [*of_carried, *(state.sliced() for state in stacks)]

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        inside = scope.inner(i, binding, 0)
        entering = [*consts, *effects.open(node, carry), *slices]
        after, ys = wiring.results(inside.leave(inside.run(inside.enter(entering)), leaving))
        return effects.close(node, after), ys

    computed = () if effects.inside(node) else _computed(node, operands, carried, carry)
    entered = entered_last(scope.graph, computed)
    begin = effects.close(node, carry)
    results = effects.open(node, stacked_loop(binding, step, begin, xs, entered))
    return scope.publish(i, node, results, [*of_carried, *stacks])


def _computed(
    node: Node, operands: Sequence[Entry], carried: Sequence[int], carry: Sequence[Array]
) -> list[tuple[int, Array]]:
    """Numbers and arrays of what a loop carries, without literals and the program's arguments."""
    found: list[tuple[int, Array]] = []
    for k, x in zip(carried, carry, strict=True):
        entry, value = operands[k], node.inputs[k]
        if isinstance(entry, Kept) and not entry.is_argument and isinstance(value, int):
            found.append((value, x))
    return found


def _while(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> Sequence[Entry]:
    wiring = While.of(node)
    of_test, of_step, carried = wiring.operands(range(len(operands)))
    into_test, into_step = (
        scope.inner(i, binding, body).ports() for body in (wiring.test, wiring.step)
    )
    for_test = scope.kept(i, operands, of_test, into_test[: len(of_test)])
    for_step = scope.kept(i, operands, of_step, into_step[: len(of_step)])
    ports = into_step[len(of_step) :]
    carry = scope.read(i, operands, carried, ports)

    def test(carry: Sequence[Array]) -> Array:
        inside = scope.inner(i, binding, wiring.test)
        (stop,) = inside.leave(inside.run(inside.enter([*for_test, *carry])), [replicated(0)])
        return stop

    def step(carry: Sequence[Array]) -> Sequence[Array]:
        inside = scope.inner(i, binding, wiring.step)
        return inside.leave(inside.run(inside.enter([*for_step, *carry])), ports)

    results = scope.emission.effects.loop(node, test, step, carry)
    return scope.publish(i, node, results, ports)


def _cond(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> Sequence[Entry]:
    effects, ports = scope.emission.effects, scope.results(i)
    (index,) = scope.read(i, operands, [0], [replicated(0)])
    entering = scope.inner(i, binding, 0).ports()
    arrays = scope.read(i, operands, range(1, len(operands)), entering)

    def run(number: int) -> Callable[..., Sequence[Array]]:
        def taken(*xs: Array) -> Sequence[Array]:
            inside = scope.inner(i, binding, number)
            results = inside.run(inside.enter(effects.open(node, xs)))
            return effects.close(node, inside.leave(results, ports))

        return taken

    branches = [run(number) for number in range(len(node.bodies))]
    results = effects.open(node, branch(index, branches, effects.close(node, arrays)))
    return scope.publish(i, node, results, ports)


def _remat(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> Sequence[Entry]:
    """A region without ports: what is kept outside is read inside in the same state."""
    effects = scope.emission.effects
    kept = [(k, entry.array) for k, entry in enumerate(operands) if isinstance(entry, Kept)]
    positions: list[int | None] = [k for k, _ in kept]
    shards_in = [x for _, x in kept]
    leaving: list[Entry] = []

    def run(*arrays: Array) -> Sequence[Array]:
        shards = iter(effects.open(node, arrays))
        inside = scope.inner(i, binding, 0)
        entries = [replace(e, array=next(shards)) if isinstance(e, Kept) else e for e in operands]
        leaving[:] = inside.run([*inside.captured(), *entries])
        kept = [entry.array for entry in leaving if isinstance(entry, Kept)]
        return effects.close(node, kept)

    entering = effects.close(node, shards_in)
    positions = [None] * (len(entering) - len(shards_in)) + positions
    results = iter(effects.open(node, remat(binding, run, entering, positions)))
    return [
        Kept(next(results), entry.type, entry.state) if isinstance(entry, Kept) else entry
        for entry in leaving
    ]


_REGION = {"cond": _cond, "remat": _remat, "scan": _scan, "while": _while}
