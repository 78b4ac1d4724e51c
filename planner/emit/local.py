# pyright: basic
"""A planned program as a function of local shards, for one device inside `jax.shard_map`.

Every value is kept in the state the plan publishes. Before an op its operands are brought into
the states its strategy needs, the op runs on the shards, and each result is brought from the
state the op leaves it in to the one the plan publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel import ReshardModel
from ir import Graph, IRError, Literal, Mesh, Node, Sharding, TensorType, doing, replicated
from ir.analysis import ASSUMED_ITERATIONS, REGIONS, Decisions, Place, has_effects, is_effect
from ir.evaluate_regions import body_number, branch, remat, scan
from ir.trace import Binding, Program

from .effects import Effects
from .local_op import local_op
from .run import Mover, Written, run_op
from .values import Entry, Free, Kept, Maker

Array = Any


@dataclass(frozen=True)
class LocalProgram:
    """Local shards of the graph's inputs, captured constants first, to those of its results.

    `written` holds the steps of all reshards that the last call wrote, in program order.
    """

    program: Program
    decisions: Decisions
    reshard: ReshardModel
    written: list[Written] = field(default_factory=list)

    def __call__(self, *shards: Array) -> tuple[Array, ...]:
        mover = Mover(self.reshard)
        graph = self.program.graph
        effects = Effects(self.decisions.mesh, has_effects(graph))
        emission = _Emission(self.decisions, mover, effects)
        entries = [
            Kept(x, item.type, state, is_argument=True)
            for x, item, state in zip(shards, graph.inputs, self.decisions.inputs, strict=True)
        ]
        scope = _Scope(emission, self.program, (), Maker(mover))
        results = scope.run(entries)
        arrays = scope.leave(results, self.decisions.outputs)
        effects.finish(mover.from_first)
        self.written[:] = mover.written
        return tuple(arrays)


def local_program(program: Program, decisions: Decisions, reshard: ReshardModel) -> LocalProgram:
    """The program on local shards; to be called inside `jax.shard_map` over the plan's mesh.

    Raises:
        IRError: if the decisions are not those of this program.
    """
    graph = program.graph
    for what, count, expected in (
        ("inputs", len(decisions.inputs), len(graph.inputs)),
        ("results", len(decisions.outputs), len(graph.outputs)),
    ):
        if count != expected:
            raise IRError(
                f"the plan has states for {count} {what}, the program has {expected}; plan the "
                "function again with these arguments"
            )
    return LocalProgram(program, decisions, reshard)


@dataclass(frozen=True)
class _Emission:
    decisions: Decisions
    mover: Mover
    effects: Effects

    @property
    def mesh(self) -> Mesh:
        return self.mover.mesh

    def state(self, prefix: Place, number: int, type_: TensorType) -> Sharding:
        """The published state of a value; one that the plan does not name is whole."""
        return self.decisions.values.get((prefix, number), replicated(type_.rank))


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
        numbers = self.graph.values_of(i)
        place = (*self.prefix, i)
        roles = self.emission.decisions.ops.get(place)
        if roles is None and len(numbers) > 0:
            return self._recipe(place, node, binding, operands)
        roles = roles or ("",) * len(self.emission.mesh.names)
        types = tuple(entry.type for entry in operands)
        op = local_op(node, binding, types, roles, self.emission.mesh)
        arrays = self.maker.read_all(operands, op.strategy.operands)
        found: list[Entry] = []
        if is_effect(node):
            results = self.emission.effects.run(node, binding, arrays)
        else:
            results = run_op(op, arrays, self.emission.mover)
        for x, type_, raw, number in zip(
            results, node.outputs, op.strategy.results, numbers, strict=True
        ):
            state = self.emission.decisions.values.get((self.prefix, number), raw)
            kept = Kept(self.emission.mover.move(x, type_, raw, state), type_, state)
            self.maker.latest = kept
            found.append(kept)
        return found

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
        return _Scope(self.emission, binding.bodies[body], prefix, Maker(self.emission.mover))

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

    def kept(
        self, entries: Sequence[Entry], states: Sequence[Sharding]
    ) -> list[Array | Free | Literal]:
        """Arrays of the entries that are values, in the given states; recipes as they are."""
        pairs = [(e, s) for e, s in zip(entries, states, strict=True) if isinstance(e, Kept)]
        arrays = iter(self.leave([e for e, _ in pairs], [s for _, s in pairs]))
        return [next(arrays) if isinstance(e, Kept) else e for e in entries]

    def leave(self, entries: Sequence[Entry], states: Sequence[Sharding]) -> list[Array]:
        """Arrays of entries in the given states."""
        return self.maker.read_all(entries, states)

    def publish(
        self, i: int, node: Node, arrays: Sequence[Array], raw: Sequence[Sharding]
    ) -> list[Entry]:
        """Entries of a region's results, brought from how it leaves them to how they are kept."""
        found: list[Entry] = []
        numbers = self.graph.values_of(i)
        for x, type_, before, number in zip(arrays, node.outputs, raw, numbers, strict=True):
            state = self.emission.state(self.prefix, number, type_)
            found.append(Kept(self.emission.mover.move(x, type_, before, state), type_, state))
        return found


