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
    Graph,
    IRError,
    Literal,
    LoweredPlan,
    Node,
    Sharding,
    Strategy,
    TensorType,
    differences,
    doing,
    replicated,
)
from ir.analysis import REGIONS, Place, Site, has_effects, is_effect
from ir.evaluate_regions import body_number, branch, remat, scan
from ir.trace import Binding, Program

from .effects import Effects
from .local_op import LocalOp
from .run import Mover, Written, run_op
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
        scope = _Scope(_Emission(plan, mover, effects), self.program, (), Maker(plan, mover))
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

    def state(self, prefix: Place, number: int, type_: TensorType) -> Sharding:
        """The published state of a value; one that the plan does not name is whole."""
        return self.plan.state(prefix, number) or replicated(type_.rank)


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

    def _op(self, i: int, node: Node, binding: Binding, operands: list[Entry]) -> list[Entry]:
        plan, place = self.emission.plan, (*self.prefix, i)
        number = plan.op_at[place]
        strategy, count = plan.strategies[number], plan.flat.ops[number].weight
        if strategy is not None:
            arrays = self.read(i, operands, strategy.operands)
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
            results = run_op(op, arrays, self.emission.mover)
        found = self.publish(i, node, results, strategy.results)
        self.maker.latest = found[-1] if found else self.maker.latest
        return list(found)

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
        maker = Maker(self.emission.plan, self.emission.mover)
        return _Scope(self.emission, binding.bodies[body], prefix, maker)

    def captured(self) -> list[Entry]:
        """Entries of the constants that this body captured, which are its first inputs."""
        heads = len(self.program.consts)
        inputs = zip(
            self.program.consts, self.graph.inputs[:heads], self.states()[:heads], strict=True
        )
        return [
            Kept(self.emission.mover.cut(const, state), item.type, state)
            for const, item, state in inputs
        ]

    def states(self) -> list[Sharding]:
        """Published states of the body's inputs."""
        inputs = self.graph.inputs
        return [self.emission.state(self.prefix, n, item.type) for n, item in enumerate(inputs)]

    def enter(self, arrays: Sequence[Array | Free | Literal]) -> list[Entry]:
        """Entries of all inputs, where `arrays` are those after the captured constants.

        What is made of literals is handed in as a recipe and made inside, in the state in which
        it is read there: outside it would be kept in memory for the whole loop.
        """
        heads = len(self.program.consts)
        given = zip(arrays, self.graph.inputs[heads:], self.states()[heads:], strict=True)
        return [
            *self.captured(),
            *(
                x if isinstance(x, Free | Literal) else Kept(x, item.type, state)
                for x, item, state in given
            ),
        ]

    def read(
        self, i: int, entries: Sequence[Entry], states: Sequence[Sharding], first: int = 0
    ) -> list[Array]:
        """Arrays of operands of node i, from position `first`, in the states that it needs."""
        place = (*self.prefix, i)
        sites = [Site(place, "operand", first + k) for k in range(len(entries))]
        return self.maker.read_all(entries, states, sites)

    def kept(
        self, i: int, entries: Sequence[Entry], states: Sequence[Sharding], first: int = 0
    ) -> list[Array | Free | Literal]:
        """The same of those that are values; recipes as they are."""
        place, held = (*self.prefix, i), [k for k, e in enumerate(entries) if isinstance(e, Kept)]
        sites = [Site(place, "operand", first + k) for k in held]
        read = self.maker.read_all([entries[k] for k in held], [states[k] for k in held], sites)
        arrays = iter(read)
        return [next(arrays) if isinstance(e, Kept) else e for e in entries]

    def leave(self, entries: Sequence[Entry], states: Sequence[Sharding]) -> list[Array]:
        """Arrays of the results of this body in the states in which they leave it."""
        sites = [Site(self.prefix, "return", k) for k in range(len(entries))]
        return self.maker.read_all(entries, states, sites)

    def publish(
        self, i: int, node: Node, arrays: Sequence[Array], raw: Sequence[Sharding]
    ) -> list[Kept]:
        """Entries of a node's results, brought from how it leaves them to how they are kept."""
        place = (*self.prefix, i)
        sites = (Site(place, "result", k) for k in range(len(raw)))
        results = zip(arrays, node.outputs, raw, sites, strict=True)
        return [self.maker.keep(*result) for result in results]


def _scan(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
    body = scope.inner(i, binding, body_number(node, "jaxpr"))
    states, effects = body.states()[len(body.program.consts) :], scope.emission.effects
    first, last = binding.params["num_consts"], binding.params["num_carry"]
    last += first
    consts = scope.kept(i, operands[:first], states[:first])
    carry = scope.read(i, operands[first:last], states[first:last], first)
    xs = scope.read(i, operands[last:], [state.stacked() for state in states[last:]], last)
    ys = [
        scope.emission.state(scope.prefix, number, scope.graph.types[number]).sliced()
        for number in scope.graph.values_of(i)[last - first :]
    ]

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        inside = scope.inner(i, binding, body_number(node, "jaxpr"))
        carry = effects.open(node, carry)
        results = inside.run(inside.enter([*consts, *carry, *slices]))
        arrays = inside.leave(results, [*states[first:last], *ys])
        return effects.close(node, arrays[: last - first]), arrays[last - first :]

    raw = [*states[first:last], *(state.stacked() for state in ys)]
    results = effects.open(node, scan(binding, step, effects.close(node, carry), xs))
    return [*scope.publish(i, node, results, raw)]


def _while(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
    test_number = body_number(node, "cond_jaxpr")
    step_number = body_number(node, "body_jaxpr")
    n_test, n_step = binding.params["cond_nconsts"], binding.params["body_nconsts"]

    def states(number: int) -> list[Sharding]:
        body = scope.inner(i, binding, number)
        return body.states()[len(body.program.consts) :]

    first, effects = n_test + n_step, scope.emission.effects
    for_test = scope.kept(i, operands[:n_test], states(test_number)[:n_test])
    for_step = scope.kept(i, operands[n_test:first], states(step_number)[:n_step], n_test)
    ports = states(step_number)[n_step:]
    carry = scope.read(i, operands[first:], ports, first)

    def test(carry: Sequence[Array]) -> Array:
        inside = scope.inner(i, binding, test_number)
        (stop,) = inside.leave(inside.run(inside.enter([*for_test, *carry])), [replicated(0)])
        return stop

    def step(carry: Sequence[Array]) -> Sequence[Array]:
        inside = scope.inner(i, binding, step_number)
        return inside.leave(inside.run(inside.enter([*for_step, *carry])), ports)

    return [*scope.publish(i, node, effects.loop(node, test, step, carry), ports)]


def _cond(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
    first, effects = scope.inner(i, binding, 0), scope.emission.effects
    (index,) = scope.read(i, operands[:1], [replicated(0)])
    arrays = scope.read(i, operands[1:], first.states()[len(first.program.consts) :], 1)
    numbers = scope.graph.values_of(i)
    ports = [scope.emission.state(scope.prefix, n, scope.graph.types[n]) for n in numbers]

    def run(number: int) -> Callable[..., Sequence[Array]]:
        def taken(*xs: Array) -> Sequence[Array]:
            inside = scope.inner(i, binding, number)
            entering = effects.open(node, xs)
            leaving = inside.leave(inside.run(inside.enter(entering)), ports)
            return effects.close(node, leaving)

        return taken

    branches = [run(number) for number in range(len(node.bodies))]
    results = effects.open(node, branch(index, branches, effects.close(node, arrays)))
    return [*scope.publish(i, node, results, ports)]


def _remat(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
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