def _stacked(state: Sharding) -> Sharding:
    return Sharding(((), *state.dims), state.partial)


def _sliced(state: Sharding) -> Sharding:
    return Sharding(state.dims[1:], state.partial)


def _scan(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
    body = scope.inner(i, binding, body_number(node, "jaxpr"))
    states, effects = body.states()[len(body.program.consts) :], scope.emission.effects
    first, last = binding.params["num_consts"], binding.params["num_carry"]
    last += first
    consts = scope.kept(operands[:first], states[:first])
    carry = scope.leave(operands[first:last], states[first:last])
    xs = scope.leave(operands[last:], [_stacked(state) for state in states[last:]])
    ys = [
        _sliced(scope.emission.state(scope.prefix, number, scope.graph.types[number]))
        for number in scope.graph.values_of(i)[last - first :]
    ]

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        inside = scope.inner(i, binding, body_number(node, "jaxpr"))
        carry = effects.open(node, carry)
        with scope.emission.mover.repeated(binding.params["length"]):
            results = inside.run(inside.enter([*consts, *carry, *slices]))
            arrays = inside.leave(results, [*states[first:last], *ys])
        return effects.close(node, arrays[: last - first]), arrays[last - first :]

    raw = [*states[first:last], *(_stacked(state) for state in ys)]
    results = effects.open(node, scan(binding, step, effects.close(node, carry), xs))
    return scope.publish(i, node, results, raw)


def _while(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
    test_number = body_number(node, "cond_jaxpr")
    step_number = body_number(node, "body_jaxpr")
    n_test, n_step = binding.params["cond_nconsts"], binding.params["body_nconsts"]

    def states(number: int) -> list[Sharding]:
        body = scope.inner(i, binding, number)
        return body.states()[len(body.program.consts) :]

    for_test = scope.kept(operands[:n_test], states(test_number)[:n_test])
    for_step = scope.kept(operands[n_test : n_test + n_step], states(step_number)[:n_step])
    ports, effects = states(step_number)[n_step:], scope.emission.effects
    carry = scope.leave(operands[n_test + n_step :], ports)

    def test(carry: Sequence[Array]) -> Array:
        inside = scope.inner(i, binding, test_number)
        with scope.emission.mover.repeated(ASSUMED_ITERATIONS):
            (stop,) = inside.run(inside.enter([*for_test, *carry]))
            return inside.maker.read(stop, replicated(0))

    def step(carry: Sequence[Array]) -> Sequence[Array]:
        inside = scope.inner(i, binding, step_number)
        with scope.emission.mover.repeated(ASSUMED_ITERATIONS):
            return inside.leave(inside.run(inside.enter([*for_step, *carry])), ports)

    return scope.publish(i, node, effects.loop(node, test, step, carry), ports)


def _cond(
    scope: _Scope, i: int, node: Node, binding: Binding, operands: list[Entry]
) -> list[Entry]:
    first, effects = scope.inner(i, binding, 0), scope.emission.effects
    index = scope.maker.read(operands[0], replicated(0))
    arrays = scope.leave(operands[1:], first.states()[len(first.program.consts) :])
    numbers = scope.graph.values_of(i)
    ports = [scope.emission.state(scope.prefix, n, scope.graph.types[n]) for n in numbers]

    def run(number: int) -> Callable[..., Sequence[Array]]:
        def taken(*xs: Array) -> Sequence[Array]:
            inside = scope.inner(i, binding, number)
            entering = effects.open(node, xs)
            with scope.emission.mover.repeated(1 / len(node.bodies)):
                leaving = inside.leave(inside.run(inside.enter(entering)), ports)
            return effects.close(node, leaving)

        return taken

    branches = [run(number) for number in range(len(node.bodies))]
    results = effects.open(node, branch(index, branches, effects.close(node, arrays)))
    return scope.publish(i, node, results, ports)


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
